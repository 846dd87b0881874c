"""Messages and log files of Kafka 0.7, for those who name this module: its formats have the numbers
of later ones, 0 and 1, so data does not tell which it is.

WIRE: length int32; then magic 0, the CRC-32 of the payload and the payload, or magic 1,
attributes, CRC-32 and payload. The attributes name a codec, 1 gzip or 2 snappy, whose payload is
messages again. An offset is the position of a message in the bytes of its partition; a file is
named by its first.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kbroker.batch_errors import DecompressionError
from kbroker.client.legacy.legacy_errors import InvalidMessage
from kbroker.record.compression import GZIP, NONE, SNAPPY, compress, decompress

_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
# WIRE: what precedes the payload, by magic.
_HEADER_BYTES = {0: 5, 1: 6}
_CODECS = (NONE, GZIP, SNAPPY)
_CODEC_MASK = 3
# BOUND: of the messages that are compressed in one.
_DECOMPRESSED_MAX = 1 << 27
ENDING = ".kafka"


class Message07(NamedTuple):
    """A message. offset, next_offset: positions of its first byte and behind it; of one that was
    compressed, those of the message that contains it.
    """

    offset: int
    next_offset: int
    payload: bytes
    magic: int
    codec: int


def encode_07(payloads: Iterable[bytes], *, codec: int = NONE, magic: int = 1) -> bytes:
    """Messages one behind the other; with a codec, one that contains them all."""
    plain = b"".join(_entry(payload, magic, NONE) for payload in payloads)
    if codec == NONE:
        return plain
    if magic == 0 or codec not in _CODECS:
        raise ValueError(f"messages of magic {magic} of 0.7 have no codec {codec}")
    return _entry(compress(codec, plain), magic, codec)


def _entry(payload: bytes, magic: int, codec: int) -> bytes:
    head = bytes((magic, codec) if magic else (magic,))
    body = head + _CRC.pack(zlib.crc32(payload)) + payload
    return _LENGTH.pack(len(body)) + body


def read_07(data: bytes | memoryview | Any, first_offset: int = 0) -> Iterator[Message07]:
    """The messages in any buffer, those that are compressed instead of what contains them.

    Ends before a message that is not complete. Raises InvalidMessage.
    """
    for found in _entries(data, first_offset):
        yield from _opened(found) if found.codec else (found,)


def _entries(data: bytes | memoryview | Any, first_offset: int) -> Iterator[Message07]:
    position = 0
    while position + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, position)
        start, end = position + _LENGTH.size, position + _LENGTH.size + length
        if length <= 0:
            raise InvalidMessage(f"a message of {length} bytes at {first_offset + position}")
        if end > len(data):
            return
        yield _read(bytes(data[start:end]), first_offset + position, first_offset + end)
        position = end


def _read(body: bytes, offset: int, next_offset: int) -> Message07:
    magic = body[0]
    header = _HEADER_BYTES.get(magic)
    if header is None or len(body) < header:
        raise InvalidMessage(f"no message of 0.7 is at {offset}")
    payload = body[header:]
    if _CRC.unpack_from(body, header - _CRC.size)[0] != zlib.crc32(payload):
        raise InvalidMessage(f"the message at {offset} does not match its checksum")
    codec = body[1] & _CODEC_MASK if magic else NONE
    if codec not in _CODECS:
        raise InvalidMessage(f"the message at {offset} has the unknown codec {codec}")
    return Message07(offset, next_offset, payload, magic, codec)


def _opened(wrapper: Message07) -> Iterator[Message07]:
    try:
        content = decompress(wrapper.codec, wrapper.payload, _DECOMPRESSED_MAX)
    except DecompressionError as error:
        raise InvalidMessage(f"the messages at {wrapper.offset}: {error}") from error
    for message in _entries(content, 0):
        if message.codec:
            raise InvalidMessage(f"compressed messages in compressed ones at {wrapper.offset}")
        yield message._replace(offset=wrapper.offset, next_offset=wrapper.next_offset)


def read_07_log(directory: str | Path) -> Iterator[Message07]:
    """All messages of a partition's directory, in order, with their offsets."""
    paths = [path for path in Path(directory).iterdir() if path.suffix == ENDING]
    for path in sorted(paths, key=lambda path: int(path.stem)):
        if not path.stat().st_size:
            continue
        with open(path, "rb") as file:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                yield from read_07(mapped, int(path.stem))
