"""Build record batches: for clients, coordinators and tests."""

import struct
from collections.abc import Iterable

from kbroker._ext.base.crc32c import crc32c
from kbroker._ext.record.record_codec import encode_record
from kbroker.batch_summary import (
    CONTROL,
    CRC_AT,
    CRC_FROM,
    HEADER,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
)
from kbroker.record import compression

_CRC = struct.Struct(">I")

NO_TIMESTAMP = -1
HeaderPairs = Iterable[tuple[str | bytes, bytes | None]]


class BatchBuilder:
    """Collects records and builds batches of format 2 from them.

    codec: compression.NONE, GZIP, SNAPPY, LZ4 or ZSTD. producer_id, producer_epoch, base_sequence:
    -1 if the producer is not idempotent. append_time_ms: makes it a batch of append time.
    leader_epoch: -1 as clients send it; the broker stamps its own.
    """

    __slots__ = (
        "_first_timestamp",
        "_max_timestamp",
        "_next_delta",
        "_parts",
        "append_time_ms",
        "base_offset",
        "base_sequence",
        "codec",
        "control",
        "leader_epoch",
        "level",
        "producer_epoch",
        "producer_id",
        "record_count",
        "records_bytes",
        "transactional",
    )

    def __init__(
        self,
        codec: int = compression.NONE,
        *,
        level: int | None = None,
        base_offset: int = 0,
        leader_epoch: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
        control: bool = False,
        append_time_ms: int | None = None,
    ) -> None:
        self.codec = codec
        self.level = level
        self.base_offset = base_offset
        self.leader_epoch = leader_epoch
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.transactional = transactional
        self.control = control
        self.append_time_ms = append_time_ms
        self.record_count = 0
        self.records_bytes = 0
        self._parts: list[bytes] = []
        self._first_timestamp = self._max_timestamp = NO_TIMESTAMP
        self._next_delta = 0

    def append(
        self,
        value: bytes | None = None,
        key: bytes | None = None,
        timestamp: int = NO_TIMESTAMP,
        headers: HeaderPairs = (),
        *,
        offset_delta: int | None = None,
    ) -> int:
        """Add one record and return its offset delta.

        timestamp: ms, any order. offset_delta: leave a gap, as compaction does; never below the
        next one.
        """
        delta = self._next_delta if offset_delta is None else offset_delta
        if delta < self._next_delta:
            raise ValueError(f"offset delta {delta} is below {self._next_delta}")
        if self.record_count == 0:
            self._first_timestamp = self._max_timestamp = timestamp
        pairs = tuple([(k.encode() if isinstance(k, str) else k, v) for k, v in headers])
        record = encode_record(delta, timestamp - self._first_timestamp, key, value, pairs)
        self._parts.append(record)
        self.records_bytes += len(record)
        self.record_count += 1
        self._next_delta = delta + 1
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        return delta

    @property
    def attributes(self) -> int:
        return (
            self.codec
            | (LOG_APPEND_TIME if self.append_time_ms is not None else 0)
            | (TRANSACTIONAL if self.transactional else 0)
            | (CONTROL if self.control else 0)
        )

    def build(self, last_offset_delta: int | None = None) -> bytes:
        """The batch with header and checksum. Raises ValueError if there is no record.

        last_offset_delta: of the batch, where compaction took its last records.
        """
        if not self._parts:
            raise ValueError("a batch needs at least one record")
        records = compression.compress(self.codec, b"".join(self._parts), self.level)
        batch = bytearray(HEADER.size + len(records))
        HEADER.pack_into(
            batch,
            0,
            self.base_offset,
            len(batch) - LENGTH_END,
            self.leader_epoch,
            MAGIC,
            0,
            self.attributes,
            self._next_delta - 1 if last_offset_delta is None else last_offset_delta,
            self._first_timestamp,
            self._max_timestamp if self.append_time_ms is None else self.append_time_ms,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        )
        batch[HEADER.size :] = records
        _CRC.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
        return bytes(batch)
