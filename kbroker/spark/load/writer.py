"""Writes record batches of one offset range into staged Parquet files, in the task that reads them.

A range's rows go to one file for each hour (or day) of their own time. Rows wait in memory until
they make a row group, each file's checksum is taken as its bytes pass, and a file is synced
before the driver hears of it. Bound: ``OPEN_FILES_MAX`` files of at most ``ROW_GROUP_BYTES``
each; the file that has waited longest is finished when records of yet another hour arrive.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kbroker._ext.base.crc32c import crc32c
from kbroker.spark.arrow_numbers import int64
from kbroker.spark.load import layout, points
from kbroker.spark.load.column_codecs import column_codecs
from kbroker.spark.load.commits import LoadedFile
from kbroker.spark.load.field_ids import with_field_ids
from kbroker.spark.load.writeback import start_writeback

if TYPE_CHECKING:
    from kbroker.spark.load.layout import PartitionBy

OPEN_FILES_MAX = 32
ROW_GROUP_BYTES = 16 << 20
ROW_GROUP_ROWS = 256 << 10
# Values that Parquet's encoders take at once; with 1024, its default, a load costs a twentieth
# more.
_WRITE_ROWS = 16 << 10
# Encoded and compressed while it is in the processor's cache; the size of files is the same.
_PAGE_BYTES = 256 << 10
# Prefix of footer entries that describe a file's content (``footers``).
FOOTER = "kbroker."
# Slowly increasing numbers: differences are a fraction of the values.
_DELTA = ("offset", "timestamp")
_DICTIONARY = ("topic", "partition", "timestampType")


def about(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """The metadata in a file's footer, by the names without FOOTER."""
    return {
        name.decode().removeprefix(FOOTER): value.decode()
        for name, value in (metadata or {}).items()
        if name.startswith(FOOTER.encode())
    }


@dataclass(frozen=True, slots=True)
class FileOptions:
    """How files are split and written; the same for all tasks of a run.

    level: of zstd; None: as ``column_codecs`` finds. topic_column: off, as the folder names the
    topic and readers take folders for columns. numbered: columns have numbers, see ``field_ids``.
    """

    partition_by: PartitionBy = "hour"
    codec: str = "zstd"
    level: int | None = None
    file_bytes: int = 128 << 20
    bucket_ms: int = 600_000
    topic_column: bool = False
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """The result for a range: its files, and the record counts by audit bucket."""

    rows: int
    bytes: int
    files: tuple[LoadedFile, ...]
    counts: dict[int, int]


