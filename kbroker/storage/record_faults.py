"""Names the records that make a batch unacceptable; called only for a batch that is rejected."""

from __future__ import annotations

from kbroker._ext.record.record_batch import read_header
from kbroker._ext.record.record_codec import decode_records
from kbroker.batch_summary import CODEC_MASK, HEADER_BYTES


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


def keyless(batch: bytes, decompressed_max: int) -> list[int]:
    """Indexes of the records without a key."""
    return [index for index, _, key in _records(batch, decompressed_max) if key is None]


def outside(batch: bytes, decompressed_max: int, earliest: int, latest: int) -> list[int]:
    """Indexes of the records with a timestamp that is not within [earliest, latest]."""
    return [
        index
        for index, timestamp, _ in _records(batch, decompressed_max)
        if timestamp != -1 and not earliest <= timestamp <= latest
    ]
