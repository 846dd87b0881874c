"""Disk work that may take long (syncs, removals, checkpoints), done outside the worker's loop.

One thread per io worker, started with the first job and so after the fork. A job is a function that
only touches files; its consequences (``on_done``) run in the worker's own thread, when it calls
``collect``.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

from kbroker.errors import InvariantError

Job = Callable[[], object]
OnDone = Callable[[object, OSError | None], None]


class BackgroundDisk:
    """Runs jobs one after another. ``inline=True`` runs them immediately, for tests and for
    shutdown.

    BOUND: callers submit at most one flush per log and one checkpoint per file at a time.
    """

    __slots__ = ("_done", "_inline", "_jobs", "_pending", "_thread")

    def __init__(self, *, inline: bool = False) -> None:
        self._inline = inline
        self._jobs: queue.SimpleQueue[tuple[Job, OnDone] | None] = queue.SimpleQueue()
        self._done: deque[tuple[OnDone, object, BaseException | None]] = deque()
        self._pending = 0
        self._thread: threading.Thread | None = None

    @property
    def inline(self) -> bool:
        """Whether jobs run at once."""
        return self._inline

    @property
    def pending(self) -> int:
        """Jobs whose ``on_done`` has not run."""
        return self._pending

    def submit(self, job: Job, on_done: OnDone) -> None:
        """Run ``job``; then ``on_done(result, error)`` in the thread that collects. A job raises
        only OSError.
        """
        self._pending += 1
        if self._inline:
            self._run(job, on_done)
            self.collect()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="kb-disk", daemon=True)
            self._thread.start()
        self._jobs.put((job, on_done))

    def collect(self) -> int:
        """Run the callbacks of finished jobs; returns how many. Raises InvariantError for a job
        that has ended otherwise than it may: its caller would wait for ever.
        """
        count = 0
        while self._done:
            on_done, result, error = self._done.popleft()
            self._pending -= 1
            count += 1
            if error is not None and not isinstance(error, OSError):
                raise InvariantError("a job of the disk thread failed") from error
            on_done(result, error)
        return count

    def wait(self) -> None:
        """Block until every job submitted so far has run, then collect."""
        if self._thread is not None:
            reached = threading.Event()
            self._jobs.put((reached.set, lambda _result, _error: None))
            self._pending += 1
            reached.wait()
        self.collect()

    def close(self) -> None:
        """Finish every job, collect, end the thread."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        self.collect()
        self._inline = True

    def _loop(self) -> None:
        while (entry := self._jobs.get()) is not None:
            self._run(*entry)

    def _run(self, job: Job, on_done: OnDone) -> None:
        try:
            self._done.append((on_done, job(), None))
        except BaseException as error:
            self._done.append((on_done, None, error))
