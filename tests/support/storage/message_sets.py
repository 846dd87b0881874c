"""Message sets of formats 0 and 1 in plain Python, as a reference for the compiled converters.

Written from the protocol guide, with ``zlib.crc32`` and the codecs of ``record.compression``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from kbroker.record.compression import GZIP, LZ4, SNAPPY, compress, decompress

LOG_APPEND_TIME = 0x08
CODEC_MASK = 0x07
CODECS = {"none": 0, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4}
LIMIT = 1 << 26
_MASK = 0xFFFFFFFF


class OldMessage(NamedTuple):
    """One message; ``timestamp`` is -1 in format 0."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    attributes: int = 0


def _bytes(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def message_bytes(magic: int, message: OldMessage) -> bytes:
    """One entry of a message set."""
    body = struct.pack(">bb", magic, message.attributes)
    if magic == 1:
        body += struct.pack(">q", message.timestamp)
    body += _bytes(message.key) + _bytes(message.value)
    entry = struct.pack(">qiI", message.offset, len(body) + 4, zlib.crc32(body))
    return entry + body


def set_bytes(magic: int, messages: Iterable[OldMessage]) -> bytes:
    """An uncompressed message set."""
    return b"".join(message_bytes(magic, message) for message in messages)


def wrapper_bytes(
    magic: int, codec: int, messages: list[OldMessage], *, broken_lz4: bool | None = None
) -> bytes:
    """A wrapper around the messages: absolute inner offsets in format 0, relative ones in 1."""
    if magic == 1:
        inner = [m._replace(offset=m.offset - messages[0].offset) for m in messages]
    else:
        inner = messages
    packed = compress(codec, set_bytes(magic, inner))
    if codec == LZ4 and (magic == 0 if broken_lz4 is None else broken_lz4):
        packed = with_lz4_checksum(packed, broken=True)
    newest = max(message.timestamp for message in messages)
    return message_bytes(magic, OldMessage(messages[-1].offset, newest, None, packed, codec))


def messages_in(data: bytes) -> list[OldMessage]:
    """All messages of a set, wrappers opened, with absolute offsets; a truncated last one ends
    it.
    """
    found: list[OldMessage] = []
    position = 0
    while position + 12 <= len(data):
        offset, size = struct.unpack_from(">qi", data, position)
        entry = data[position + 12 : position + 12 + size]
        if len(entry) < size:
            break
        position += 12 + size
        magic, message = _message(offset, entry)
        codec = message.attributes & CODEC_MASK
        if not codec:
            found.append(message)
            continue
        assert message.key is None
        assert message.value is not None
        packed = message.value
        if codec == LZ4:
            assert packed == with_lz4_checksum(packed, broken=magic == 0)
            packed = with_lz4_checksum(packed, broken=False)
        inner = messages_in(decompress(codec, packed, LIMIT))
        base = offset - inner[-1].offset if magic == 1 else 0
        if message.attributes & LOG_APPEND_TIME:
            inner = [m._replace(timestamp=message.timestamp) for m in inner]
        found += [m._replace(offset=m.offset + base) for m in inner]
        assert found[-1].offset == offset
    return found


def _message(offset: int, entry: bytes) -> tuple[int, OldMessage]:
    crc, magic, attributes = struct.unpack_from(">Ibb", entry)
    assert crc == zlib.crc32(entry[4:])
    position, timestamp = 6, -1
    if magic == 1:
        (timestamp,) = struct.unpack_from(">q", entry, position)
        position += 8
    fields: list[bytes | None] = []
    for _ in range(2):
        (size,) = struct.unpack_from(">i", entry, position)
        position += 4
        fields.append(None if size < 0 else entry[position : position + size])
        position += max(size, 0)
    assert position == len(entry)
    return magic, OldMessage(offset, timestamp, fields[0], fields[1], attributes)


# ---- LZ4's header checksum, and what clients of format 0 made of it ----


def with_lz4_checksum(frame: bytes, *, broken: bool) -> bytes:
    """The frame with the checksum over its header as specified, or over its magic number too."""
    end = 4 + (10 if frame[4] & 0x08 else 2)
    checksum = xxh32(frame[0 if broken else 4 : end]) >> 8 & 0xFF
    return frame[:end] + bytes([checksum]) + frame[end + 1 :]


def xxh32(data: bytes) -> int:
    """xxHash-32 with seed 0, for fewer than 16 bytes."""
    assert len(data) < 16
    hashed = 374761393 + len(data)
    while len(data) >= 4:
        (word,) = struct.unpack_from("<I", data)
        hashed = _rotated(hashed + word * 3266489917, 17) * 668265263
        data = data[4:]
    for byte in data:
        hashed = _rotated(hashed + byte * 374761393, 11) * 2654435761
    hashed &= _MASK
    hashed = (hashed ^ hashed >> 15) * 2246822519 & _MASK
    hashed = (hashed ^ hashed >> 13) * 3266489917 & _MASK
    return hashed ^ hashed >> 16


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> 32 - bits) & _MASK
