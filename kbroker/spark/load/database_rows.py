"""Rows of a task on their way into the staging table of a database."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kbroker.spark.arrow_numbers import int64
from kbroker.spark.load import points
from kbroker.spark.load.commits import TIME_MS_MAX, LoadedFile
from kbroker.spark.load.dialects import COLUMNS, dialect_of
from kbroker.spark.load.writer import WrittenRange
from kbroker.spark.plan import OffsetRange


@dataclass(frozen=True, slots=True)
class DatabaseTaskSink:
    """The part of the destination that goes to the executors."""

    url: str
    table: str
    load: str
    run: str
    bucket_ms: int

    def open(self, one: OffsetRange, attempt: str) -> RowWriter:
        """A writer for one attempt at a range."""
        return RowWriter(self, one, f"{self.run}-{attempt}")

    def open_errors(self, one: OffsetRange, attempt: str) -> RowWriter:
        """A writer for the records of the range that cannot be decoded."""
        return RowWriter(self, one, f"{self.run}-{attempt}-bad")


class RowWriter:
    """Writes rows of one attempt into the staging table; they count only once committed."""

    def __init__(self, sink: DatabaseTaskSink, one: OffsetRange, attempt: str) -> None:
        self._sink = sink
        self._range = one
        self._attempt = attempt
        self._dialect = dialect_of(sink.url)
        self._rows = self._bytes = 0
        self._counts: dict[int, int] = {}
        self._offsets: list[int] = []
        self._times: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows, which are in offset order."""
        if not batch.num_rows:
            return
        times = _milliseconds(batch.column("timestamp"))
        limited = pc.min_element_wise(pc.max_element_wise(times, int64(0)), int64(TIME_MS_MAX))
        buckets = pc.divide(limited, int64(self._sink.bucket_ms))
        for one in pc.value_counts(buckets).to_pylist():
            bucket = one["values"] * self._sink.bucket_ms
            self._counts[bucket] = self._counts.get(bucket, 0) + one["counts"]
        bounds = pc.min_max(times)
        self._times = [
            min([*self._times[:1], bounds["min"].as_py()]),
            max([*self._times[1:], bounds["max"].as_py()]),
        ]
        offsets = batch.column("offset")
        self._offsets = [(self._offsets or [offsets[0].as_py()])[0], offsets[-1].as_py()]
        self._dialect.stage(
            self._sink.table,
            (self._sink.load, self._sink.run, self._attempt),
            _rows(batch, times),
        )
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        points.reach("task-writing")

    def finish(self) -> WrittenRange:
        """Finish: everything is in the staging table, whose rows are durable."""
        self._dialect.close()
        one = self._range
        if not self._rows:
            return WrittenRange(0, 0, (), {})
        path = f"{self._sink.table}/{one.topic}-{one.partition}-{one.start}-{one.end}"
        file = LoadedFile(
            path=f"{path}-{self._attempt}",
            staged=self._attempt,
            topic=one.topic,
            partition=one.partition,
            start=one.start,
            end=one.end,
            rows=self._rows,
            bytes=self._bytes,
            checksum=0,
            first_offset=self._offsets[0],
            last_offset=self._offsets[1],
            min_ms=self._times[0],
            max_ms=self._times[1],
        )
        return WrittenRange(self._rows, self._bytes, (file,), self._counts)


def _rows(batch: pa.RecordBatch, times_ms: pa.Array) -> Iterator[tuple[Any, ...]]:
    """Rows in the order of COLUMNS."""
    columns: dict[str, list[Any]] = {}
    for name, _ in COLUMNS:
        if name == "timestamp":
            columns[name] = times_ms.to_pylist()
        elif name in batch.schema.names:
            columns[name] = batch.column(name).to_pylist()
        else:
            columns[name] = [None] * batch.num_rows
    if columns["headers"]:
        columns["headers"] = [_headers_text(one) for one in columns["headers"]]
    columns["value"] = [_value(one) for one in columns["value"]]
    return zip(*(columns[name] for name, _ in COLUMNS), strict=True)


def _value(one: Any) -> bytes | None:
    """Bytes unchanged, a decoded value as JSON."""
    if one is None or isinstance(one, bytes):
        return one
    return json.dumps(one, default=str).encode()


def _milliseconds(times: pa.Array) -> pa.Array:
    milliseconds = times.cast(pa.int64())
    return milliseconds if times.type.unit == "ms" else pc.divide(milliseconds, int64(1000))


def _headers_text(headers: list[dict[str, Any]] | None) -> str | None:
    """Headers as JSON: a value is a text, null, or an object with base 64 if it is not UTF-8."""
    if headers is None:
        return None
    return json.dumps([[one["key"], _for_json(one["value"])] for one in headers])


def _for_json(value: bytes | None) -> str | dict[str, str] | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
