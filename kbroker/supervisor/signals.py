"""The supervisor's signals: handlers do nothing, a socket yields a byte per signal, the loop acts.

A fork must not inherit any of it: a child that shares the wake-up socket would write its own
signals into the parent's loop. ``blocked`` keeps signals out of the moment between the fork and the
child's ``forget``.
"""

from __future__ import annotations

import faulthandler
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)


def _noticed(number: int, frame: FrameType | None) -> None:
    """The wake-up socket has the signal already."""


class SignalQueue:
    """Signals that arrived, in order. Made once, in the supervisor's main thread."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in HANDLED:
            signal.signal(number, _noticed)

    def wait(self, timeout_s: float) -> list[int]:
        """The signals since the last call; waits at most ``timeout_s`` for the first."""
        self._poll.poll(max(0, int(timeout_s * 1000 + 0.999)))
        try:
            return list(self._reader.recv(4096))
        except BlockingIOError:
            return []

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Blocks signals inside the ``with`` statement.

        In the parent they follow at the end, a child calls ``forget``.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def forget(self) -> None:
        """In a child, with signals still blocked: drop the parent's queue and restore the defaults.

        SIGTERM and SIGHUP stay blocked until the worker has handlers
        (``workers.base.signal_socket``), so that one that comes early is neither lost nor kills the
        child before it could end in order. SIGQUIT has its handler from here on, which prints the
        stacks; it works in a process that is stuck as well.
        """
        signal.set_wakeup_fd(-1)
        for number in HANDLED:
            signal.signal(number, signal.SIG_DFL)
        self._reader.close()
        self._writer.close()
        faulthandler.register(signal.SIGQUIT)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGCHLD, signal.SIGQUIT))
