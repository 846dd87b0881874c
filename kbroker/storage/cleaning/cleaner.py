"""Compacts one log: reads sealed segments and writes ``.cleaned`` ones, in a thread of the cleaner.

Nothing here changes a file of the log. The caller asks the owner of the log to swap each group in
(``segment_swap``) before the next one is written, so the disk only needs room for one more segment.
What was written is read back and checked before it is offered; that also makes its indexes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from kbroker._ext.base.offset_map import ENTRY_BYTES as MAP_ENTRY_BYTES
from kbroker._ext.base.offset_map import OffsetMap
from kbroker._ext.log.batch_cleaner import BatchCleaner
from kbroker._ext.log.log_scan import END, scan_segment
from kbroker._ext.log.offset_index import OffsetIndex, TimeIndex
from kbroker.descriptors import open_file
from kbroker.storage.cleaning.cleaned_transactions import CleanedTransactions
from kbroker.storage.cleaning.cleaner_policy import CleanableSegment
from kbroker.storage.files import (
    list_directory,
    read_if_present,
    remove_if_present,
    sync_directory,
    sync_file,
)
from kbroker.storage.formats import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_name,
)
from kbroker.storage.segments.txn_index import (
    ENTRY_BYTES,
    AbortedTransaction,
    parse_entries,
    write_anew,
)
from kbroker.types import Offset

# BOUND: read at a time at the least and, except for one larger batch, at most.
CHUNK_BYTES_MIN = 4096
# Output is written in pieces of about this size.
WRITE_BYTES = 1 << 20
# A position in a segment has 31 bits.
SEGMENT_BYTES_MAX = (1 << 31) - 1

NS_PER_MS = 1_000_000

# Codecs have state and must not be shared by threads.
codec_lock = threading.Lock()


class CleaningStopped(Exception):
    """The cleaner must stop, or the partition must no longer be cleaned."""


class UncleanableError(Exception):
    """The log cannot be compacted in this state; the text is for operators."""


class CleaningLimits(NamedTuple):
    """Settings of one pass. Bytes, for one thread."""

    map_bytes: int
    map_load_factor: float
    read_bytes: int
    decompressed_bytes_max: int
    delete_retention_ms: int
    index_bytes_max: int
    index_interval_bytes: int


class CleaningStats:
    """The result of a pass, for the log and the metrics. Times in seconds."""

    __slots__ = (
        "bytes_read",
        "bytes_written",
        "index_bytes",
        "index_s",
        "keyless",
        "map_utilization",
        "messages_kept",
        "messages_read",
        "started",
        "total_s",
    )

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.bytes_read = self.bytes_written = self.index_bytes = 0
        self.messages_read = self.messages_kept = self.keyless = 0
        self.index_s = self.total_s = self.map_utilization = 0.0


class CleanedGroup(NamedTuple):
    """A group that was written as ``.cleaned`` files under the first segment's name.

    changed: False if the files say just what the segment says already, and were removed.
    """

    base_offset: Offset
    size: int
    largest_timestamp: int
    changed: bool


class LogCleaning:
    """One pass over one log: ``build_map`` once, then ``clean_group`` for each group in order."""

    def __init__(
        self,
        directory: str,
        limits: CleaningLimits,
        aborted: Sequence[AbortedTransaction],
        *,
        now_ms: int,
        on_bytes: Callable[[int], None],
        lock: AbstractContextManager[Any] = codec_lock,
    ) -> None:
        """aborted: ``read_aborted`` of the whole range. on_bytes: called with the size of each
        piece read or written; throttles the thread, and raises CleaningStopped to end the pass.
        """
        self._directory = directory
        self._limits = limits
        self._aborted = aborted
        self._now_ms = now_ms
        self._on_bytes = on_bytes
        self._lock = lock
        self.stats = CleaningStats()
        self._transactions = CleanedTransactions(aborted)
        self._buffer = bytearray(max(limits.read_bytes, CHUNK_BYTES_MIN))
        self._clean_end_ns = -1

    def _begin(self, keys_max: int) -> None:
        limits = self._limits
        try:
            self._map = OffsetMap(limits.map_bytes, limits.map_load_factor, keys_max)
        except ValueError as error:
            raise UncleanableError(str(error)) from error
        self._cleaner = self._make_cleaner(self._transactions)

    def _make_cleaner(self, transactions: CleanedTransactions) -> BatchCleaner:
        return BatchCleaner(
            self._map,
            transactions,
            self._lock,
            now_ms=self._now_ms,
            delete_retention_ms=self._limits.delete_retention_ms,
            decompressed_max=self._limits.decompressed_bytes_max,
        )

    # ---- the map ----

    def build_map(self, segments: Sequence[CleanableSegment], first_dirty: Offset, end: int) -> int:
        """Collect the keys from ``first_dirty`` on; the offset up to which all are in the map.

        segments: of the log, up to ``end`` at the least. Raises UncleanableError,
        CleaningStopped, OSError.
        """
        started = time.monotonic()
        ends = (segment.next_offset for segment in segments)
        self._begin(max(ends, default=first_dirty) - first_dirty)
        clean = [segment for segment in segments if segment.base_offset < first_dirty]
        self._clean_end_ns = self._modified_ns(clean[-1]) if clean else -1
        indexer = self._make_cleaner(CleanedTransactions(self._aborted))
        for segment in segments:
            if segment.next_offset <= first_dirty or segment.base_offset >= end:
                continue

            def take(data: memoryview) -> int:
                done = indexer.index_batches(data, first_dirty)
                self.stats.index_bytes += done
                return -1 if indexer.full else done

            if not self._walk(segment, indexer, take):
                break
            indexer.map_to(segment.next_offset - 1)
        if self._map.latest_offset < first_dirty:
            raise UncleanableError(
                f"the keys of the batch at offset {first_dirty} do not fit into the offset map of "
                f"{self._limits.map_bytes} bytes; raise log.cleaner.dedupe.buffer.size"
            )
        # The configured size; the map may be created for fewer keys.
        room = self._limits.map_bytes // MAP_ENTRY_BYTES
        self.stats.map_utilization = self._map.count / room
        self.stats.index_s = time.monotonic() - started
        return self._map.latest_offset + 1

    def _walk(
        self, segment: CleanableSegment, cleaner: BatchCleaner, take: Callable[[memoryview], int]
    ) -> bool:
        """Pass the segment on in pieces; False if ``take`` returned -1."""
        path = os.path.join(self._directory, segment_name(segment.base_offset, LOG_SUFFIX))
        fd = open_file(path)
        position = 0
        try:
            while position < segment.size:
                want = min(len(self._buffer), segment.size - position)
                view = memoryview(self._buffer)[:want]
                got = os.preadv(fd, [view], position)
                self._on_bytes(got)
                try:
                    done = take(view[:got])
                except ValueError as error:
                    raise UncleanableError(f"{path}: {error}") from error
                if done < 0:
                    return False
                if done == 0:
                    self._grow(path, position, min(cleaner.needed, 1 << 32), segment.size, got)
                position += done
        finally:
            os.close(fd)
        return True

    def _grow(self, path: str, position: int, needed: int, size: int, got: int) -> None:
        # BOUND: a batch is no larger than the rest of its segment.
        if needed > size - position or needed <= got:
            raise UncleanableError(f"{path}: no complete batch at position {position}")
        if needed > len(self._buffer):
            self._buffer = bytearray(needed)

    # ---- groups ----

    def clean_group(
        self, group: Sequence[CleanableSegment], producers: dict[int, tuple[int, int]]
    ) -> CleanedGroup:
        """Write the retained records of the group as ``.cleaned`` files, synced.

        producers: of each active one (last data offset or -1, epoch). Raises UncleanableError,
        CleaningStopped, OSError; the files are then removed.
        """
        base = group[0].base_offset
        try:
            return self._write_group(group, producers)
        except BaseException:
            remove_cleaned(self._directory, base)
            raise

    def _write_group(
        self, group: Sequence[CleanableSegment], producers: dict[int, tuple[int, int]]
    ) -> CleanedGroup:
        base = group[0].base_offset
        path = self._cleaned_path(base, LOG_SUFFIX)
        cleaner = self._cleaner
        cleaner.producers = producers
        cleaner.begin_output()
        self._transactions.kept_aborts.clear()
        before = (cleaner.messages_read, cleaner.messages_kept, cleaner.keyless)
        size = 0
        fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:

            def take(data: memoryview) -> int:
                nonlocal size
                done = cleaner.clean_batches(data)
                self.stats.bytes_read += done
                if cleaner.output_bytes >= WRITE_BYTES:
                    size += self._write(fd, size)
                return done

            for segment in group:
                cleaner.drop_old_tombstones = self._are_old_tombstones_due(segment)
                self._walk(segment, cleaner, take)
            size += self._write(fd, size)
            newest = self._make_indexes(fd, base, size)
            os.fdatasync(fd)
        finally:
            os.close(fd)
        self.stats.messages_read += cleaner.messages_read - before[0]
        self.stats.messages_kept += cleaner.messages_kept - before[1]
        self.stats.keyless += cleaner.keyless - before[2]
        changed = cleaner.changed or len(group) > 1
        if changed:
            self._finish(group, newest)
        else:
            remove_cleaned(self._directory, base)
        return CleanedGroup(base, size, newest, changed)

    def _are_old_tombstones_due(self, segment: CleanableSegment) -> bool:
        """Whether tombstones of formats 0 and 1, which have no delete horizon, may be removed.

        COMPAT: as in Kafka, once the last clean segment is younger by ``delete.retention.ms``. The
        wall clock has to agree: a file's time may be that of a clock that was ahead.
        """
        latest_ns = min(self._clean_end_ns, self._now_ms * NS_PER_MS)
        return (
            self._modified_ns(segment) <= latest_ns - self._limits.delete_retention_ms * NS_PER_MS
        )

    def _modified_ns(self, segment: CleanableSegment) -> int:
        name = segment_name(segment.base_offset, LOG_SUFFIX)
        return os.stat(os.path.join(self._directory, name)).st_mtime_ns

    def _write(self, fd: int, position: int) -> int:
        if position + self._cleaner.output_bytes > SEGMENT_BYTES_MAX:
            raise UncleanableError(f"a cleaned segment would exceed {SEGMENT_BYTES_MAX} bytes")
        done = self._cleaner.write_output(fd, position)
        self.stats.bytes_written += done
        self._on_bytes(done)
        return done

    def _make_indexes(self, fd: int, base: int, size: int) -> int:
        """Read back and verify everything that was written; returns its largest timestamp."""
        paths = [self._cleaned_path(base, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
        for path in paths:
            remove_if_present(path)
        offsets = OffsetIndex(paths[0], base, self._limits.index_bytes_max)
        times = TimeIndex(paths[1], base, self._limits.index_bytes_max)
        scan = scan_segment(
            fd,
            base,
            size,
            offset_index=offsets,
            time_index=times,
            index_interval_bytes=self._limits.index_interval_bytes,
        )
        if scan.stop != END or scan.end_position != size:
            raise UncleanableError(
                f"{self._cleaned_path(base, LOG_SUFFIX)} is not what was written: {scan.problem}"
            )
        if scan.max_timestamp >= 0:
            times.append_entry(scan.max_timestamp, scan.max_timestamp_offset, final=True)
        offsets.seal()
        times.seal()
        return scan.max_timestamp

    def _finish(self, group: Sequence[CleanableSegment], newest: int) -> None:
        """Give the files the modification time of the originals, and sync them."""
        base = group[0].base_offset
        write_anew(self._cleaned_path(base, TXN_INDEX_SUFFIX), self._transactions.kept_aborts)
        modified_ns = self._modified_ns(group[-1])
        os.utime(self._cleaned_path(base, LOG_SUFFIX), ns=(modified_ns, modified_ns))
        for suffix in SEGMENT_SUFFIXES:
            sync_file(self._cleaned_path(base, suffix))
        sync_directory(self._directory)

    def _cleaned_path(self, base: int, suffix: str) -> str:
        return os.path.join(self._directory, segment_name(base, suffix) + CLEANED_SUFFIX)

    def finish(self) -> CleaningStats:
        """End the pass."""
        self.stats.total_s = time.monotonic() - self.stats.started
        return self.stats


def remove_cleaned(directory: str, base: int | None = None) -> None:
    """Remove the ``.cleaned`` files of one segment, or all those of an earlier cleaner."""
    if base is not None:
        names = [segment_name(base, suffix) + CLEANED_SUFFIX for suffix in SEGMENT_SUFFIXES]
    else:
        names = [name for name in list_directory(directory) if name.endswith(CLEANED_SUFFIX)]
    for name in names:
        remove_if_present(os.path.join(directory, name))


def read_aborted(directory: str, bases: Sequence[int], end: int) -> list[AbortedTransaction]:
    """Aborted transactions with a record below ``end``, from the ``.txnindex`` files.

    bases: of every segment of the log, in order, the active one too, to whose index the owner may
    be adding. Raises CorruptTxnIndexError, OSError.
    """
    aborted: list[AbortedTransaction] = []
    for base in bases:
        path = os.path.join(directory, segment_name(base, TXN_INDEX_SUFFIX))
        data = read_if_present(path) or b""
        # An entry that is being written is not needed: its transaction ended above `end`.
        for entry in parse_entries(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES], path, base):
            if entry.first_offset < end:
                aborted.append(entry)
            if entry.last_stable_offset >= end:
                return aborted
    return aborted
