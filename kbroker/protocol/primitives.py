"""The primitive types of the wire, unsigned varints, and the two errors of the codec.

All integers are big-endian. A compact length is an unsigned varint holding length + 1, 0 for null.
Nothing here allocates what a length claims: callers compare it with the bytes left first.
Source: Kafka protocol guide, "Protocol Primitive Types"; KIP-482 for the compact forms.
"""

from __future__ import annotations

import codecs
from typing import Any, NoReturn

Buffer = bytes | memoryview

MAX_INT16 = 0x7FFF
NO_UUID = bytes(16)
# COMPAT: how to decode bytes that are not UTF-8. Clients use other encodings in their client id, in
# group ids and in the metadata of commits; Kafka reads U+FFFD there and serves them.
FOREIGN_TEXT = "kbroker.foreign_text"


class DecodeError(ValueError):
    """Bytes from outside are not a valid message: truncated, oversized, null, ..."""


class EncodeError(ValueError):
    """A message cannot be encoded in this version; our own mistake, not a client's."""


class NotInVersion(EncodeError):
    """A field is set that the version lacks, and that may not be ignored."""


def _replace_foreign_text(error: UnicodeError) -> tuple[str, int]:
    """Decode the rest of the string, unless all of it could then be too long to be sent back."""
    if not isinstance(error, UnicodeDecodeError) or 3 * len(error.object) > MAX_INT16:
        raise error
    return error.object[error.start :].decode("utf-8", "replace"), len(error.object)


codecs.register_error(FOREIGN_TEXT, _replace_foreign_text)


class Primitive:
    """The layout of a primitive type.

    code: its letter for ``struct``, empty for types of variable length.
    size: bytes on the wire, 0 for types of variable length.
    """

    __slots__ = ("code", "default", "size")

    def __init__(self, code: str, size: int, default: Any) -> None:
        self.code = code
        self.size = size
        self.default = default


PRIMITIVES = {
    "bool": Primitive("?", 1, False),
    "int8": Primitive("b", 1, 0),
    "int16": Primitive("h", 2, 0),
    "uint16": Primitive("H", 2, 0),
    "int32": Primitive("i", 4, 0),
    "uint32": Primitive("I", 4, 0),
    "int64": Primitive("q", 8, 0),
    "float64": Primitive("d", 8, 0.0),
    "uuid": Primitive("16s", 16, NO_UUID),
    "string": Primitive("", 0, ""),
    "bytes": Primitive("", 0, b""),
    "records": Primitive("", 0, None),
}


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read an unsigned varint; returns (value below 2**32, position after it).

    IndexError at the end of the buffer, which ``codec`` turns into DecodeError.
    """
    first = buffer[position]
    if first < 0x80:
        return first, position + 1
    return read_uvarint_rest(buffer, position + 1, first)


def read_uvarint_rest(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Finish an unsigned varint whose ``first`` byte, already read, announced more."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                raise DecodeError(f"varint of {value} does not fit 32 bits")
            return value, position
    raise DecodeError("varint is longer than 5 bytes")


def encode_uvarint(value: int) -> bytes:
    """Encode ``value``, from 0 to 2**32 - 1, in as few bytes as it takes."""
    if not 0 <= value <= 0xFFFFFFFF:
        raise EncodeError(f"{value} does not fit an unsigned varint of 32 bits")
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def skip_tagged_fields(buffer: Buffer, position: int, count: int, limit: int) -> int:
    """Skip ``count`` unknown tagged fields; returns the position after them.

    ``count`` may be a varint's first byte only: 0x80 and above means that the rest follows.
    """
    if count > 0x7F:
        count, position = read_uvarint_rest(buffer, position, count)
    # BOUND: each round consumes at least two bytes, so a huge count ends with the buffer.
    for _ in range(count):
        _tag, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
        if position > limit:
            raise DecodeError(f"tagged field of {size} bytes exceeds the message")
    return position


def fail_length(path: str, length: int, left: int) -> NoReturn:
    """Reject a length or count that is negative, a forbidden null, or larger than the bytes
    left.
    """
    if length < 0:
        raise DecodeError(f"{path}: null or negative length")
    raise DecodeError(f"{path}: length {length} exceeds the {left} bytes left")


def fail_elements(path: str, most: int) -> NoReturn:
    """Reject a message whose arrays have more elements in total than allowed."""
    raise DecodeError(f"{path}: its message has more than {most} elements")


def fail_tag_size(path: str, size: int, used: int) -> NoReturn:
    """Reject a tagged field whose content has another length than its size."""
    raise DecodeError(f"{path}: tagged field of {size} bytes holds {used}")


def fail_version(path: str, version: int) -> NoReturn:
    """Reject a value that the version cannot carry and that may not be ignored."""
    raise NotInVersion(f"{path} is set, but version {version} has no such field")


def fail_uuid(path: str) -> NoReturn:
    """Reject a uuid that is not 16 bytes long; ``struct`` would pad or cut it silently."""
    raise EncodeError(f"{path}: a uuid is 16 bytes")


def fail_long_string(path: str, length: int) -> NoReturn:
    """Reject a string that no version of the protocol can carry."""
    raise EncodeError(f"{path}: a string of {length} bytes exceeds {MAX_INT16}")
