"""Work that may take seconds, done in a few threads beside the loop of a network process."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from kbroker.ipc.pending import Pending

T = TypeVar("T")

THREADS_MAX = 4
# BOUND: work that waits or runs. More is rejected.
WORK_MAX = 1_000


class Busy(Exception):
    """Too much work is waiting already."""


class Beside:
    """``fd`` is readable when ``take`` has something to do. Threads start when they are needed."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._todo: SimpleQueue[tuple[Pending[Any], Callable[[], Any]]] = SimpleQueue()
        self._done: deque[tuple[Pending[Any], Any, BaseException | None]] = deque()
        self._threads = self._open = 0

    def run(self, work: Callable[[], T]) -> Pending[T]:
        """The outcome of this function, which must not touch anything of the loop."""
        pending: Pending[T] = Pending()
        if self._open >= WORK_MAX:
            pending.resolve(error=Busy())
            return pending
        self._open += 1
        self._todo.put((pending, work))
        if self._threads < min(self._open, THREADS_MAX):
            self._threads += 1
            threading.Thread(target=self._work, name="beside", daemon=True).start()
        return pending

    def _work(self) -> None:
        while True:
            pending, work = self._todo.get()
            value: Any = None
            failure: Exception | None = None
            try:
                value = work()
            except Exception as error:
                failure = error
            except BaseException as error:  # a plug-in that calls sys.exit() ends no thread
                failure = RuntimeError(f"{type(error).__name__}: {error}")
            self._done.append((pending, value, failure))
            os.eventfd_write(self.fd, 1)

    def take(self) -> None:
        """Resolve what has ended since the last call."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return
        while self._done:
            pending, value, failure = self._done.popleft()
            self._open -= 1
            pending.resolve(value, failure)
