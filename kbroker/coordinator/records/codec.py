"""Keys and values of the internal topics' records.

A key is an int16 that names the type of the record, then the key's fields in version 0. A value is
an int16 version, then the fields; a null value (a tombstone) deletes what the key names.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from kbroker.protocol import codec
from kbroker.protocol.codec import DecodeError
from kbroker.protocol.message import Message

_NUMBER = struct.Struct(">h")


class UnknownRecordError(ValueError):
    """A record of a type or value version that a newer broker wrote."""


class _Type(NamedTuple):
    number: bytes
    value: type[Message]
    version: bytes
    value_version: int


class RecordTypes:
    """The record types of one topic.

    rows: (number, class of the key, class of the value, version in which values are written).
    """

    __slots__ = ("_by_key", "_by_number")

    def __init__(self, *rows: tuple[int, type[Message], type[Message], int]) -> None:
        self._by_number = {number: (key, value) for number, key, value, _ in rows}
        self._by_key = {
            key: _Type(_NUMBER.pack(number), value, _NUMBER.pack(version), version)
            for number, key, value, version in rows
        }

    def encode(
        self, key: Any, value: Any, version: int | None = None
    ) -> tuple[bytes, bytes | None]:
        """The bytes of one record. version: of the value, if not the default one.

        Key and value are messages, value None for a tombstone; or both are encoded already.
        """
        if type(key) is bytes:
            return key, value
        known = self._by_key[type(key)]
        coded = bytearray(known.number)
        codec.encode_into(key, 0, coded)
        if value is None:
            return bytes(coded), None
        assert type(value) is known.value, (key, value)
        if version is None:
            body = bytearray(known.version)
            codec.encode_into(value, known.value_version, body)
        else:
            body = bytearray(_NUMBER.pack(version))
            codec.encode_into(value, version, body)
        return bytes(coded), bytes(body)

    def decode(self, key: bytes | None, value: bytes | None) -> tuple[Message, Message | None]:
        """The key and the value, None for a tombstone.

        Raises UnknownRecordError for what a newer broker wrote, DecodeError for what is damaged.
        """
        if key is None or len(key) < _NUMBER.size:
            raise DecodeError("a record without a key")
        (number,) = _NUMBER.unpack_from(key)
        known = self._by_number.get(number)
        if known is None:
            raise UnknownRecordError(f"record type {number}")
        decoded = codec.decode_exact(known[0], 0, key, _NUMBER.size)
        if value is None:
            return decoded, None
        if len(value) < _NUMBER.size:
            raise DecodeError("a value without a version")
        (version,) = _NUMBER.unpack_from(value)
        first, last = known[1].VERSIONS
        if not first <= version <= last:
            raise UnknownRecordError(f"version {version} of {known[1].__name__}")
        return decoded, codec.decode_exact(known[1], version, value, _NUMBER.size)

    def classes(self) -> list[type[Message]]:
        """Every key and value class."""
        return [cls for pair in self._by_number.values() for cls in pair]
