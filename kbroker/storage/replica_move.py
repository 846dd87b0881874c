"""One replica on its way into another log directory (docs/formats/log-directory.md, "Moves").

The bytes are copied, a slice at a time, into ``<topic>-<partition>.<hex>-future`` of the target by
a thread that touches files only; the owner of the log goes on serving the partition. When little is
missing, ``switch`` copies the rest, syncs and renames within one turn of the owner's loop.

What the thread reads does not change: sealed segments, and of the active one what was appended
before. Segments that were removed, exchanged or cut meanwhile are dropped or compared again.
INVARIANT: the future directory holds the oldest segments without a gap, and all of it is synced
before it gets the partition's name.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kbroker._ext.log_scan import END, scan_segment
from kbroker.storage.files import (
    read_if_present,
    remove_if_present,
    remove_tree,
    replace_file,
    sync_directory,
    sync_file,
)
from kbroker.storage.formats import (
    CLEANER_CHECKPOINT,
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    MOVED_MARKER,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_CHECKPOINT,
    TXN_INDEX_SUFFIX,
    base_offset_of,
    future_dir_name,
    partition_dir_name,
    segment_name,
)
from kbroker.storage.partition_metadata import write_partition_metadata

if TYPE_CHECKING:
    from kbroker.storage.log_dir import LogDir
    from kbroker.storage.partition_log import PartitionLog
    from kbroker.storage.segment import Segment

# BOUND: what is copied and synced at a time. The thread is done with it well within the time that a
# stop may take.
SLICE_BYTES = 8 << 20
BLOCK_BYTES = 1 << 20
# BOUND: what may be left to copy in the turn of the switch. It doubles while a busy producer keeps
# more than that ahead, up to what costs that producer a pause of about a tenth of a second.
SWITCH_BYTES = 256 << 10
SWITCH_BYTES_MAX = 32 << 20
# Files beside the segments that the copy needs.
_PARTITION_FILES = (LEADER_EPOCH_CHECKPOINT, TXN_INDEX_CHECKPOINT)


class SourceError(Exception):
    """The log cannot be copied: its bytes are damaged or cannot be read. It stays where it is."""


class _Copy:
    """How far one segment has come. ``compare``: what the file holds may be of an earlier run."""

    __slots__ = ("checked", "compare", "done", "is_whole", "segment")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.done = 0
        self.checked = 0
        self.compare = True
        self.is_whole = False


class ReplicaMove:
    """Used by the owner of ``log``; what ``next_job`` returns may run in another thread."""

    def __init__(
        self, log: PartitionLog, source: LogDir, target: LogDir, path: str | None = None
    ) -> None:
        """path: the future directory that an earlier run left in ``target``."""
        self.log = log
        self._source = source
        self.target = target
        self.path = path or os.path.join(target.path, future_dir_name(*log.key))
        self.end_offset = log.log_start_offset
        # Whether the future directory is complete but for the log's newest bytes.
        self.is_prepared = False
        self.waits_for_room = False
        self._is_made = False
        self._copies: dict[int, _Copy] = {}
        self._seen = (log.cuts, log.exchanges)
        self._recovery_point = 0
        # Small files of the future directory that this run has synced.
        self._synced: set[str] = set()
        self._switch_bytes = SWITCH_BYTES
        self._passes = 0

    @property
    def size(self) -> int:
        """Bytes of log data that are in the future directory."""
        return sum(copy.done for copy in self._copies.values())

    # ---- copying ----

    def next_job(self, bytes_max: int) -> Callable[[], int] | None:
        """What is to be done next, in any thread; it returns the bytes it has read.

        None when there is nothing but the rest that ``switch`` may copy. The job raises OSError for
        the target and SourceError.
        """
        if not self._is_made:
            return self._make
        gone = self._follow_source()
        if gone:
            return lambda: self._drop(gone)
        segments = self.log.segments
        for at, segment in enumerate(segments):
            copy = self._copies.setdefault(segment.base_offset, _Copy(segment))
            is_sealed = at + 1 < len(segments)
            left = segment.size - copy.done
            if is_sealed and not copy.is_whole:
                return self._copy_job(copy, segment.size, bytes_max, is_sealed)
            if not is_sealed and left > self._switch_bytes:
                self._passes += left <= bytes_max
                if self._passes > 8:
                    self._passes = 0
                    self._switch_bytes = min(self._switch_bytes * 2, SWITCH_BYTES_MAX)
                return self._copy_job(copy, segment.size, bytes_max, is_sealed)
        return None if self.is_prepared else self._prepare

    def _follow_source(self) -> list[int]:
        """Take note of what has become of the source's segments; those that are gone."""
        log = self.log
        segments = {segment.base_offset: segment for segment in log.segments}
        rewritten = self._seen != (log.cuts, log.exchanges)
        self._seen = (log.cuts, log.exchanges)
        gone = [base for base in self._copies if base not in segments]
        for base in gone:
            del self._copies[base]
        for base, copy in self._copies.items():
            segment = segments[base]
            if segment is not copy.segment and rewritten:
                self._copies[base] = _Copy(segment)
                self.is_prepared = False
            copy.segment = segment
        return gone

    def _make(self) -> int:
        known = {segment.base_offset for segment in self.log.segments}
        if not os.path.exists(os.path.join(self.path, PARTITION_METADATA)):
            write_partition_metadata(self.path, self.log.topic_id)
        self._drop(
            base
            for name in os.listdir(self.path)
            if (base := base_offset_of(name)) is not None and base not in known
        )
        sync_directory(self.target.path)
        self._is_made = True
        return 0

    def _drop(self, bases: object) -> int:
        for base in bases:  # type: ignore[attr-defined]
            for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX):
                remove_if_present(os.path.join(self.path, segment_name(base, suffix)))
        return 0

    def _copy_job(
        self, copy: _Copy, size: int, bytes_max: int, is_sealed: bool
    ) -> Callable[[], int]:
        segment, end_offset = copy.segment, copy.segment.next_offset
        start, end = copy.done, min(size, copy.done + bytes_max)
        try:
            # Opened now: a moment later another file may have the name.
            source = segment.open_log()
        except OSError as error:
            raise SourceError(str(error)) from error

        def job() -> int:
            try:
                done = self._copy_bytes(copy, source, start, end)
                self._check(copy, done, size)
                if done == size:
                    if is_sealed:
                        self._copy_sealed_files(segment)
                        copy.is_whole = True
                    self.end_offset = max(self.end_offset, end_offset)
                copy.done = done
                return done - start
            finally:
                os.close(source)

        return job

    def _copy_bytes(self, copy: _Copy, source: int, start: int, end: int) -> int:
        path = os.path.join(self.path, segment_name(copy.segment.base_offset, LOG_SUFFIX))
        target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            at = start
            while at < end:
                block = _read_block(source, min(BLOCK_BYTES, end - at), at)
                if not (copy.compare and os.pread(target, len(block), at) == block):
                    if copy.compare:
                        # What an earlier run left ends here, or is something else from here on.
                        copy.compare = False
                        os.ftruncate(target, at)
                    _write_block(target, block, at)
                at += len(block)
            _sync(os.fdatasync, target)
            return at
        finally:
            os.close(target)

    def _check(self, copy: _Copy, done: int, size: int) -> None:
        """Nothing that is damaged is copied without a word.

        Slice by slice, for the walk keeps this process from anything else; a slice may end inside a
        batch, the segment may not.
        """
        segment = copy.segment
        path = os.path.join(self.path, segment_name(segment.base_offset, LOG_SUFFIX))
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if done == size < os.fstat(fd).st_size:
                os.ftruncate(fd, size)
                _sync(os.fdatasync, fd)
            scan = scan_segment(fd, segment.base_offset, done, position=copy.checked)
        finally:
            os.close(fd)
        copy.checked = scan.end_position
        if done == size and (scan.stop != END or scan.end_position != size):
            raise SourceError(
                f"{segment.path(LOG_SUFFIX)}: {scan.problem or 'zeros'} at position"
                f" {scan.end_position}"
            )

    def _copy_sealed_files(self, segment: Segment) -> None:
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX):
            self._copy_file(segment_name(segment.base_offset, suffix))

    def _copy_file(self, name: str) -> None:
        """Copy a small file whole; it goes when there is none."""
        try:
            data = read_if_present(os.path.join(self.log.path, name))
        except OSError as error:
            raise SourceError(str(error)) from error
        path = os.path.join(self.path, name)
        if data is None:
            remove_if_present(path)
            return
        if data != read_if_present(path):
            replace_file(path, data, sync=False)
        elif name in self._synced:
            return
        # Also what an earlier run has written: that may have been killed before it was synced.
        _sync(sync_file, path)
        self._synced.add(name)

    def _prepare(self) -> int:
        """Write what recovery needs once the future directory has the partition's name."""
        log, target = self.log, self.target
        self._copy_file(segment_name(log.segments[-1].base_offset, SNAPSHOT_SUFFIX))
        for name in _PARTITION_FILES:
            self._copy_file(name)
        carry_cleaner_line(self._source, target, log.key)
        marker = f"takes the place of {log.path}, which may be removed\n"
        replace_file(os.path.join(self.path, MOVED_MARKER), marker.encode())
        self._recovery_point = log.segments[-1].base_offset
        target.write_lines(log.key, self._lines())
        self.is_prepared = True
        return 0

    def _lines(self) -> dict[str, int]:
        return {
            LOG_START_CHECKPOINT: self.log.log_start_offset,
            RECOVERY_POINT_CHECKPOINT: self._recovery_point,
        }

    def discard(self) -> None:
        """Remove the future directory and what was written of it. Touches files only. Raises
        OSError.
        """
        if os.path.isdir(self.path):
            remove_tree(self.path)
        self.target.forget(self.log.key)

    # ---- the switch ----

    def switch(self) -> None:
        """Copy the rest and have the log go on in the target. Owner's loop only; blocks for a sync.

        Nothing may be left to ``next_job``. On OSError, which is the target's, and SourceError the
        log is where it was. The old directory is the caller's to remove.
        """
        log = self.log
        active = log.segments[-1]
        copy = self._copies[active.base_offset]
        try:
            source = active.open_log()
        except OSError as error:
            raise SourceError(str(error)) from error
        try:
            copy.done = self._copy_bytes(copy, source, copy.done, active.size)
        finally:
            os.close(source)
        self._check(copy, active.size, active.size)
        for suffix, data in zip(
            (INDEX_SUFFIX, TIME_INDEX_SUFFIX), log.active_index_entries(), strict=True
        ):
            path = os.path.join(self.path, segment_name(active.base_offset, suffix))
            replace_file(path, data, sync=False)
        for suffix in (TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX):
            self._copy_file(segment_name(active.base_offset, suffix))
        for name in _PARTITION_FILES:
            self._copy_file(name)
        self._renew_lines()
        _sync(sync_directory, self.path)
        final = self.target.partition_path(log.key)
        os.rename(self.path, final)
        try:
            _sync(sync_directory, self.target.path)
            log.relocate(self.target.path, self.target.index, final)
        except OSError:
            with suppress(OSError):
                os.rename(final, self.path)
            raise

    def _renew_lines(self) -> None:
        """The log start may have moved, and a move of the log away from the target, if there was
        one, may only now have dropped its lines there.
        """
        key, target = self.log.key, self.target
        lines = {name: at for name, at in self._lines().items() if target.line(name, key) != at}
        if lines:
            target.write_lines(key, lines)


