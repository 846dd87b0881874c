"""Flushes the logs of an io worker: sealed segments at once, everything when it is flush.ms old.

Runs in the worker's loop; the background thread syncs. What waits for it when its turn comes is
synced together: many logs that are due at once cost one sync of the file system, and a slow disk
falls behind by one sync, not by one for each log.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator

from kbroker.errors import ShortageError
from kbroker.storage.background import BackgroundDisk
from kbroker.storage.dirs.log_dir import LocalLogDir
from kbroker.storage.dirs.log_dirs import LocalLogDirs
from kbroker.storage.files import syncfs_tells_failures
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.storage.log.unsynced import FlushJob

# With this many logs or more the file system is synced. With fewer it might write more of other
# programs' files than it saves; one by one, even a slow disk completes them within a second.
FLUSH_AT_ONCE_MIN = 64

Flush = tuple[PartitionLog, FlushJob]


class Flusher:
    """Made by the log manager, one for all log directories."""

    def __init__(
        self,
        background: BackgroundDisk,
        dirs: LocalLogDirs,
        monotonic_ms: Callable[[], int],
        *,
        is_held: Callable[[PartitionLog], bool],
        is_open: Callable[[PartitionLog], bool],
        on_failure: Callable[[str, OSError], object],
        on_shortage: Callable[[ShortageError], object],
    ) -> None:
        """is_held: whether a flush has to wait. on_failure: called with a directory whose sync
        failed. on_shortage: called with a log whose flush must be retried.
        """
        self._background = background
        self._dirs = dirs
        self._monotonic_ms = monotonic_ms
        self._is_held = is_held
        self._is_open = is_open
        self._on_failure = on_failure
        self._on_shortage = on_shortage
        # Logs with unflushed data, by the age of the oldest of it.
        self._unflushed: deque[PartitionLog] = deque()
        # By directory: the input of its next job. The loop appends, the thread removes.
        self._waiting: dict[str, deque[Flush]] = {}
        # Told how long each sync took, in nanoseconds; called in the background thread.
        self.note_time: Callable[[int], object] = lambda ns: None
        # Set by a clean shutdown, which syncs everything itself: queued flushes can be skipped.
        self.is_closing = False

    @property
    def has_unflushed(self) -> bool:
        """Whether a flush by time is due within its interval."""
        return bool(self._unflushed)

    def on_first_unflushed(self, log: PartitionLog) -> None:
        """Something was appended since the last flush."""
        if log.sync.first_unflushed_ms is None:
            log.sync.first_unflushed_ms = self._monotonic_ms()
            self._unflushed.append(log)

    def start_due(self) -> None:
        """Start a flush of each log whose oldest unflushed append is flush.ms old."""
        now_ms = self._monotonic_ms()
        due: dict[str, list[PartitionLog]] = {}
        for _ in range(len(self._unflushed)):
            log = self._unflushed.popleft()
            if log.appender.closed or log.sync.first_unflushed_ms is None:
                log.sync.first_unflushed_ms = None
                continue
            due_ms = log.sync.first_unflushed_ms + log.settings.flush_ms
            if due_ms > now_ms or self._may_not_flush(log):
                self._unflushed.append(log)
            else:
                due.setdefault(log.log_dir, []).append(log)
        for path, entries in due.items():
            self._start(path, entries)

    def start(self, log: PartitionLog) -> None:
        """Begin a flush of a log now, unless one is under way or has to wait."""
        if not self._may_not_flush(log):
            self._start(log.log_dir, [log])

    def _may_not_flush(self, log: PartitionLog) -> bool:
        return log.sync.is_running or self._is_held(log)

    def _start(self, path: str, entries: list[PartitionLog]) -> None:
        by_file = len(entries) < FLUSH_AT_ONCE_MIN or not syncfs_tells_failures()
        waiting = self._waiting.setdefault(path, deque())
        log_dir, finished = self._dirs.at(path), list[Flush]()
        failure: OSError | None = None
        for log in entries:
            try:
                waiting.append((log, log.sync.begin(by_file=by_file)))
            except ShortageError as error:
                self._on_shortage(error)
                log.sync.first_unflushed_ms = None
                self.on_first_unflushed(log)
            except OSError as error:
                # Its directory goes offline when the job ends: an append is going on here.
                failure = error

        def run() -> None:
            self._run(log_dir, waiting, finished, failure)

        def on_done(_result: object, error: OSError | None) -> None:
            self._on_flushed(path, finished, error)

        self._background.submit(run, on_done)

    def _run(
        self,
        log_dir: LocalLogDir,
        waiting: deque[Flush],
        finished: list[Flush],
        failure: OSError | None,
    ) -> None:
        """Runs in the background thread: touches files only.

        failure: why the job of a log could not be made. Raises OSError.
        """
        taken = list(_taken_from(waiting))
        jobs = [job for _, job in taken]
        try:
            if failure is not None:
                raise failure
            if self.is_closing:
                return
            if len(jobs) >= FLUSH_AT_ONCE_MIN or any(job.whole_file_system for job in jobs):
                tells_failures = log_dir.sync_everything()
                for job in jobs:
                    job.file_system_synced(tells_failures=tells_failures)
            for flush in taken:
                if self.is_closing:  # another thread sets it
                    return  # type: ignore[unreachable]
                began_ns = time.monotonic_ns()
                flush[1].run(log_dir.sync_everything)
                self.note_time(time.monotonic_ns() - began_ns)
                finished.append(flush)
        except OSError:
            self._dirs.note_failing(log_dir)
            raise
        finally:
            for job in jobs[len(finished) :]:
                job.give_up()

    def _on_flushed(self, path: str, finished: list[Flush], error: OSError | None) -> None:
        if error is not None:
            self._on_failure(path, error)
            return
        for log, job in finished:
            if self._is_open(log):
                log.sync.finish(job)
                if log.sync.is_behind:
                    self.on_first_unflushed(log)


def _taken_from(waiting: deque[Flush]) -> Iterator[Flush]:
    """Yield the queue's entries, including those added meanwhile."""
    while waiting:
        yield waiting.popleft()
