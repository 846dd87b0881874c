"""Threads for the cleaner's work, outside the loop of its process.

A thread runs one function at a time and touches files only; what follows runs in the loop. Threads
are started with the first work.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from kbroker.ipc.rpc import Pending

# A function for a thread, and the Pending that waits for it; None ends the thread.
Jobs = queue.SimpleQueue["tuple[Callable[[], Any], Pending[Any]] | None"]


class CleanerThreads:
    """BOUND: the caller gives a thread one function at a time."""

    def __init__(self) -> None:
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._jobs: dict[int, Jobs] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._done: deque[tuple[Pending[Any], Any, BaseException | None]] = deque()

    @property
    def fd(self) -> int:
        """Readable when ``collect`` has something to do."""
        return self._wake_fd

    def run(self, number: int, function: Callable[[], Any]) -> Pending[Any]:
        """Run ``function`` in thread ``number``; returns its result or raises its exception."""
        pending: Pending[Any] = Pending()
        if number not in self._threads:
            self._jobs[number] = queue.SimpleQueue()
            name, args = f"kb-clean-{number}", (self._jobs[number],)
            thread = threading.Thread(target=self._loop, args=args, name=name, daemon=True)
            self._threads[number] = thread
            thread.start()
        self._jobs[number].put((function, pending))
        return pending

    def _loop(self, jobs: Jobs) -> None:
        while (entry := jobs.get()) is not None:
            function, pending = entry
            try:
                self._done.append((pending, function(), None))
            except BaseException as error:
                self._done.append((pending, None, error))
            os.eventfd_write(self._wake_fd, 1)

    def collect(self) -> None:
        """Resolve finished work; called in the loop."""
        try:
            os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            pass  # nothing has finished since the last call
        while self._done:
            pending, result, error = self._done.popleft()
            pending.resolve(result, error)

    def close(self, timeout_s: float) -> None:
        """End idle threads and wait this long for the others, which die with the process."""
        for jobs in self._jobs.values():
            jobs.put(None)
        for thread in self._threads.values():
            thread.join(timeout_s)
