"""A sealed segment: file names, size, newest timestamp, and its indexes while they are in use.

Used by the io worker that owns the log; network processes read the files by themselves. Nothing of
a sealed segment is held open: descriptors and maps are opened for a lookup and closed after it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TypeVar

from kbroker._ext.log.log_scan import Scan, scan_segment
from kbroker._ext.log.offset_index import CorruptIndexError, OffsetIndex, TimeIndex
from kbroker._ext.log.producer_state import ProducerState
from kbroker.descriptors import open_file
from kbroker.errors import is_full_disk
from kbroker.storage.damage import DamagedLogError
from kbroker.storage.files import remove_if_present
from kbroker.storage.formats import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    NO_TIMESTAMP,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_name,
)
from kbroker.storage.segments import index_lookup
from kbroker.types import Offset

logger = logging.getLogger(__name__)

# Larger than any index written by a broker: reading an old file must not depend on the current
# segment.index.bytes.
INDEX_BYTES_ANY = (1 << 31) - 8
T = TypeVar("T")


class Segment:
    """One sealed segment. Made by recovery, and by ``LogSegments`` when a segment is sealed."""

    __slots__ = ("_max_timestamp", "base_offset", "directory", "next_offset", "size")

    def __init__(
        self,
        directory: str,
        base_offset: Offset,
        size: int,
        next_offset: Offset,
        max_timestamp: int | None = None,
    ) -> None:
        """next_offset: the base offset of the segment after it. max_timestamp: if None,
        it is read when needed.
        """
        self.directory = directory
        self.base_offset = base_offset
        self.size = size
        self.next_offset = next_offset
        self._max_timestamp = max_timestamp

    def path(self, suffix: str) -> str:
        return os.path.join(self.directory, segment_name(self.base_offset, suffix))

    def in_directory(self, directory: str) -> Segment:
        """The same segment in a copy of the partition's directory."""
        return Segment(
            directory, self.base_offset, self.size, self.next_offset, self._max_timestamp
        )

    def largest_timestamp(self) -> int:
        """The largest timestamp of its records, or the file's modification time if they have none.
        Raises OSError.

        Retention deletes by it, so the index entry is compared with the batch it names, and with
        one near the end: the index may be cut short, or gone. Of a damaged segment it is the file's
        time, which deletes late.
        """

        def find(fd: int, offsets: OffsetIndex, times: TimeIndex) -> int:
            return index_lookup.newest_timestamp(fd, offsets, times, self.size)

        if self._max_timestamp is None:
            try:
                largest = self._look_up(find)
            except DamagedLogError as error:
                logger.error("%s; using the modification time of its file", error)
                largest = NO_TIMESTAMP
            if largest == NO_TIMESTAMP:
                largest = int(os.stat(self.path(LOG_SUFFIX)).st_mtime * 1000)
            self._max_timestamp = largest
        return self._max_timestamp

    def modified_ms(self) -> int:
        """When its log file was last written."""
        return os.stat(self.path(LOG_SUFFIX)).st_mtime_ns // 1_000_000

    def start_position(self, offset: int) -> int:
        """A position at or before the batch that ends at or after ``offset``. Raises OSError."""

        def find(fd: int, offsets: OffsetIndex, _times: TimeIndex) -> int:
            return index_lookup.start_position(fd, offsets, offset, self.size)

        return self._look_up(find)

    def border_before(self, position: int) -> int:
        """The start of the batch at or before ``position``. Raises OSError."""

        def find(fd: int, offsets: OffsetIndex, _times: TimeIndex) -> int:
            offset = index_lookup.offset_before(offsets, position)
            return index_lookup.start_position(fd, offsets, offset, self.size)

        return self._look_up(find)

    def time_floor(self, timestamp: int) -> tuple[int, int]:
        """(timestamp, offset): all records before that offset are at most that new.

        (-1, base offset) when the index knows nothing at or below ``timestamp``. Raises OSError.
        """

        def find(fd: int, offsets: OffsetIndex, times: TimeIndex) -> tuple[int, int]:
            return index_lookup.time_floor(fd, offsets, times, timestamp, self.size)

        return self._look_up(find)

    def _look_up(self, find: Callable[[int, OffsetIndex, TimeIndex], T]) -> T:
        """Call ``find`` with the open files; once more with rebuilt indexes if they were wrong.

        Raises DamagedLogError when no index fits the log file: it is not of this segment.
        """
        fd = self.open_log()
        try:
            for attempt in range(2):
                try:
                    offsets, times = self._open_verified()
                    try:
                        return find(fd, offsets, times)
                    finally:
                        offsets.close()
                        times.close()
                except CorruptIndexError as error:
                    if attempt:
                        path = self.path(LOG_SUFFIX)
                        raise DamagedLogError(
                            f"{path}: its indexes do not match ({error})"
                        ) from error
                    logger.warning("%s; rebuilding the indexes", error)
                    self.rebuild_indexes()
            raise AssertionError("unreachable")
        finally:
            os.close(fd)

    def open_log(self) -> int:
        """A descriptor for reading; the caller closes it."""
        return open_file(self.path(LOG_SUFFIX))

    def _open_verified(self) -> tuple[OffsetIndex, TimeIndex]:
        missing = not os.path.exists(self.path(INDEX_SUFFIX))
        if missing and self.size > 0:
            raise CorruptIndexError(f"{self.path(INDEX_SUFFIX)} is missing")
        offsets = OffsetIndex(self.path(INDEX_SUFFIX), self.base_offset, INDEX_BYTES_ANY)
        offsets.verify(self.size)
        times = TimeIndex(self.path(TIME_INDEX_SUFFIX), self.base_offset, INDEX_BYTES_ANY)
        times.verify(self.next_offset)
        return offsets, times

    def rebuild_indexes(
        self,
        *,
        index_bytes_max: int = INDEX_BYTES_ANY,
        index_interval_bytes: int = 4096,
        verify: bool = False,
        contiguous: bool = False,
        first_offset: Offset | None = None,
        producers: ProducerState | None = None,
        progress: Callable[[], None] | None = None,
    ) -> Scan:
        """Rebuild both indexes from the log file; ``Scan`` says up to where the log is intact.

        verify, contiguous: as for ``scan_segment``. The new files replace the old names, so a
        reader that has the old ones mapped keeps them. Raises OSError.
        """
        offsets_path, times_path = self.path(INDEX_SUFFIX), self.path(TIME_INDEX_SUFFIX)
        fd = self.open_log()
        try:
            remove_if_present(offsets_path)
            remove_if_present(times_path)
            offsets = OffsetIndex(offsets_path, self.base_offset, index_bytes_max)
            times = TimeIndex(times_path, self.base_offset, index_bytes_max)
            scan = scan_segment(
                fd,
                self.base_offset,
                self.size,
                next_offset=first_offset,
                verify=verify,
                contiguous=contiguous,
                offset_index=offsets,
                time_index=times,
                index_interval_bytes=index_interval_bytes,
                producers=producers,
                progress=progress,
            )
            if scan.max_timestamp >= 0:
                times.append_entry(scan.max_timestamp, scan.max_timestamp_offset, final=True)
        finally:
            os.close(fd)
        # Just created: no other process has them mapped.
        offsets.seal(in_place=True)
        times.seal(in_place=True)
        return scan

    def remove_files(self) -> None:
        """Remove the files of a segment that was never written to. Raises OSError."""
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            remove_if_present(self.path(suffix))

    def mark_deleted(self) -> list[str]:
        """Rename every file of the segment to ``.deleted`` and return the new names. On a disk too
        full for a rename, a file is removed at once. Raises OSError.

        Processes that have the files open can still read them.
        """
        renamed = []
        for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX):
            path = self.path(suffix)
            try:
                os.rename(path, path + DELETED_SUFFIX)
            except FileNotFoundError:
                continue
            except OSError as error:
                if not is_full_disk(error):
                    raise
                remove_if_present(path)
                continue
            renamed.append(path + DELETED_SUFFIX)
        return renamed
