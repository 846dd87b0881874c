"""Byte equality with kafka-python's own protocol classes, in both directions.

kafka-python 3 compiles its classes from Kafka's message specifications, with code that shares
nothing with ours. Every message and version it knows is compared.
"""

from __future__ import annotations

import random
import uuid
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
from support.network.codec_samples import SEED, message_classes, random_message, versions_of

from kbroker.protocol import codec
from kbroker.protocol.message import message_of
from kbroker.protocol.messages.api_versions import ApiVersionsResponse
from kbroker.protocol.schema import Field

protocol = pytest.importorskip("kafka.protocol.api_message", reason="needs kafka-python 3")

pytestmark = pytest.mark.wire


def their_classes() -> dict[str, Any]:
    import kafka.protocol
    from kafka.protocol.api_data import ApiData

    found = {}
    for package in ("admin", "consumer", "metadata", "producer"):
        path = [f"{kafka.protocol.__path__[0]}/{package}"]
        for info in iter_modules(path):
            module = import_module(f"kafka.protocol.{package}.{info.name}")
            for name, value in vars(module).items():
                if isinstance(value, type) and issubclass(value, (protocol.ApiMessage, ApiData)):
                    found[name] = value
    sasl = import_module("kafka.protocol.sasl")
    found |= {name: value for name, value in vars(sasl).items() if name.startswith("Sasl")}
    return found


THEIRS = their_classes()
SHARED = [cls for cls in message_classes() if cls.__name__ in THEIRS]

OWN_TAG_FIRST = 10_000  # fields of ours, which it skips (decision 0037)
OPERATIONS_UNSET = {31}  # How kafka-python reads -2**31, which means "not requested".


def their_name(name: str, theirs: Any) -> str:
    """kafka-python shortens the two ..._authorized_operations of Metadata and DescribeCluster."""
    return name if name in theirs.fields else name.partition("_")[2]


def fields_of_kafka(message: Any) -> list[Field]:
    return [field for field in message.STRUCT.fields if (field.tag or 0) < OWN_TAG_FIRST]


def reset_own_fields(message: Any) -> None:
    """To their defaults, which are not written."""
    for field in message.STRUCT.fields:
        if (field.tag or 0) >= OWN_TAG_FIRST:
            setattr(message, field.name, field.default)
        elif field.struct is not None:
            value = getattr(message, field.name)
            for inner in value or () if field.is_array else filter(None, (value,)):
                reset_own_fields(inner)


def to_theirs(message: Any, data_class: Any, version: int) -> Any:
    """Build kafka-python's object with the values of ours."""
    values = {}
    for field in fields_of_kafka(message):
        value = getattr(message, field.name)
        if not field.in_version(version) or (field.tag is not None and value is None):
            continue
        their_field = data_class._struct.fields[their_name(field.name, data_class._struct)]
        if field.struct is not None and value is not None:
            inner = their_field.data_class
            if field.is_array:
                value = [to_theirs(item, inner, version) for item in value]
            else:
                value = to_theirs(value, inner, version)
        elif field.type == "uuid" and value is not None:
            value = (
                [uuid.UUID(bytes=v) for v in value] if field.is_array else uuid.UUID(bytes=value)
            )
        elif their_field._type_str == "bitfield":
            value = {bit for bit in range(32) if value >> bit & 1}
        values[their_field.name] = value
    return data_class(version=version, **values)


def assert_equal_values(ours: Any, theirs: Any, version: int, path: str) -> None:
    """Compare a message of ours with what kafka-python decoded, field by field."""
    for field in fields_of_kafka(ours):
        if not field.in_version(version):
            continue
        expected = getattr(ours, field.name)
        their_field = theirs._struct.fields[their_name(field.name, theirs._struct)]
        actual = getattr(theirs, their_field.name)
        where = f"{path}.{field.name}"
        if field.struct is not None and expected is not None:
            pairs = [(expected, actual)]
            if field.is_array:
                assert len(expected) == len(actual), where
                pairs = list(zip(expected, actual, strict=True))
            for our_item, their_item in pairs:
                assert_equal_values(our_item, their_item, version, where)
            continue
        if field.type == "uuid":
            actual = [v and v.bytes for v in actual] if field.is_array else actual and actual.bytes
            actual = actual or bytes(16)  # They read the zero uuid as None.
        elif their_field._type_str == "bitfield":
            bits = OPERATIONS_UNSET if actual is None else actual
            actual = int.from_bytes(sum(1 << bit for bit in bits).to_bytes(4, "big"), signed=True)
        elif field.is_struct or field.type in ("bytes", "records"):
            actual = None if actual is None else bytes(actual)
        assert actual == expected, where


@pytest.mark.parametrize("cls", SHARED, ids=lambda cls: cls.__name__)
def test_every_version_agrees_with_kafka_python_byte_for_byte(cls):
    theirs = THEIRS[cls.__name__]
    bare = {} if cls.API_KEY is not None else {"header": False}
    for version in versions_of(cls):
        rng = random.Random(f"{SEED} kafka-python {cls.__name__} {version}")
        for size in (0, 1, 2, 3):
            message = random_message(cls, version, rng, size=size)
            if cls is ApiVersionsResponse:
                # Their client takes any response with an error for version 0 (KIP-511).
                message.error_code = 0
            reset_own_fields(message)
            encoded = codec.encode(message, version)

            their_bytes = to_theirs(message, theirs, version).encode(version=version, **bare)
            their_message = theirs.decode(encoded, version=version, **bare)

            assert bytes(their_bytes) == encoded, (version, SEED)
            assert_equal_values(message, their_message, version, f"{cls.__name__} v{version}")
            assert codec.decode_exact(cls, version, bytes(their_bytes)) == message


def test_kafka_python_knows_most_client_facing_messages():
    """The comparison above is worthless if it finds no classes to compare with."""
    assert len(SHARED) > 100
    assert {cls.VERSIONS[1] for cls in SHARED if cls.__name__.startswith("Fetch")} == {18}
    for cls in SHARED:
        assert THEIRS[cls.__name__]._valid_versions[1] == cls.VERSIONS[1], cls.__name__
        assert message_of(cls) is cls
