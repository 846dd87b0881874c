"""The open files of a log's active segment: the log file, the two mapped indexes, and the index of
aborted transactions.
"""

from __future__ import annotations

import logging
import os

from kbroker._ext.log.log_append import LogAppender
from kbroker._ext.log.log_scan import find_batch
from kbroker._ext.log.offset_index import CorruptIndexError, OffsetIndex, TimeIndex
from kbroker.descriptors import open_file
from kbroker.storage.formats import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    NO_TIMESTAMP,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from kbroker.storage.segments import index_lookup
from kbroker.storage.segments.segment import Segment
from kbroker.storage.segments.txn_index import TxnIndexWriter
from kbroker.storage.topic_settings import LogConfig
from kbroker.types import NO_OFFSET, Offset

logger = logging.getLogger(__name__)


class ActiveSegment:
    """Opened for a ``PartitionLog``, whose appender is attached to it."""

    __slots__ = ("_preallocated", "aborted", "fd", "offsets", "times")

    def __init__(self, segment: Segment, settings: LogConfig) -> None:
        """Open the files, creating or emptying them for a segment of size 0. Raises OSError."""
        self.fd = open_file(segment.path(LOG_SUFFIX), os.O_RDWR | os.O_CREAT)
        self._preallocated = settings.preallocate and segment.size == 0
        limit = settings.segment_index_bytes
        try:
            if segment.size == 0:
                os.ftruncate(self.fd, 0)
            if self._preallocated:
                os.posix_fallocate(self.fd, 0, settings.segment_bytes)
            self.offsets = OffsetIndex(segment.path(INDEX_SUFFIX), segment.base_offset, limit)
            self.times = TimeIndex(segment.path(TIME_INDEX_SUFFIX), segment.base_offset, limit)
            if segment.size == 0:
                self.offsets.clear()
                self.times.clear()
            self.aborted = TxnIndexWriter(segment.path(TXN_INDEX_SUFFIX))
        except BaseException:
            os.close(self.fd)
            raise

    def attach(
        self,
        appender: LogAppender,
        segment: Segment,
        next_offset: Offset,
        created_ms: int,
        *,
        max_timestamp: int = -1,
        max_timestamp_offset: Offset = NO_OFFSET,
        first_timestamp: int = -1,
        bytes_since_index: int = 0,
    ) -> None:
        """Attach ``appender`` to the end of this segment."""
        appender.attach(
            fd=self.fd,
            offset_index=self.offsets,
            time_index=self.times,
            base_offset=segment.base_offset,
            position=segment.size,
            next_offset=next_offset,
            created_ms=created_ms,
            max_timestamp=max_timestamp,
            max_timestamp_offset=max_timestamp_offset,
            first_timestamp=first_timestamp,
            bytes_since_index=bytes_since_index,
            preallocated=self._preallocated,
        )

    def attach_cut(
        self, appender: LogAppender, segment: Segment, next_offset: Offset, now_ms: int
    ) -> None:
        """Like ``attach``, for a truncated segment: the appender's state is read again."""
        self.offsets.truncate_to(next_offset)
        self.times.truncate_to(next_offset)
        _entry, tail = self.offsets.lookup(next_offset)
        newest, newest_offset = self.times.last_entry
        batch = find_batch(self.fd, tail, segment.size)
        while batch is not None:
            if batch.max_timestamp > newest:
                newest, newest_offset = batch.max_timestamp, batch.last_offset
            batch = find_batch(self.fd, batch.position + batch.size, segment.size)
        first = find_batch(self.fd, 0, segment.size)
        self.attach(
            appender,
            segment,
            next_offset,
            now_ms,
            max_timestamp=newest,
            max_timestamp_offset=newest_offset,
            first_timestamp=first.max_timestamp if first is not None else -1,
            bytes_since_index=segment.size - tail,
        )

    def take_over(self, appender: LogAppender) -> None:
        """Switch ``appender`` to these files, which are a copy of its own."""
        appender.change_files(
            fd=self.fd,
            offset_index=self.offsets,
            time_index=self.times,
            preallocated=self._preallocated,
        )

    def start_position(self, offset: int, size: int) -> int:
        """Like ``Segment.start_position``; the start of the file if the index is wrong. Raises
        OSError.
        """
        try:
            return index_lookup.start_position(self.fd, self.offsets, offset, size)
        except CorruptIndexError as error:
            logger.error("%s; searching from the start of the segment until it is rolled", error)
            return 0

    def border_before(self, position: int, size: int) -> int:
        """Like ``Segment.border_before``; the start of the file if the index is wrong. Raises
        OSError.
        """
        return self.start_position(index_lookup.offset_before(self.offsets, position), size)

    def time_floor(self, timestamp: int, size: int) -> tuple[int, int]:
        """Like ``Segment.time_floor``."""
        try:
            return index_lookup.time_floor(self.fd, self.offsets, self.times, timestamp, size)
        except CorruptIndexError as error:
            logger.error("%s; searching from the start of the segment until it is rolled", error)
            return NO_TIMESTAMP, self.offsets.base_offset

    def index_entries(self) -> tuple[bytes, bytes]:
        """The entries of the offset index and of the time index, in file format."""
        return self.offsets.raw_entries(), self.times.raw_entries()

    def resize_indexes(self, bytes_max: int) -> None:
        """Follow a changed ``segment.index.bytes``."""
        self.offsets.resize_limit(bytes_max)
        self.times.resize_limit(bytes_max)

    def trim(self, appender: LogAppender, *, in_place: bool = False) -> None:
        """Write the last time index entry and trim preallocated space. Raises OSError.

        Nothing may be appended after it. in_place: no other process reads the indexes any more.
        """
        newest, newest_offset = appender.max_timestamp, appender.max_timestamp_offset
        self.offsets.seal(in_place=in_place)
        if in_place:
            self.times.seal_in_place(newest, newest_offset)
        else:
            if newest >= 0:
                self.times.append_entry(newest, newest_offset, final=True)
            self.times.seal()
        if self._preallocated:
            # Log files are read with pread and sendfile, never mapped, and never past the published
            # end.
            os.ftruncate(self.fd, appender.position)

    def give_fd(self) -> int:
        """The descriptor of the log file, which is the caller's to close from now on."""
        fd, self.fd = self.fd, -1
        return fd

    def close(self) -> None:
        """Safe to call twice; nothing is synced."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self.offsets.close()
        self.times.close()
        self.aborted.close()
