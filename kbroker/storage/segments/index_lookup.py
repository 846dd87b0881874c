"""Index lookups that do not trust the index: an entry must lead to the batch it names.

A flipped bit can leave an index in order and yet wrong. Each lookup here reads one batch header to
make sure; CorruptIndexError otherwise.
"""

from __future__ import annotations

from bisect import bisect_right

from kbroker._ext.log.log_scan import FoundBatch, find_batch
from kbroker._ext.log.offset_index import CorruptIndexError, OffsetIndex, TimeIndex
from kbroker.storage.formats import LARGEST, NO_TIMESTAMP


def start_position(fd: int, offsets: OffsetIndex, offset: int, end: int) -> int:
    """A position at or before the batch that ends at or after ``offset``, on a batch's border.

    end: bytes of the log file that count. Raises CorruptIndexError, OSError.
    """
    entry_offset, position = offsets.lookup(offset)
    if position == 0:
        return 0
    try:
        batch = find_batch(fd, position, end)
    except ValueError as error:
        raise CorruptIndexError(f"{offsets.path}: {error}") from error
    if batch is None or not leads_to(batch, entry_offset):
        raise CorruptIndexError(f"{offsets.path}: no batch ends with {entry_offset} at {position}")
    return position


def offset_before(offsets: OffsetIndex, position: int) -> int:
    """The offset of the last entry at or before ``position``; the base offset without one."""
    count = bisect_right(range(offsets.entry_count), position, key=lambda at: offsets.entry(at)[1])
    return offsets.entry(count - 1)[0] if count else offsets.base_offset


def leads_to(batch: FoundBatch, entry_offset: int) -> bool:
    """Whether an index entry of that offset may name the place of this batch.

    COMPAT: Kafka makes one entry for all that it appends at a time, messages of formats 0 and 1 or
    the batches of a follower's fetch: it names the place of the first and the offset of the last.
    What is looked for lies after that place anyway.
    """
    return batch.last_offset <= entry_offset


def time_floor(
    fd: int, offsets: OffsetIndex, times: TimeIndex, timestamp: int, end: int
) -> tuple[int, int]:
    """(timestamp, offset) of the last time index entry at or below ``timestamp``.

    (-1, base offset) if there is none. Raises CorruptIndexError, OSError.
    """
    found_timestamp, offset = times.lookup(timestamp)
    if found_timestamp == NO_TIMESTAMP:
        return found_timestamp, offset
    try:
        batch = find_batch(fd, start_position(fd, offsets, offset, end), end, offset=offset)
    except ValueError as error:
        raise CorruptIndexError(f"{times.path}: {error}") from error
    if batch is None or batch.max_timestamp != found_timestamp:
        raise CorruptIndexError(
            f"{times.path}: no batch with {offset} has timestamp {found_timestamp}"
        )
    return found_timestamp, offset


def newest_timestamp(fd: int, offsets: OffsetIndex, times: TimeIndex, end: int) -> int:
    """The last time index entry of a sealed segment; -1 if no record has a timestamp.

    Raises CorruptIndexError, OSError.
    """
    newest = time_floor(fd, offsets, times, LARGEST, end)[0]
    position = start_position(fd, offsets, LARGEST, end)
    try:
        batch = find_batch(fd, position, end)
    except ValueError:
        return newest  # the log itself is damaged there: no other index would know more
    if batch is not None and batch.max_timestamp > newest:
        raise CorruptIndexError(
            f"{times.path}: no entry for timestamp {batch.max_timestamp} of offset "
            f"{batch.last_offset}"
        )
    return newest