def carry_cleaner_line(source: LogDir, target: LogDir, key: tuple[str, int]) -> None:
    """Compaction goes on where it was, and recovery knows of its gaps. Raises OSError for the
    target, SourceError.
    """
    try:
        offset = source.line(CLEANER_CHECKPOINT, key)
    except OSError as error:
        raise SourceError(str(error)) from error
    if offset is not None:
        target.write_lines(key, {CLEANER_CHECKPOINT: offset})


def future_name_is_too_long(topic: str, partition: int) -> bool:
    """Whether a file system has no room for the name of the future directory."""
    return len(partition_dir_name(topic, partition)) + len(".") + 32 + len("-future") > 255


def _sync(sync: Callable[[Any], None], what: Any) -> None:
    """A sync that found no room has failed like any other: the next one could lie."""
    try:
        sync(what)
    except OSError as error:
        raise OSError(errno.EIO, f"not synced: {error}") from error


def _read_block(fd: int, size: int, position: int) -> bytes:
    try:
        block = os.pread(fd, size, position)
    except OSError as error:
        raise SourceError(str(error)) from error
    if not block:
        raise SourceError(f"the segment ends at position {position}")
    return block


def _write_block(fd: int, block: bytes, position: int) -> None:
    done = 0
    while done < len(block):
        wrote = os.pwrite(fd, memoryview(block)[done:], position + done)
        if wrote == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += wrote
