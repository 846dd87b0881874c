"""Which bytes name the schema that a value was written with, as Confluent's serializers do."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import NamedTuple

# WIRE: in front of a value; or in the header of this name, in which a GUID follows the second one.
MAGIC_OF_ID, MAGIC_OF_GUID = 0, 1
PREFIX_BYTES, GUID_BYTES = 5, 17
VALUE_HEADER, KEY_HEADER = b"__value_schema_id", b"__key_schema_id"
# BOUND: of the path to a message inside of nested ones.
INDEXES_MAX = 32
_VARINT_BYTES_MAX = 5


class Framed(NamedTuple):
    """schema: an id, or a GUID. payload: without what names the schema; of Protobuf, the indexes of
    the message still come first.
    """

    schema: int | str
    payload: bytes


def framed(
    data: bytes, headers: Iterable[tuple[bytes, bytes | None]], name: bytes
) -> Framed | None:
    """None of bytes that name no schema. name: of the header that may name it."""
    for header, value in headers:
        if header == name and value is not None and len(value) == GUID_BYTES:
            if value[0] == MAGIC_OF_GUID:
                return Framed(str(uuid.UUID(bytes=bytes(value[1:]))), data)
    if len(data) < PREFIX_BYTES or data[0] != MAGIC_OF_ID:
        return None
    return Framed(int.from_bytes(data[1:PREFIX_BYTES], "big"), data[PREFIX_BYTES:])


def message_path(payload: bytes) -> tuple[list[int], bytes]:
    """Of Protobuf: the indexes of the message, from the outermost, and the message itself. Raises
    ValueError.
    """
    count, at = _varint(payload, 0)
    if not 0 <= count <= INDEXES_MAX:
        raise ValueError(f"{count} message indexes, at most {INDEXES_MAX}")
    indexes = []
    for _ in range(count):
        index, at = _varint(payload, at)
        indexes.append(index)
    return indexes or [0], payload[at:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint, and where it ends."""
    raw = 0
    for number in range(_VARINT_BYTES_MAX):
        if at >= len(data):
            break
        raw |= (data[at] & 0x7F) << 7 * number
        at += 1
        if not data[at - 1] & 0x80:
            return raw >> 1 ^ -(raw & 1), at
    raise ValueError("the message indexes are cut")
