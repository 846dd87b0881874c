"""Record sets and the rows expected from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from kbroker._ext.arrow.arrow_reader import ArrowReader
from kbroker.record.builder import BatchBuilder
from kbroker.record.control import marker_batch

ALL = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
END = 1 << 62


def batch(base: int, values: Sequence[bytes | None], codec: int = 0, **options: Any) -> bytes:
    """A batch with those values; key and timestamp follow from the offset."""
    builder = BatchBuilder(codec, base_offset=base, **options)
    for delta, value in enumerate(values):
        builder.append(value, b"k%d" % (base + delta), 1000 + base + delta)
    return builder.build()


def marker(base: int, producer_id: int, commit: bool) -> bytes:
    data = marker_batch(producer_id, 0, commit, 0, 5)
    data[:8] = base.to_bytes(8, "big")
    return bytes(data)


def read(
    sets: Iterable[bytes | tuple[bytes, list[tuple[int, int]]]],
    start: int = 0,
    end: int = END,
    columns: Sequence[str] = ALL,
    **options: Any,
) -> list[pa.RecordBatch]:
    """All batches of a reader for those sets."""
    reader = ArrowReader("t", 3, start, end, columns, **options)
    found = []
    for one in sets:
        data, aborted = one if isinstance(one, tuple) else (one, [])
        reader.load(data, aborted)
        while (made := reader.read()) is not None:
            found.append(pa.record_batch(made))
        reader.unload()
    last = reader.finish()
    if last is not None:
        found.append(pa.record_batch(last))
    for made in found:
        made.validate(full=True)
    return found


def column(batches: Iterable[pa.RecordBatch], name: str) -> list[Any]:
    return [value for one in batches for value in one.column(name).to_pylist()]


def offsets(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return column(batches, "offset")
