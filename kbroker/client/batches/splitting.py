"""Cuts a batch that its broker finds too large."""

from __future__ import annotations

from kbroker.record.batch import Record, RecordBatch
from kbroker.record.builder import BatchBuilder


def halves(data: bytes, level: int | None = None) -> list[tuple[bytes, int]]:
    """Two batches with the records of one that has at least two, each with its number of records.

    They have about the same number of bytes before compression. level: of their codec. Raises
    ValueError for a batch that cannot be read, as one of another client may be that is passed on.
    """
    batch = RecordBatch(data)
    records = batch.records()
    at = _middle(records)
    return [(_built(part, batch.codec, level), len(part)) for part in (records[:at], records[at:])]


def _middle(records: list[Record]) -> int:
    """How many records are in the first half; at least one in each."""
    sizes = [_size(record) for record in records]
    left = sum(sizes)
    right = 0
    at = len(records)
    while at > 1 and (right < left or at == len(records)):
        at -= 1
        left -= sizes[at]
        right += sizes[at]
    return at


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + 1


def _built(records: list[Record], codec: int, level: int | None) -> bytes:
    builder = BatchBuilder(codec, level=level)
    for record in records:
        builder.append(record.value, record.key, record.timestamp, record.headers)
    return builder.build()
