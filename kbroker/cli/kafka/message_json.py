"""Records of the internal topics as the JSON that Kafka's tools print them in."""

from __future__ import annotations

import base64
import json
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from kbroker.coordinator.records.codec import RecordTypes
    from kbroker.protocol.message import Message
    from kbroker.protocol.schema import Field

_NUMBER = struct.Struct(">h")
# WIRE: the version of a record's key, whose first two bytes are its type instead.
_KEY_VERSION = 0


def compact(value: Any) -> str:
    """In one line, without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def plain(message: Any, version: int) -> dict[str, Any]:
    """The fields that this version has, by Kafka's names; tagged ones only if they are set."""
    fields = {}
    for field in type(message).STRUCT.fields:
        value = getattr(message, field.name)
        if field.in_version(version) and not _is_absent(field, value):
            fields[camel(field.name)] = _value(field, value, version)
    return fields


def _is_absent(field: Field, value: Any) -> bool:
    """Whether it is left out. A struct is not: to Kafka null is not what an absent one means."""
    return field.tag is not None and not field.is_struct and value in (field.default, [])


def camel(name: str) -> str:
    """Kafka's name of a field."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _value(field: Field, value: Any, version: int) -> Any:
    if value is None:
        return None
    if field.is_array:
        return [_element(field, each, version) for each in value]
    return _element(field, value, version)


def _element(field: Field, value: Any, version: int) -> Any:
    if field.struct is not None:
        return plain(value, version)
    if field.type == "uuid":
        from kbroker.uuids import uuid_text

        return uuid_text(bytes(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    return value


class DecodedRecord(NamedTuple):
    """number: of the record's type. key, value: their fields, value None for a tombstone. message:
    the value as it was encoded, in this version.
    """

    number: int
    key: dict[str, Any]
    version: int
    value: dict[str, Any] | None
    message: Message | None


def decoded(types: RecordTypes, key: bytes, value: bytes | None) -> DecodedRecord:
    """Raises DecodeError for what is damaged, UnknownRecordError for what is not known."""
    key_message, message = types.decode(key, value)
    (number,) = _NUMBER.unpack_from(key)
    (version,) = (0,) if message is None else _NUMBER.unpack_from(value or b"")
    content = None if message is None else plain(message, version)
    return DecodedRecord(number, plain(key_message, _KEY_VERSION), version, content, message)


def with_members(record: DecodedRecord) -> dict[str, Any] | None:
    """The fields of the value; of a classic group of consumers, also what members subscribe to and
    are assigned.
    """
    from kbroker.coordinator.records.offsets_topic import GroupMetadataValue
    from kbroker.protocol import codec
    from kbroker.protocol.codec import DecodeError
    from kbroker.protocol.messages.consumer_protocol import (
        ConsumerProtocolAssignment,
        ConsumerProtocolSubscription,
    )

    message, value = record.message, record.value
    if not isinstance(message, GroupMetadataValue) or value is None:
        return value
    if message.protocol_type != "consumer":
        return value
    kinds: dict[str, type[Message]] = {
        "subscription": ConsumerProtocolSubscription,
        "assignment": ConsumerProtocolAssignment,
    }
    for row, member in zip(value["members"], message.members, strict=True):
        for name, kind in kinds.items():
            data = bytes(getattr(member, name))
            if len(data) < _NUMBER.size:
                continue
            (its_version,) = _NUMBER.unpack_from(data)
            try:
                inner = codec.decode_exact(kind, its_version, data, _NUMBER.size)
            except (DecodeError, ValueError):
                continue  # what another client wrote: the bytes remain
            row[name] = plain(inner, its_version)
    return value
