"""A readable view of messages of formats 0 and 1, for tools, and for coordinators that load what a
Kafka with an old ``log.message.format.version`` has written; everything hot has code of its own.

A message whose attributes name a codec is a wrapper: its value is a compressed message set, with
offsets that are absolute in format 0 and relative to the first in format 1.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from kbroker._ext.record.legacy_records import with_right_lz4_checksum
from kbroker.batch_errors import BatchStatus, CorruptBatchError
from kbroker.batch_summary import CODEC_MASK, LOG_APPEND_TIME
from kbroker.record.compression import LZ4, decompress

# WIRE: offset, size, checksum, magic, attributes; then a timestamp in format 1, key and value.
_HEADER = struct.Struct(">qiIbb")
_SIZE_END = 12
_CHECKED_FROM = 16
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
MAGIC_MAX = 1
# The smallest message: of format 0, without key and value.
MESSAGE_BYTES_MIN = _HEADER.size + 2 * _LENGTH.size


class LegacyMessage(NamedTuple):
    """One message. timestamp: -1 in format 0. valid: its checksum is right."""

    offset: int
    size: int
    crc: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    valid: bool

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    def messages(self, decompressed_max: int) -> list[LegacyMessage]:
        """The messages in a wrapper, with absolute offsets; the message itself if it is not one.

        Raises CorruptBatchError, DecompressionError.
        """
        if not self.codec:
            return [self]
        value = self.value or b""
        if self.codec == LZ4 and self.magic == 0:
            value = with_right_lz4_checksum(value)  # clients of format 0 have another (KIP-57)
        content = decompress(self.codec, value, decompressed_max)
        inner = list(iterate_messages(content))
        if any(message.codec for message in inner):
            raise CorruptBatchError(BatchStatus.UNKNOWN_CODEC)
        if self.magic == 0 or not inner:
            return inner
        first = self.offset - inner[-1].offset
        stamp = self.timestamp if self.is_append_time else None
        return [
            m._replace(offset=first + m.offset, timestamp=m.timestamp if stamp is None else stamp)
            for m in inner
        ]


def read_message(data: bytes, start: int = 0) -> LegacyMessage:
    """The message at ``start`` of ``data``. Raises CorruptBatchError."""
    if len(data) - start < _HEADER.size:
        raise CorruptBatchError(BatchStatus.TRUNCATED)
    offset, size, crc, magic, attributes = _HEADER.unpack_from(data, start)
    if not 0 <= magic <= MAGIC_MAX:
        raise CorruptBatchError(BatchStatus.BAD_MAGIC)
    end = start + _SIZE_END + size
    if size < 0 or end > len(data):
        raise CorruptBatchError(BatchStatus.TRUNCATED)
    at = start + _HEADER.size
    timestamp = -1
    try:
        if magic == 1:
            (timestamp,) = _TIMESTAMP.unpack_from(data, at)
            at += _TIMESTAMP.size
        key, at = _bytes_at(data, at, end)
        value, at = _bytes_at(data, at, end)
    except struct.error:
        raise CorruptBatchError(BatchStatus.BAD_RECORD) from None
    if at != end:
        raise CorruptBatchError(BatchStatus.TRAILING_BYTES)
    valid = zlib.crc32(memoryview(data)[start + _CHECKED_FROM : end]) == crc
    return LegacyMessage(
        offset, end - start, crc, magic, attributes, timestamp, key, value, valid
    )  # fmt: skip


def iterate_messages(data: bytes) -> Iterator[LegacyMessage]:
    """Iterate over the messages of a set. Raises CorruptBatchError."""
    position = 0
    while position < len(data):
        message = read_message(data, position)
        yield message
        position += message.size


def _bytes_at(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    if length == -1:
        return None, at
    if length < 0 or length > end - at:
        raise CorruptBatchError(BatchStatus.BAD_RECORD)
    return data[at : at + length], at + length
