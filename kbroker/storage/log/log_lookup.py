"""Finds offsets in a log by timestamp (ListOffsets) or leader epoch (OffsetForLeaderEpoch).

Runs in the io worker that owns the log, as a slow path. Indexes narrow a search down to a few
batches; at most one batch is read in full and decompressed.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from kbroker._ext.log.log_scan import find_batch
from kbroker._ext.record.record_batch import read_header
from kbroker._ext.record.record_codec import decode_records
from kbroker.batch_summary import CODEC_MASK, HEADER_BYTES, LOG_APPEND_TIME, MAGIC, MAGIC_AT
from kbroker.protocol.messages.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from kbroker.storage.formats import NO_TIMESTAMP
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.storage.segments.segment import Segment
from kbroker.types import NO_OFFSET, Offset

NO_EPOCH = -1


class Found(NamedTuple):
    """A record found by time. timestamp: its own, in ms."""

    offset: Offset
    timestamp: int


def list_offsets(log: PartitionLog, timestamp: int, *, committed: bool = False) -> dict[str, int]:
    """ListOffsets for one timestamp, or a special one such as LATEST.

    ``offset``, ``timestamp`` and ``leader_epoch``, -1 each where there is nothing to say.

    Only records below the high watermark count, or with ``committed`` below the last stable offset.
    Raises OSError, ValueError on a damaged log.
    """
    bound = log.last_stable_offset if committed else log.high_watermark
    if timestamp == LATEST:
        return _found(log, bound, NO_TIMESTAMP, log.epochs.latest)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        return _found(log, start, NO_TIMESTAMP, log.epochs.epoch_for(start))
    if timestamp == LATEST_TIERED:
        return _found(log, NO_OFFSET, NO_TIMESTAMP, None)
    place = find_newest(log) if timestamp == MAX_TIMESTAMP else find_by_timestamp(log, timestamp)
    if place is None or place.offset >= bound:
        return _found(log, NO_OFFSET, NO_TIMESTAMP, None)
    return _found(log, place.offset, place.timestamp, log.epochs.epoch_for(place.offset))


def end_offset_for_epoch(log: PartitionLog, leader_epoch: int) -> tuple[int, Offset]:
    """(epoch, end offset), -1 and -1 if the epoch is unknown."""
    epoch_end = log.epochs.end_offset_for(leader_epoch, log.log_end_offset)
    return epoch_end or (NO_EPOCH, NO_OFFSET)


def _found(
    _log: PartitionLog, offset: Offset, timestamp: int, leader_epoch: int | None
) -> dict[str, int]:
    return {
        "offset": offset,
        "timestamp": timestamp,
        "leader_epoch": NO_EPOCH if leader_epoch is None else leader_epoch,
    }


def offsets_before(log: PartitionLog, timestamp: int, bound: int, now_ms: int) -> list[int]:
    """ListOffsets 0: base offsets of the segments that were last written by ``timestamp``, the
    newest segment first. The log end offset comes before them if ``timestamp`` is ``now_ms`` or
    later.

    bound: larger offsets are left out. Raises OSError.
    """
    # COMPAT: Kafka uses the time of a segment's file, not those of its records.
    offsets: list[int] = []
    if timestamp == LATEST or timestamp >= now_ms:
        offsets.append(log.log_end_offset)
    for segment in reversed(log.segments):
        if offsets or segment.modified_ms() <= timestamp:
            offsets.append(segment.base_offset)
    return list(dict.fromkeys(min(max(at, log.log_start_offset), bound) for at in offsets))


def find_by_timestamp(log: PartitionLog, timestamp: int) -> Found | None:
    """The first record by offset that is at least as new as ``timestamp``. Raises OSError."""
    for segment in log.segments:
        if segment.next_offset <= log.log_start_offset or segment.size == 0:
            continue
        if log.segments.newest_timestamp(segment) < timestamp:
            continue
        place = _find_in(log, segment, timestamp)
        if place is not None:
            return place
    return None


def find_newest(log: PartitionLog) -> Found | None:
    """The first record with the largest timestamp of the log (KIP-734). Raises OSError."""
    newest: tuple[int, Segment] | None = None
    for segment in log.segments:
        if segment.next_offset <= log.log_start_offset or segment.size == 0:
            continue
        timestamp = log.segments.newest_timestamp(segment)
        if newest is None or timestamp > newest[0]:
            newest = timestamp, segment
    return None if newest is None else _find_in(log, newest[1], newest[0])


def _find_in(log: PartitionLog, segment: Segment, timestamp: int) -> Found | None:
    from_offset = log.segments.time_floor(segment, timestamp - 1)
    position = log.segments.start_position(segment, max(from_offset, log.log_start_offset))
    fd = segment.open_log()
    try:
        while batch := find_batch(fd, position, segment.size, timestamp=timestamp):
            if batch.last_offset >= log.log_start_offset:
                record = _find_record(log, os.pread(fd, batch.size, batch.position), timestamp)
                if record is not None:
                    return record if record.offset < log.high_watermark else None
            position = batch.position + batch.size
    finally:
        os.close(fd)
    return None


def _find_record(log: PartitionLog, batch: bytes, timestamp: int) -> Found | None:
    """The first record of ``batch`` at or after ``timestamp`` and the log start."""
    if batch[MAGIC_AT] != MAGIC:
        return _find_message(log, batch, timestamp)
    header = read_header(batch)
    if header.attributes & LOG_APPEND_TIME:
        start = max(Offset(header.base_offset), log.log_start_offset)
        return Found(start, header.max_timestamp)
    records: bytes = batch[HEADER_BYTES:]
    codec = header.attributes & CODEC_MASK
    if codec:
        from kbroker.record.compression import decompress

        records = decompress(codec, records, log.settings.decompressed_bytes_max)
    decoded = decode_records(
        records, header.record_count, header.last_offset_delta, header.first_timestamp
    )
    for delta, record_timestamp, _key, _value, _headers in decoded:
        offset = header.base_offset + delta
        if record_timestamp >= timestamp and offset >= log.log_start_offset:
            return Found(Offset(offset), record_timestamp)
    return None


def _find_message(log: PartitionLog, entry: bytes, timestamp: int) -> Found | None:
    """The same in a message of format 0 or 1, or in a wrapper around several."""
    from kbroker.record.legacy import read_message

    for message in read_message(entry).messages(log.settings.decompressed_bytes_max):
        if message.timestamp >= timestamp and message.offset >= log.log_start_offset:
            return Found(Offset(message.offset), message.timestamp)
    return None
