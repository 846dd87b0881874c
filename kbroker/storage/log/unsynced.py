"""The parts of a log that may not be on disk, and the jobs that sync them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from kbroker.descriptors import open_file
from kbroker.errors import ShortageError
from kbroker.storage.files import (
    FILES_SYNCED_SINGLY,
    sync_directory,
    sync_file,
    syncfs_tells_failures,
)
from kbroker.storage.formats import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from kbroker.storage.segments.producer_snapshots import make_spare, snapshot_path
from kbroker.storage.segments.segment import Segment
from kbroker.types import Offset


class FlushJob:
    """Syncs everything that was in a log when the job was made; ``run`` may be called in another
    thread.
    """

    __slots__ = (
        "directories",
        "end_offset",
        "fds",
        "files",
        "lent_fds",
        "messages",
        "names_version",
        "spare_in",
        "whole_file_system",
    )

    def __init__(self, end_offset: Offset, messages: int, names_version: int = 0) -> None:
        self.end_offset = end_offset
        self.messages = messages
        self.names_version = names_version
        # Closed when the job is done; borrowed ones are closed by their owner.
        self.fds: list[int] = []
        self.lent_fds: list[int] = []
        # The partition's directory if a spare file is needed there (``producer_snapshots``).
        self.spare_in: str | None = None
        # There were no file descriptors for the job, or it is one of many: only a sync of
        # everything covers it.
        self.whole_file_system = False
        self.files: list[str] = []
        self.directories: list[str] = []

    def go_without_descriptors(self) -> bool:
        """Leave everything to a sync of the whole file system, for which a descriptor is kept.

        False, and the job is void, where that sync does not tell of every failure.
        """
        self._close()
        self.whole_file_system = syncfs_tells_failures()
        return self.whole_file_system

    def file_system_synced(self, *, tells_failures: bool) -> None:
        """Skip what a sync of the whole file system has covered.

        tells_failures: it would have told of any failed write. If not, log data is still asked.
        """
        self.files = []
        self.directories = []
        self.whole_file_system = False
        if tells_failures:
            self._close()
            self.lent_fds = []

    def run(self, sync_everything: Callable[[], bool]) -> None:
        """Sync. Raises OSError, after which nothing there may be synced again.

        sync_everything: ``LocalLogDir.sync_everything``, which takes the place of many syncs, and
        of those that find no descriptor. A slow disk would otherwise fall behind a busy log, and
        further with every segment.
        """
        try:
            if self.whole_file_system or len(self.files) > FILES_SYNCED_SINGLY:
                self.file_system_synced(tells_failures=sync_everything())
            for fd in (*self.lent_fds, *self.fds):
                os.fdatasync(fd)
            try:
                self._sync_names()
            except ShortageError:
                # Log data is synced explicitly; names and indexes are synced with it.
                sync_everything()
            if self.spare_in is not None:
                make_spare(self.spare_in)
        finally:
            self._close()

    def _sync_names(self) -> None:
        for path in self.files:
            sync_file(path)
        for directory in self.directories:
            # The partition may have been deleted since, its directory renamed.
            with suppress(FileNotFoundError):
                sync_directory(directory)

    def give_up(self) -> None:
        """Instead of ``run``: the caller takes over the sync."""
        self._close()

    def _close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []


class Unsynced:
    """Sealed segments and names of one log that still have to be synced.

    A sealed segment keeps the descriptor that wrote it until then: the kernel reports a failed
    write-back to the open file that was written through.
    """

    __slots__ = ("_log_dir", "_names_synced", "_names_version", "_path", "_path_is_new", "_sealed")

    def __init__(self, path: str, log_dir: str) -> None:
        self._path = path
        self._log_dir = log_dir
        self._sealed: list[tuple[int, Segment]] = []
        # Counts files created, renamed or removed, and the count up to which that is synced. Two
        # jobs may be in progress: what one has taken on is not done for the other.
        self._names_version = 0
        self._names_synced = 0
        self._path_is_new = False

    def __bool__(self) -> bool:
        return bool(self._sealed) or self._names_version > self._names_synced

    def names_changed(self, *, path_is_new: bool = False) -> None:
        """A file was created, renamed or removed; or the partition's directory was created."""
        self._names_version += 1
        self._path_is_new |= path_is_new

    def add(self, fd: int, segment: Segment) -> None:
        """Take over the descriptor of a sealed segment."""
        self._sealed.append((fd, segment))

    def forget(self, segment: Segment) -> None:
        """The segment is about to be removed."""
        for entry in [entry for entry in self._sealed if entry[1] is segment]:
            os.close(entry[0])
            self._sealed.remove(entry)

    def job(
        self,
        end_offset: Offset,
        messages: int,
        active_fd: int | None = None,
        *,
        lends: bool = False,
    ) -> FlushJob:
        """A job for everything here, and for the active segment.

        lends: nothing is closed before the job has run, nor synced after it. Raises OSError,
        ShortageError.
        """
        job = FlushJob(end_offset, messages, self._names_version)
        # The originals may be closed while the job runs. Not duplicates, which share the open file:
        # the kernel reports a failed write-back once to each, and if the job gets that error, a
        # later sync of the writer must get it, too.
        fds = [fd for fd, _ in self._sealed]
        if active_fd is not None:
            fds.append(active_fd)
        if lends:
            job.lent_fds = fds
        for _, segment in self._sealed:
            job.files += [
                segment.path(suffix)
                for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
            ]
            job.files.append(snapshot_path(self._path, segment.next_offset))
        if self._names_version > self._names_synced:
            job.directories.append(self._path)
            if self._path_is_new:
                job.directories.append(self._log_dir)
        try:
            for fd in () if lends else fds:
                job.fds.append(_opened_anew(fd))
        except ShortageError:
            if not job.go_without_descriptors():
                raise
        except OSError:
            job.give_up()
            raise
        return job

    def whole_job(self, end_offset: Offset, messages: int) -> FlushJob:
        """The same without a file descriptor, if ``syncfs_tells_failures``."""
        job = FlushJob(end_offset, messages, self._names_version)
        job.whole_file_system = True
        return job

    def settle(self, job: FlushJob, synced_to: int) -> None:
        """``job`` has run: its names, and everything below ``synced_to``, are on disk."""
        self._names_synced = max(self._names_synced, job.names_version)
        if self._names_synced == self._names_version:
            self._path_is_new = False
        for entry in [entry for entry in self._sealed if entry[1].next_offset <= synced_to]:
            os.close(entry[0])
            self._sealed.remove(entry)

    def close(self) -> None:
        """Close every descriptor without syncing."""
        for fd, _ in self._sealed:
            os.close(fd)
        self._sealed = []


def _opened_anew(fd: int) -> int:
    """Another open file of the same inode, whatever its name is by now. Raises OSError."""
    return open_file(f"/proc/self/fd/{fd}")
