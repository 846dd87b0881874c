"""The flush state of one log, and the jobs that sync the rest.

Owned by a ``PartitionLog``. A job is created and settled in the worker's loop, by the flusher, for
a response that waits, or for a clean shutdown; it may run in another thread. The appender learns
what is on disk and whether its own sync of the active segment is enough.

Invariant: the recovery point never passes what a job that has run without an error was made for.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker._ext.log.log_append import LogAppender
from kbroker.errors import ShortageError
from kbroker.storage.formats import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from kbroker.storage.log.log_segments import LogSegments
from kbroker.storage.log.unsynced import FlushJob, Unsynced
from kbroker.storage.repair import txn_recovery
from kbroker.storage.repair.recovery import LoadedLog
from kbroker.storage.segments import producer_snapshots
from kbroker.storage.segments.segment import Segment
from kbroker.types import FIRST_OFFSET, Offset

# BOUND: of an active segment whose batch headers a start walks instead of reading a snapshot. To
# make the file costs a stop more than that, above all where many files have just been deleted.
REPLAYED_BYTES_MAX = 64 << 10


class LogSync:
    """first_unflushed_ms: when the oldest append was made that no flush has begun for, or None; the
    flusher's.
    """

    __slots__ = (
        "_appender",
        "_clean_end",
        "_has_spare",
        "_path",
        "_running",
        "_segments",
        "_unsynced",
        "first_unflushed_ms",
    )

    def __init__(
        self,
        path: str,
        log_dir: str,
        loaded: LoadedLog,
        segments: LogSegments,
        appender: LogAppender,
        *,
        created: bool,
    ) -> None:
        """path: the partition's directory. created: it has just been created. Raises OSError."""
        self.first_unflushed_ms: int | None = None
        self._running: FlushJob | None = None
        self._path = path
        self._segments = segments
        self._appender = appender
        # Whether a flush has made a file for the snapshot of a clean shutdown.
        self._has_spare = False
        # The log end offset up to which every file is as after a clean shutdown; None: unknown.
        self._clean_end = loaded.next_offset if _says_where_it_ends(loaded) else None
        self._unsynced = Unsynced(path, log_dir)
        # The names of a log that was created, or found after a kill, have not been synced; nor does
        # a clean shutdown sync those of a log without records.
        if created or loaded.recovered or segments.active.size == 0:
            self._unsynced.names_changed(path_is_new=True)
        if loaded.recovered:
            self._adopt_unsynced(loaded.recovery_point)
        self._tell_appender()

    def _adopt_unsynced(self, recovery_point: Offset) -> None:
        """It is unknown how much of the walked segments is on disk: treat them as unsynced."""
        try:
            for segment in self._segments[:-1]:
                if segment.next_offset > recovery_point:
                    self._unsynced.add(segment.open_log(), segment)
        except BaseException:
            self.close()
            raise

    @property
    def is_running(self) -> bool:
        """Whether a flush has begun and is not finished."""
        return self._running is not None

    @property
    def is_behind(self) -> bool:
        """Whether there are records that may not be on disk."""
        return self._appender.next_offset > self._appender.flushed_offset

    # ---- what changes ----

    def names_changed(self) -> None:
        """A file was created, renamed or removed."""
        self._clean_end = None
        self._unsynced.names_changed()
        self._tell_appender()

    def aborted_added(self, *, is_first: bool) -> None:
        """The active segment's index of aborted transactions has another entry."""
        if is_first:
            self.names_changed()
        self._tell_appender()

    def sealed(self, fd: int, segment: Segment) -> None:
        """Take over the descriptor; the segment's other files are synced by their names."""
        self._unsynced.add(fd, segment)

    def forget(self, segment: Segment) -> None:
        """The segment is about to be removed or truncated."""
        self._unsynced.forget(segment)

    def lower_to(self, end: Offset) -> None:
        """Everything from ``end`` on is about to be truncated: a job in progress syncs nothing of
        what comes there later.
        """
        self._clean_end = None
        if self._running is not None:
            self._running.end_offset = min(end, self._running.end_offset)
        self._appender.set_flushed_offset(min(end, self._appender.flushed_offset))

    def move_to(self, path: str, log_dir: str) -> None:
        """The log continues in that directory, where everything except the names is on disk."""
        self._unsynced.close()
        self._path = path
        self._unsynced = Unsynced(path, log_dir)
        self._has_spare = False
        self._appender.mark_flushed(self._appender.next_offset, self._appender.unflushed_messages)
        self.names_changed()

    def _tell_appender(self) -> None:
        has_older = bool(self._unsynced) or self._segments.files.aborted.unsynced
        self._appender.mark_older_unsynced(has_older)

    # ---- jobs ----

    def begin(self, *, by_file: bool = True) -> FlushJob:
        """A job that syncs the present content of the log; call ``finish`` when it has run. One at
        a time.

        by_file: without it the job is one for a sync of the whole file system. Raises OSError,
        ShortageError; then none is begun.
        """
        end_offset, messages = self._appender.next_offset, self._appender.unflushed_messages
        files = self._segments.files
        if by_file:
            job = self._with_aborted(self._unsynced.job(end_offset, messages, files.fd))
        else:
            job = self._unsynced.whole_job(end_offset, messages)
            files.aborted.unsynced = False
        if not self._has_spare and self._needs_snapshot:
            job.spare_in = self._path
        self._running = job
        self.first_unflushed_ms = None
        return job

    def finish(self, job: FlushJob) -> None:
        """The job has run without an error."""
        self._running = None
        self._has_spare |= job.spare_in == self._path
        self._unsynced.settle(job, job.end_offset)
        self._tell_appender()
        self._appender.mark_flushed(job.end_offset, job.messages)

    def sync_older(self, sync_everything: Callable[[], bool]) -> None:
        """Sync what the appender's own sync does not cover: sealed segments and names.

        sync_everything: as for ``FlushJob.run``. Raises OSError.
        """
        job = self._with_aborted(self._unsynced.job(FIRST_OFFSET, 0))
        job.run(sync_everything)
        self._unsynced.settle(job, self._segments.active.base_offset)
        self._tell_appender()

    def seal(self) -> FlushJob | None:
        """Write the state of a clean shutdown: trimmed indexes and a snapshot. Nothing can be
        appended afterwards.

        The job that syncs it, for ``PartitionLog.close``; None if all is as the last clean shutdown
        left it, or nothing was ever written. Raises OSError.
        """
        appender, files = self._appender, self._segments.files
        appender.reject_all()
        if appender.next_offset == self._clean_end:
            return None
        files.trim(appender, in_place=True)
        snapshot = self._write_snapshot()
        self._unsynced.names_changed()
        job = self._with_aborted(
            self._unsynced.job(
                appender.next_offset,
                appender.unflushed_messages,
                files.fd if self.is_behind else None,
                lends=True,
            )
        )
        job.files += [
            self._segments.active.path(suffix)
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
        ]
        if snapshot is not None:
            job.files.append(snapshot)
        if not files.aborted.is_empty:
            job.files.append(txn_recovery.remember(self._path, self._segments))
        return job

    def _write_snapshot(self) -> str | None:
        """The snapshot of a clean shutdown; None without one, which may be for want of room."""
        if not self._needs_snapshot:
            return None
        return producer_snapshots.write_snapshot(
            self._path, self._appender.producers, uses_spare=self._has_spare
        )

    @property
    def _needs_snapshot(self) -> bool:
        """Whether a start without one would take long, or have another state than this.

        COMPAT: Kafka expects no producers where it finds no snapshot.
        """
        appender = self._appender
        return bool(appender.producers.entries) or appender.position > REPLAYED_BYTES_MAX

    def _with_aborted(self, job: FlushJob) -> FlushJob:
        aborted = self._segments.files.aborted
        try:
            fd = aborted.duplicate_to_sync()
        except ShortageError:
            if not job.go_without_descriptors():
                raise
            aborted.unsynced = False
        except OSError:
            job.give_up()
            raise
        else:
            if fd is not None:
                job.fds.append(fd)
        return job

    def close(self) -> None:
        """Close every descriptor without syncing."""
        self._unsynced.close()


def _says_where_it_ends(loaded: LoadedLog) -> bool:
    """Whether the next start finds the same log without anything being written.

    A log that never had a record is recreated if a power failure loses it.
    """
    if loaded.next_offset == 0:
        return True
    return not loaded.recovered and loaded.segments[-1].size > 0
