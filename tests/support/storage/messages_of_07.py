"""Messages of Kafka 0.7 as documents describe them, written and read byte by byte: the oracle of
``_ext/legacy/messages_07.pyx``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from kbroker.batch_errors import DecompressedTooLargeError, DecompressionError
from kbroker.record.batch import RecordBatch
from kbroker.record.compression import compress, decompress

DEPTH_MAX = 4


def message(payload: bytes, magic: int = 0, attributes: int = 0, crc: int | None = None) -> bytes:
    """With its length."""
    crc = zlib.crc32(payload) if crc is None else crc
    head = bytes([magic]) if magic == 0 else struct.pack(">bb", magic, attributes)
    body = head + struct.pack(">I", crc)
    return struct.pack(">i", len(body) + len(payload)) + body + payload


def compressed(codec: int, *messages: bytes) -> bytes:
    return message(compress(codec, b"".join(messages)), 1, codec)


class Found(NamedTuple):
    """payloads: of all records. starts: (position, index of its first record) of each message of
    the log. bad: (position, count). consumed: bytes.
    """

    payloads: list[bytes]
    starts: list[tuple[int, int]]
    bad: list[tuple[int, int]]
    consumed: int


def read(data: bytes, decompressed_max: int = 1 << 20) -> Found:
    payloads: list[bytes] = []
    starts: list[tuple[int, int]] = []
    bad: list[tuple[int, int]] = []
    position = 0
    while position < len(data):
        size = _size(data, position)
        if size is None:
            break
        wrong = _bad_header(data[position : position + size])
        if wrong:
            bad.append((position, 1))
        else:
            starts.append((position, len(payloads)))
            count = _take(data[position : position + size], payloads, 0, [decompressed_max])
            if count:
                bad.append((position, count))
        position += size
    return Found(payloads, starts, bad, position)


def _size(data: bytes, at: int) -> int | None:
    """None if the message is cut, or its length is impossible."""
    if len(data) - at < 4:
        return None
    (length,) = struct.unpack_from(">i", data, at)
    return None if length < 5 or length > len(data) - at - 4 else length + 4


def _parts(entry: bytes) -> tuple[int, int, bytes]:
    """Codec, checksum, payload."""
    if entry[4] == 0:
        return 0, int.from_bytes(entry[5:9], "big"), entry[9:]
    return entry[5] & 3, int.from_bytes(entry[6:10], "big"), entry[10:]


def _bad_header(entry: bytes) -> bool:
    if entry[4] > 1 or (entry[4] == 1 and len(entry) < 10):
        return True
    _, crc, payload = _parts(entry)
    return zlib.crc32(payload) != crc


def _take(entry: bytes, payloads: list[bytes], depth: int, left: list[int]) -> int:
    """How many messages are bad."""
    codec, _, payload = _parts(entry)
    if not codec:
        payloads.append(payload)
        return 0
    if depth == DEPTH_MAX or codec == 3:
        return 1
    try:
        content = decompress(codec, payload, left[0])
    except (DecompressedTooLargeError, DecompressionError):
        return 1
    left[0] -= len(content)
    bad = at = 0
    while at < len(content):
        size = _size(content, at)
        if size is None:
            return bad + 1
        inner = content[at : at + size]
        bad += 1 if _bad_header(inner) else _take(inner, payloads, depth + 1, left)
        at += size
    return bad


def records_of(batches: Iterable[tuple[bytearray, int]]) -> list[bytes | None]:
    """The values in batches; all checks are made."""
    found: list[bytes | None] = []
    for data, count in batches:
        batch = RecordBatch(bytes(data))
        assert batch.size == len(data)
        batch.check(1 << 30)
        records = batch.records(1 << 30)
        assert len(records) == count == batch.record_count
        assert {record.key for record in records} == {None}
        found += [record.value for record in records]
    return found
