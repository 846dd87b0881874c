"""The segments of one log, the open files of the last one, and lookups of offsets.

Owned by a ``PartitionLog`` and used in its io worker. The appender knows how far the active segment
has grown; here it is asked whenever somebody looks. What a change means to readers, checkpoints and
syncs is the log's to say.

Invariants: segments are sorted, and there is always one; the last one is active and the only one
whose files are open.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import overload

from kbroker._ext.log.log_append import LogAppender
from kbroker._ext.log.log_scan import find_batch
from kbroker._ext.log.producer_state import ProducerState
from kbroker.storage.formats import LOG_SUFFIX
from kbroker.storage.repair import txn_recovery
from kbroker.storage.segments.active_segment import ActiveSegment
from kbroker.storage.segments.segment import Segment
from kbroker.storage.topic_settings import LogConfig
from kbroker.types import Offset


class LogSegments(Sequence[Segment]):
    """Oldest first, the active one with its present size; a roll replaces its object."""

    __slots__ = ("_all", "_appender", "files")

    def __init__(self, loaded: list[Segment], appender: LogAppender, settings: LogConfig) -> None:
        """Open the files of the last one, to which ``appender`` is still to be attached. Raises
        OSError.
        """
        self._all = loaded
        self._appender = appender
        self.files = ActiveSegment(loaded[-1], settings)

    def close(self) -> None:
        """Close the files of the active segment without a sync. May be called twice."""
        self.files.close()

    # ---- properties ----

    @overload
    def __getitem__(self, at: int) -> Segment: ...

    @overload
    def __getitem__(self, at: slice) -> list[Segment]: ...

    def __getitem__(self, at: int | slice) -> Segment | list[Segment]:
        return self._measured()[at]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Segment]:
        """A snapshot of the present segments, whatever happens to them later."""
        return iter(self._measured()[:])

    @property
    def active(self) -> Segment:
        return self._measured()[-1]

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._measured())

    def _measured(self) -> list[Segment]:
        active = self._all[-1]
        active.size = self._appender.position
        active.next_offset = self._appender.next_offset
        return self._all

    # ---- where something is ----

    def holding(self, offset: Offset) -> Segment:
        """The segment with the largest base offset at or below ``offset``; else the oldest one."""
        segments = self._measured()
        segment = segments[0]
        low, high = 0, len(segments)
        while low < high:
            middle = (low + high) // 2
            if segments[middle].base_offset <= offset:
                segment = segments[middle]
                low = middle + 1
            else:
                high = middle
        return segment

    def locate(self, offset: Offset) -> tuple[Segment, int]:
        """(segment, position) of the first batch that ends at or after ``offset``.

        The log's end for its end offset. Raises OSError.
        """
        if offset >= self._appender.next_offset:
            return self.active, self._appender.position
        segment = self.holding(offset)
        if offset == segment.base_offset and segment.size > 0:
            return segment, 0
        position = self.start_position(segment, offset)
        fd = segment.open_log()
        try:
            batch = find_batch(fd, position, segment.size, offset=offset)
        finally:
            os.close(fd)
        if batch is not None:
            return segment, batch.position
        # Compaction removed the end of the segment.
        return self._all[self._all.index(segment) + 1], 0

    def place_to_cut(self, offset: Offset) -> tuple[Segment, int, Offset]:
        """(segment, position, end): truncating there, on a batch boundary, leaves a log that ends
        at ``end``, at or below ``offset``. Raises OSError.
        """
        segment, position = self.locate(offset)
        fd = segment.open_log()
        try:
            batch = find_batch(fd, position, segment.size)
        finally:
            os.close(fd)
        return segment, position, offset if batch is None else min(offset, batch.base_offset)

    def last_batch(self) -> tuple[Offset, bytes]:
        """The base offset and the bytes of the last batch; the log end and none if the log is
        empty. Raises OSError.
        """
        end = self._appender.next_offset
        if end == self._all[0].base_offset:
            return end, b""
        segment, position = self.locate(Offset(end - 1))
        size = self._appender.position if segment is self.active else segment.size
        fd = segment.open_log()
        try:
            batch = find_batch(fd, position, size, offset=end - 1)
            if batch is None:
                return end, b""
            return Offset(batch.base_offset), os.pread(fd, batch.size, batch.position)
        finally:
            os.close(fd)

    def start_position(self, segment: Segment, offset: int) -> int:
        """A position in ``segment`` at or before the batch that ends at or after ``offset``."""
        if segment is self._all[-1]:
            return self.files.start_position(offset, self._appender.position)
        return segment.start_position(offset)

    def border_before(self, segment: Segment, position: int) -> int:
        """The start of the batch at or before ``position`` in ``segment``."""
        if segment is self._all[-1]:
            return self.files.border_before(position, self._appender.position)
        return segment.border_before(position)

    def time_floor(self, segment: Segment, timestamp: int) -> int:
        """An offset in ``segment``; all records before it are at most that new."""
        if segment is self._all[-1]:
            return self.files.time_floor(timestamp, self._appender.position)[1]
        return segment.time_floor(timestamp)[1]

    def newest_timestamp(self, segment: Segment) -> int:
        """The largest record timestamp in ``segment``, the file's time if records have none."""
        if segment is not self._all[-1]:
            return segment.largest_timestamp()
        newest: int = self._appender.max_timestamp
        return newest if newest >= 0 else segment.modified_ms()

    # ---- changes ----

    def go_on(
        self, following: Segment, files: ActiveSegment, now_ms: int
    ) -> tuple[Segment, ActiveSegment]:
        """Append to ``following`` with these open files; returns the sealed segment and its files,
        which the caller closes.
        """
        last, newest = self.active, self._appender.max_timestamp
        sealed = Segment(
            last.directory,
            last.base_offset,
            last.size,
            following.base_offset,
            newest if newest >= 0 else None,
        )
        files.attach(self._appender, following, following.base_offset, now_ms)
        former, self.files = self.files, files
        # INVARIANT: the appender is attached to the last one; otherwise reading it spoils its size.
        self._all[-1:] = [sealed, following]
        return sealed, former

    def take_oldest(self, count: int) -> list[Segment]:
        """Remove these segments from the log; the caller removes their files."""
        taken = self._all[:count]
        del self._all[:count]
        return taken

    def exchange(self, count: int, new: Segment) -> list[Segment]:
        """Replace ``count`` sealed segments, the first with the base offset of ``new``, by ``new``;
        returns the replaced ones.
        """
        at = next(i for i, s in enumerate(self._all) if s.base_offset == new.base_offset)
        taken = self._all[at : at + count]
        self._all[at : at + count] = [new]
        return taken

    def close_behind(self, last: Segment) -> list[Segment]:
        """Begin a truncation in ``last``; returns the segments after it, whose files the caller
        removes.

        INVARIANT: until ``cut_last`` nothing is asked of sizes and positions; no file is open.
        """
        keep = self._all.index(last) + 1
        taken = self._all[keep:]
        del self._all[keep:]
        self.files.close()
        return taken

    def cut_last(self, position: int, end: Offset, settings: LogConfig, now_ms: int) -> None:
        """Truncate the last segment at ``position``, where ``end`` would be, and continue there.
        Raises OSError, DamagedLogError.
        """
        last = self._all[-1]
        txn_recovery.cut_index(last.directory, self._all, end)
        os.truncate(last.path(LOG_SUFFIX), position)
        cut = Segment(last.directory, last.base_offset, position, end)
        self.files = ActiveSegment(cut, settings)
        self.files.attach_cut(self._appender, cut, end, now_ms)
        self._all[-1] = cut

    def restart_at(self, offset: Offset, settings: LogConfig, now_ms: int) -> list[Segment]:
        """Make the empty log start and end at ``offset``; returns its last segment, whose files the
        caller removes. Raises OSError; then nothing has changed.
        """
        gone = []
        if offset != self.active.base_offset:
            following = Segment(self.active.directory, offset, 0, offset)
            self.go_on(following, ActiveSegment(following, settings), now_ms)[1].close()
            gone = self.take_oldest(1)
        self._appender.set_producers(ProducerState(offset))
        self._appender.set_log_start_offset(offset)
        self._appender.set_checked_from(offset, 0)
        self._appender.set_high_watermark(offset, offset, 0)
        self._appender.mark_segments_changed()
        return gone

    def move_to(self, directory: str, settings: LogConfig) -> None:
        """Continue in a copy of the partition's directory. On OSError nothing has changed."""
        segments = [segment.in_directory(directory) for segment in self]
        files = ActiveSegment(segments[-1], settings)
        self.files.close()
        self._all, self.files = segments, files
        files.take_over(self._appender)
