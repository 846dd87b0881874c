"""Control records: how a transaction ended, as a batch of its own (docs/formats/segment.md).

A marker is one record of 16 bytes in a batch of format 2, so all of them are 78 bytes long. Written
by the io worker that owns the log, never by a client.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kbroker._ext.base.crc32c import crc32c
from kbroker.batch_summary import (
    CONTROL,
    CRC_AT,
    CRC_FROM,
    HEADER,
    LENGTH_END,
    MAGIC,
    TRANSACTIONAL,
)

ABORT = 0
COMMIT = 1
# Other types exist in logs of other brokers; no reader here acts on them.
TYPE_NAMES = (
    "ABORT",
    "COMMIT",
    "LEADER_CHANGE",
    "SNAPSHOT_HEADER",
    "SNAPSHOT_FOOTER",
    "KRAFT_VERSION",
    "KRAFT_VOTERS",
)

KEY_VERSION = 0
VALUE_VERSION = 0
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
# Length, attributes, timestamp and offset deltas; key with its length; value with its length; no
# headers. Every varint takes one byte.
_RECORD = struct.Struct(">bbbbbhhbhib")
_RECORD_BYTES = 16
_CRC = struct.Struct(">I")
NO_SEQUENCE = NO_LEADER_EPOCH = -1

MARKER_BYTES = HEADER.size + _RECORD.size


class EndTransactionMarker(NamedTuple):
    """The content of a control record of a transaction."""

    commit: bool
    coordinator_epoch: int


def marker_batch(
    producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int, timestamp: int
) -> bytearray:
    """The batch that ends a transaction; base offset and leader epoch are stamped by the log."""
    batch = bytearray(MARKER_BYTES)
    HEADER.pack_into(
        batch,
        0,
        0,
        MARKER_BYTES - LENGTH_END,
        NO_LEADER_EPOCH,
        MAGIC,
        0,
        TRANSACTIONAL | CONTROL,
        0,
        timestamp,
        timestamp,
        producer_id,
        producer_epoch,
        NO_SEQUENCE,
        1,
    )
    _RECORD.pack_into(
        batch,
        HEADER.size,
        _zigzag(_RECORD_BYTES),
        0,
        0,
        0,
        _zigzag(_KEY.size),
        KEY_VERSION,
        COMMIT if commit else ABORT,
        _zigzag(_VALUE.size),
        VALUE_VERSION,
        coordinator_epoch,
        0,
    )
    _CRC.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
    return batch


def parse_marker(key: bytes | None, value: bytes | None) -> EndTransactionMarker | None:
    """The marker in a control record; None for a control record of another kind.

    COMPAT: fields that a later version adds behind the known ones are ignored.
    """
    if key is None or value is None or len(key) < _KEY.size or len(value) < _VALUE.size:
        return None
    kind = _KEY.unpack_from(key)[1]
    if kind not in (ABORT, COMMIT):
        return None
    return EndTransactionMarker(kind == COMMIT, _VALUE.unpack_from(value)[1])


def control_type(key: bytes | None) -> int | None:
    """The type that a control record's key names, None if it names none."""
    return None if key is None or len(key) < _KEY.size else _KEY.unpack_from(key)[1]


def _zigzag(length: int) -> int:
    return length << 1
