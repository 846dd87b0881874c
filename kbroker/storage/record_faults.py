"""Names the record that makes a batch unacceptable; called only for a batch that is refused."""

from __future__ import annotations

from kbroker._ext.record_batch import decode_records, read_header
from kbroker.record.summary import CODEC_MASK, HEADER_BYTES


def _records(batch: bytes, decompressed_max: int) -> list[tuple[int, int, bytes | None]]:
    """(index, timestamp, key) of each record of a batch that passed the append's checks."""
    header = read_header(batch)
    records: bytes = batch[HEADER_BYTES:]
    codec = header.attributes & CODEC_MASK
    if codec:
        from kbroker.record.compression import decompress

        records = decompress(codec, records, decompressed_max)
    decoded = decode_records(
        records, header.record_count, header.last_offset_delta, header.first_timestamp
    )
    return [(index, timestamp, key) for index, timestamp, key, _value, _headers in decoded]


def first_keyless(batch: bytes, decompressed_max: int, _limit: int) -> int:
    """Index of the first record without a key, -1 if there is none."""
    return next((i for i, _, key in _records(batch, decompressed_max) if key is None), -1)


def first_older_than(batch: bytes, decompressed_max: int, limit: int) -> int:
    """Index of the first record whose timestamp is below ``limit`` ms, -1 if there is none."""
    return next(
        (i for i, ts, _ in _records(batch, decompressed_max) if ts != -1 and ts < limit), -1
    )