class _ChecksummedFile:
    """The few methods that pyarrow asks of a file it writes to."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb")
        self._started = 0
        self.checksum = 0
        self.bytes = 0
        self.closed = False

    def write(self, data: pa.Buffer | bytes) -> int:
        view = memoryview(data)
        self.checksum = crc32c(view, self.checksum)
        self.bytes += view.nbytes
        return self._file.write(view)

    def flush(self) -> None:
        self._file.flush()

    def start_writeback(self) -> None:
        """Let the disk start to write, so that the sync at the end is short."""
        self._file.flush()
        start_writeback(self._file.fileno(), self._started, self.bytes - self._started)
        self._started = self.bytes

    def tell(self) -> int:
        return self.bytes

    def close(self) -> None:
        """Make the file durable and close it."""
        if not self.closed:
            self.closed = True
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


class _Output(NamedTuple):
    """Where the row groups of a file are written, from the first one on."""

    sink: _ChecksummedFile
    writer: pq.ParquetWriter


@dataclass(slots=True)
class _OpenFile:
    """A file of one hour, and the rows for its next row group."""

    number: int
    unit: int | None
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_rows: int = 0
    waiting_bytes: int = 0
    output: _Output | None = None
    rows: int = 0
    first_offset: int = -1
    last_offset: int = -1
    min_us: int = 0
    max_us: int = 0


class RangeWriter:
    """Writes a range once; ``attempt`` is unique for every attempt."""

    def __init__(
        self,
        root: Path,
        staging: str,
        where: tuple[str, int, int, int],
        attempt: str,
        options: FileOptions,
        about: dict[str, str] | None = None,
    ) -> None:
        """staging: the run's folder below ``root``. about: for every footer."""
        self._root = root
        self._staging = staging
        self._topic, self._partition, self._start, self._end = where
        self._attempt = attempt
        self._options = options
        self._about = about or {}
        self._open: dict[int | None, _OpenFile] = {}
        self._finished: list[LoadedFile] = []
        self._counts: dict[int, int] = {}
        self._numbers = 0
        self._rows = 0
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows, which are in offset order."""
        if not batch.num_rows:
            return
        if not self._options.topic_column and "topic" in batch.schema.names:
            batch = batch.drop_columns(["topic"])
        times = batch.column("timestamp").cast(pa.int64())
        bounds = pc.min_max(times)
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        self._count(times, low, high)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._options.partition_by == "none":
            self._add(None, batch, low, high)
            return
        unit_us = layout.UNIT_US[self._options.partition_by]
        if 0 <= low and high < layout.TIME_END_US and low // unit_us == high // unit_us:
            self._add(low // unit_us, batch, low, high)
            return
        is_late = pc.greater_equal(times, int64(layout.TIME_END_US))
        has_none = pc.or_(pc.less(times, int64(0)), is_late)
        units = pc.if_else(has_none, int64(-1), pc.divide(times, int64(unit_us)))
        for unit in pc.unique(units).to_pylist():
            mask = pc.equal(units, int64(unit))
            bounds = pc.min_max(times.filter(mask))
            self._add(
                None if unit < 0 else unit,
                batch.filter(mask),
                bounds["min"].as_py(),
                bounds["max"].as_py(),
            )

    def _count(self, times: pa.Array, low: int, high: int) -> None:
        bucket_us = self._options.bucket_ms * 1000
        if low >= 0 and low // bucket_us == high // bucket_us:
            counts = {low // bucket_us: len(times)}
        else:
            buckets = pc.divide(pc.max_element_wise(times, int64(0)), int64(bucket_us))
            counts = {one["values"]: one["counts"] for one in pc.value_counts(buckets).to_pylist()}
        for number, count in counts.items():
            bucket = number * self._options.bucket_ms
            self._counts[bucket] = self._counts.get(bucket, 0) + count

    def _add(self, unit: int | None, batch: pa.RecordBatch, low: int, high: int) -> None:
        file = self._open.pop(unit, None)
        if file is None:
            if len(self._open) >= OPEN_FILES_MAX:
                self._finish(self._open.pop(next(iter(self._open))))
            file = _OpenFile(self._numbers, unit, min_us=low, max_us=high)
            self._numbers += 1
        self._open[unit] = file  # the one used last stands last
        offsets = batch.column("offset")
        if file.first_offset < 0:
            file.first_offset = offsets[0].as_py()
        file.last_offset = offsets[-1].as_py()
        file.min_us = min(file.min_us, low)
        file.max_us = max(file.max_us, high)
        file.waiting.append(batch)
        file.waiting_rows += batch.num_rows
        file.waiting_bytes += batch.nbytes
        if file.waiting_bytes >= ROW_GROUP_BYTES or file.waiting_rows >= ROW_GROUP_ROWS:
            if self._flush(file).sink.bytes >= self._options.file_bytes:
                self._finish(self._open.pop(unit))

    def _staged(self, file: _OpenFile) -> str:
        name = layout.file_name(
            self._topic, self._partition, self._start, self._end, f"{self._attempt}-{file.number}"
        )
        return f"{self._staging}/{name}"

    def _flush(self, file: _OpenFile) -> _Output:
        """Write the waiting rows as one row group."""
        table = pa.Table.from_batches(file.waiting)
        file.waiting.clear()
        if file.output is None:
            path = self._root / self._staged(file)
            path.parent.mkdir(parents=True, exist_ok=True)
            sink = _ChecksummedFile(path)
            file.output = _Output(sink, _parquet_writer(sink, table, self._options))
        output = file.output
        output.writer.write_table(table, row_group_size=table.num_rows)
        output.sink.start_writeback()
        file.rows += file.waiting_rows
        file.waiting_rows = file.waiting_bytes = 0
        points.reach("task-writing")
        return output

    def _finish(self, file: _OpenFile, parts: int = 0) -> None:
        """parts: the number of files of the range, known at the last of them; 0 before."""
        output = file.output
        if file.waiting or output is None:
            output = self._flush(file)
        staged = self._staged(file)
        folder = layout.folder(self._topic, self._options.partition_by, file.unit)
        about = self._about | {
            "topic": self._topic,
            "partition": str(self._partition),
            "start": str(self._start),
            "end": str(self._end),
            "first_offset": str(file.first_offset),
            "last_offset": str(file.last_offset),
            "min_ms": str(file.min_us // 1000),
            "max_ms": str(file.max_us // 1000),
            "attempt": self._attempt,
            "part": str(file.number),
            "parts": str(parts),
        }
        footer = {FOOTER + name: value for name, value in about.items()}
        output.writer.add_key_value_metadata(footer)
        output.writer.close()
        output.sink.close()
        self._finished.append(
            LoadedFile(
                path=f"{folder}/{staged.rpartition('/')[2]}",
                staged=staged,
                topic=self._topic,
                partition=self._partition,
                start=self._start,
                end=self._end,
                rows=file.rows,
                bytes=output.sink.bytes,
                checksum=output.sink.checksum,
                first_offset=file.first_offset,
                last_offset=file.last_offset,
                min_ms=file.min_us // 1000,
                max_ms=file.max_us // 1000,
            )
        )

    def finish(self) -> WrittenRange:
        """Complete and sync every file."""
        last = list(self._open.values())
        for file in last:
            self._finish(file, self._numbers if file is last[-1] else 0)
        self._open.clear()
        return WrittenRange(self._rows, self._bytes, tuple(self._finished), self._counts)


def _parquet_writer(
    sink: _ChecksummedFile, table: pa.Table, options: FileOptions
) -> pq.ParquetWriter:
    """A writer for a file whose first row group is ``table``.

    Keys and values as they are: a dictionary of them costs more than it saves after zstd.
    """
    names = set(table.schema.names)
    chosen = column_codecs(table, options.codec, options.level)
    encodings = {name: "DELTA_BINARY_PACKED" for name in _DELTA if name in names}
    encodings |= dict.fromkeys(chosen.plain, "DELTA_LENGTH_BYTE_ARRAY")
    return pq.ParquetWriter(
        pa.PythonFile(sink, mode="w"),
        with_field_ids(table.schema) if options.numbered else table.schema,
        compression=chosen.codecs,
        compression_level=chosen.levels,
        write_batch_size=_WRITE_ROWS,
        data_page_size=_PAGE_BYTES,
        use_dictionary=[name for name in _DICTIONARY if name in names],
        column_encoding=encodings,
        write_statistics=[name for name in (*_DELTA, "partition") if name in names],
        store_schema=False,
    )
