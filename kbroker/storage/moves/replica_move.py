"""Moves a replica into another log directory (docs/formats/log-directory.md, "Moves").

The bytes are copied, a slice at a time, into ``<topic>-<partition>.<hex>-future`` of the target by
a thread that only touches files, while the owner of the log serves the partition. When little is
left to copy, ``switch`` copies the rest, syncs and renames within one turn of the owner's loop.

What the thread reads does not change: sealed segments, and the part of the active segment that was
appended before. Segments that were removed, exchanged or cut meanwhile are dropped or compared
again. INVARIANT: the future directory holds the oldest segments without a gap, and all of it is
synced before it gets the partition's name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from kbroker.errors import ShortageError
from kbroker.storage.files import (
    list_directory,
    remove_if_present,
    remove_tree,
    replace_file,
    sync_directory,
)
from kbroker.storage.formats import (
    CLEANER_CHECKPOINT,
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    MOVED_MARKER,
    NAME_BYTES_MAX,
    RECOVERY_POINT_CHECKPOINT,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_CHECKPOINT,
    TXN_INDEX_SUFFIX,
    base_offset_of,
    future_dir_name,
    segment_name,
)
from kbroker.storage.moves.segment_copy import (
    CopyPart,
    FutureFiles,
    SegmentCopy,
    SourceError,
    copy_parts,
    syncing,
)
from kbroker.types import FIRST_OFFSET, Offset

if TYPE_CHECKING:
    from kbroker.storage.dirs.log_dir import LocalLogDir
    from kbroker.storage.log.partition_log import PartitionLog

# BOUND: data copied and synced at a time, in bytes and in segments. The thread completes it well
# within the time that a stop may take.
SLICE_BYTES = 8 << 20
SLICE_SEGMENTS = 64
# BOUND: data left to copy in the turn of the switch. While a busy producer stays ahead it grows,
# after a number of slices, up to a pause of about a tenth of a second for that producer.
PASSES = 4
SWITCH_BYTES = 256 << 10
SWITCH_BYTES_MAX = 32 << 20
# A sealed segment costs as much as this many extra bytes: its indexes are copied with it.
SEALED_BYTES = 1 << 20
# Files besides the segments that the copy needs.
_PARTITION_FILES = (LEADER_EPOCH_CHECKPOINT, TXN_INDEX_CHECKPOINT)


class ReplicaMove:
    """Used by the owner of ``log``; the result of ``next_job`` may run in another thread, and gets
    what it needs from the log's segments.
    """

    def __init__(
        self, log: PartitionLog, source: LocalLogDir, target: LocalLogDir, path: str | None = None
    ) -> None:
        """path: the future directory that an earlier run left in ``target``."""
        self.log = log
        self._source = source
        self.target = target
        self.path = path or os.path.join(target.path, future_dir_name(*log.key))
        self._files = FutureFiles(self.path, target.sync_everything)
        self.end_offset = log.log_start_offset
        # Whether the future directory is complete except for the log's newest bytes.
        self.is_prepared = False
        self.waits_for_room = False
        # No flush of the log starts until then: only a running one delays the switch.
        self.holds_flushes_until_ms = 0
        self._is_made = False
        self._copies: dict[Offset, SegmentCopy] = {}
        self._seen = (log.cuts, log.exchanges)
        self._recovery_point = FIRST_OFFSET
        self._switch_bytes = SWITCH_BYTES
        self._passes = 0

    @property
    def size(self) -> int:
        """Bytes of log data that are in the future directory."""
        return sum(copy.done for copy in self._copies.values())

    # ---- copying ----

    def next_job(self, bytes_max: int) -> Callable[[], int] | None:
        """The next job, for any thread; it returns the number of bytes it has read.

        None if there is nothing but the rest that ``switch`` may copy. The job raises OSError for
        the target and SourceError.
        """
        if not self._is_made:
            known = {segment.base_offset for segment in self.log.segments}
            return lambda: self._make(known)
        gone = self._follow_source()
        if gone:
            return lambda: self._drop(gone)
        missing = self._missing()
        left = sum(copy.segment.size - copy.done for copy, _ in missing)
        if left + SEALED_BYTES * (len(missing) - 1) <= self._switch_bytes:
            if self.is_prepared:
                return None
            active = self.log.segments.active.base_offset
            return lambda: self._prepare(active)
        if left <= bytes_max:
            self._passes += 1
            if self._passes > PASSES:
                self._passes = 0
                self._switch_bytes = min(self._switch_bytes * 4, SWITCH_BYTES_MAX)
        return self._copy_job(missing, bytes_max)

    def _missing(self) -> list[tuple[SegmentCopy, bool]]:
        """Sealed segments that are not copied yet, and the active one, which is always last;
        whether it is sealed.
        """
        segments = self.log.segments
        missing = []
        for at, segment in enumerate(segments):
            copy = self._copies.get(segment.base_offset)
            if copy is None:
                copy = self._copies[segment.base_offset] = SegmentCopy(segment)
            copy.segment = segment
            is_sealed = at + 1 < len(segments)
            if not (is_sealed and copy.is_whole):
                missing.append((copy, is_sealed))
        return missing

    def _copy_job(
        self, missing: list[tuple[SegmentCopy, bool]], bytes_max: int
    ) -> Callable[[], int]:
        parts: list[CopyPart] = []
        try:
            for copy, is_sealed in missing:
                size = copy.segment.size
                end = min(size, copy.done + bytes_max)
                bytes_max -= end - copy.done
                parts.append(CopyPart(copy, end, is_sealed))
                if end < size or bytes_max == 0 or len(parts) == SLICE_SEGMENTS:
                    break
        except (ShortageError, SourceError):
            for part in parts:
                part.close()
            raise

        def job() -> int:
            copied = copy_parts(self._files, parts)
            if parts[-1].ends_segment:
                self.end_offset = max(self.end_offset, parts[-1].end_offset)
            return copied

        return job

    def _follow_source(self) -> list[Offset]:
        """Notice changes of the source's segments; returns those that were removed."""
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
                self._copies[base] = SegmentCopy(segment)
                self.is_prepared = False
        return gone

    def _make(self, known: Collection[int]) -> int:
        """known: the base offsets of the log's segments."""
        self.target.ownership.ensure(self.path, self.log.owner)
        self._drop(
            base
            for name in list_directory(self.path)
            if (base := base_offset_of(name)) is not None and base not in known
        )
        sync_directory(self.target.path)
        self._is_made = True
        return 0

    def _drop(self, bases: Iterable[int]) -> int:
        for base in bases:
            for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX):
                remove_if_present(os.path.join(self.path, segment_name(base, suffix)))
        return 0

    def _prepare(self, active: Offset) -> int:
        """Write what recovery needs once the future directory has the partition's name.

        active: the base offset of the segment that was active when the job was made.
        """
        log, target = self.log, self.target
        self._copy_small_files(active, SNAPSHOT_SUFFIX)
        self._files.sync()
        carry_cleaner_line(self._source, target, log.key)
        marker = f"takes the place of {log.path}, which may be removed\n"
        replace_file(os.path.join(self.path, MOVED_MARKER), marker.encode())
        self._recovery_point = active
        target.write_lines(log.key, self._lines())
        self.is_prepared = True
        return 0

    def _copy_small_files(self, base_offset: Offset, *suffixes: str) -> None:
        """The files of the segment, and those of the partition."""
        for name in (
            *(segment_name(base_offset, suffix) for suffix in suffixes),
            *_PARTITION_FILES,
        ):
            self._files.copy(name, self.log.path)

    def _lines(self) -> dict[str, Offset]:
        return {
            LOG_START_CHECKPOINT: self.log.log_start_offset,
            RECOVERY_POINT_CHECKPOINT: self._recovery_point,
        }

    def discard(self) -> None:
        """Remove the future directory and its files. Touches files only. Raises OSError."""
        if os.path.isdir(self.path):
            remove_tree(self.path)
        self.target.forget(self.log.key)

    # ---- the switch ----

    def switch(self) -> None:
        """Copy the rest and switch the log to the target. Owner's loop only; blocks for a sync.

        Nothing may be left to ``next_job``. On OSError, which is the target's, and SourceError the
        log is where it was. The old directory is the caller's to remove.
        """
        log = self.log
        try:
            log.epochs.write_if_behind()
        except OSError as error:
            raise SourceError(str(error)) from error
        active = log.segments.active.base_offset
        for suffix, data in zip(
            (INDEX_SUFFIX, TIME_INDEX_SUFFIX), log.segments.files.index_entries(), strict=True
        ):
            path = os.path.join(self.path, segment_name(active, suffix))
            replace_file(path, data, sync=False)
        self._copy_small_files(active, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
        # At most SWITCH_BYTES_MAX / SEALED_BYTES segments, so these are all.
        self._copy_job(self._missing(), SWITCH_BYTES_MAX)()
        self._renew_lines()
        with syncing():
            sync_directory(self.path)
        final = self.target.partition_path(log.key)
        os.rename(self.path, final)
        try:
            with syncing():
                sync_directory(self.target.path)
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


def carry_cleaner_line(source: LocalLogDir, target: LocalLogDir, key: tuple[str, int]) -> None:
    """Carry the cleaner checkpoint over, so that compaction continues and recovery expects gaps.
    Raises OSError for the target, SourceError.
    """
    try:
        offset = source.line(CLEANER_CHECKPOINT, key)
    except OSError as error:
        raise SourceError(str(error)) from error
    if offset is not None:
        target.write_lines(key, {CLEANER_CHECKPOINT: offset})


def future_name_is_too_long(topic: str, partition: int) -> bool:
    """Whether a file system has no room for the name of the future directory."""
    return len(future_dir_name(topic, partition)) > NAME_BYTES_MAX
