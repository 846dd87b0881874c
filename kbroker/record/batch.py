"""A readable view of record batches as they are in a segment, a request or a response.

For tools, recovery, coordinators and clients; the produce path works on the bytes instead. Nothing
is copied until records are asked for, and then every key and value is.
"""

from collections.abc import Iterator
from typing import NamedTuple

from kbroker._ext.record.record_batch import check_batch, read_header
from kbroker._ext.record.record_codec import decode_records
from kbroker.batch_errors import BatchStatus, CorruptBatchError
from kbroker.batch_summary import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchSummary,
)
from kbroker.record.compression import decompress

# BOUND: records of one batch in memory, unless the caller sets another limit.
DECOMPRESSED_MAX = 128 * 1024 * 1024

Headers = tuple[tuple[bytes, bytes | None], ...]


class Record(NamedTuple):
    """One record: absolute offset, timestamp in ms (-1: none), null as None."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class RecordBatch:
    """One batch of format 2 at ``start`` of ``data``, which it keeps alive.

    Raises CorruptBatchError when its header is malformed or ``data`` ends before it does. Records
    are checked when they are read; the checksum only by ``check``.
    """

    __slots__ = ("_data", "header")

    header: BatchSummary

    def __init__(self, data: bytes | bytearray | memoryview, start: int = 0) -> None:
        self.header = read_header(data, start)
        self._data = memoryview(data)[start : start + self.header.size]
        if len(self._data) < self.header.size:
            raise CorruptBatchError(BatchStatus.TRUNCATED)

    @property
    def data(self) -> memoryview:
        """The whole batch, header included."""
        return self._data

    @property
    def size(self) -> int:
        return self.header.size

    @property
    def base_offset(self) -> int:
        return self.header.base_offset

    @property
    def last_offset(self) -> int:
        return self.header.last_offset

    @property
    def next_offset(self) -> int:
        return self.header.last_offset + 1

    @property
    def record_count(self) -> int:
        return self.header.record_count

    @property
    def max_timestamp(self) -> int:
        return self.header.max_timestamp

    @property
    def codec(self) -> int:
        return self.header.codec

    @property
    def is_control(self) -> bool:
        return bool(self.header.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.header.attributes & TRANSACTIONAL)

    @property
    def is_append_time(self) -> bool:
        return bool(self.header.attributes & LOG_APPEND_TIME)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When the cleaner may drop this batch's tombstones (KIP-534); it takes the first
        timestamp's place.
        """
        return self.header.first_timestamp if self.header.attributes & DELETE_HORIZON else None

    def check(self, decompressed_max: int = DECOMPRESSED_MAX) -> BatchSummary:
        """Check checksum and records, as after a crash. Raises CorruptBatchError."""
        return check_batch(self._data, decompressed_max, stored=True)

    def records(self, decompressed_max: int = DECOMPRESSED_MAX) -> list[Record]:
        """All records, in offset order. Raises CorruptBatchError or DecompressionError."""
        header = self.header
        content: bytes | memoryview = self._data[HEADER_BYTES:]
        if header.codec and (header.record_count or len(content)):
            content = decompress(header.codec, content, decompressed_max)
        decoded = decode_records(
            content, header.record_count, header.last_offset_delta, header.first_timestamp
        )
        base = header.base_offset
        if self.is_append_time:
            # All records of such a batch have the append time.
            stamp = header.max_timestamp
            return [Record(base + row[0], stamp, row[2], row[3], row[4]) for row in decoded]
        return [Record(base + row[0], *row[1:]) for row in decoded]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())

    def __repr__(self) -> str:
        return f"<RecordBatch {self.base_offset}..{self.last_offset}, {self.size} bytes>"


def iterate_batches(
    data: bytes | bytearray | memoryview, *, partial_tail: bool = False
) -> Iterator[RecordBatch]:
    """The batches of ``data``, one after another.

    partial_tail: end quietly before a last batch that is cut short, as a fetch answer's may be
    (KIP-74), instead
        of raising CorruptBatchError.
    """
    view = memoryview(data)
    position = 0
    while position < len(view):
        try:
            batch = RecordBatch(view, position)
        except CorruptBatchError as err:
            if partial_tail and err.status is BatchStatus.TRUNCATED:
                return
            raise
        yield batch
        position += batch.size
