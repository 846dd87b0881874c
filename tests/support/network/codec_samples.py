"""Random messages of every definition, for the tests of the codec."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

from kbroker.coordinator.records import offsets_topic, transaction_topic
from kbroker.protocol import api
from kbroker.protocol.message import Message, message_of
from kbroker.protocol.messages import consumer_protocol, headers
from kbroker.protocol.schema import Field

SEED = int(os.environ.get("KBROKER_TEST_SEED", "20240612"))
INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint16": 16, "uint32": 32}
ALPHABET = "abcXYZ019._-äß€日本😀"


def record_classes() -> list[type[Message]]:
    """The keys and values of the internal topics' records."""
    return [*offsets_topic.RECORDS.classes(), *transaction_topic.RECORDS.classes()]


def message_classes() -> list[type[Message]]:
    """Every message class kbroker defines."""
    classes = []
    for key in api.ApiKey:
        classes += [api.request_class(key), api.response_class(key)]
    return [
        *classes,
        consumer_protocol.ConsumerProtocolSubscription,
        consumer_protocol.ConsumerProtocolAssignment,
        headers.RequestHeader,
        headers.ResponseHeader,
        *record_classes(),
    ]


def versions_of(cls: type[Message]) -> range:
    return range(cls.VERSIONS[0], cls.VERSIONS[1] + 1)


def every_version() -> Iterator[tuple[type[Message], int]]:
    for cls in message_classes():
        for version in versions_of(cls):
            yield cls, version


def random_message(cls: Any, version: int, rng: random.Random, *, size: int = 2) -> Any:
    """Build an instance with random values in the fields that ``version`` has.

    size: the most elements an array gets.
    """
    values = {}
    for field in cls.STRUCT.fields:
        if field.in_version(version):
            values[field.name] = _random_value(cls, field, version, rng, size)
    return cls(**values)


def _random_value(cls: Any, field: Field, version: int, rng: random.Random, size: int) -> Any:
    absent_struct = field.is_struct and field.tag is not None
    if (field.nullable_in(version) or absent_struct) and rng.random() < 0.3:
        return None
    if field.is_array:
        count = rng.randint(0, size)
        return [_random_element(cls, field, version, rng, size) for _ in range(count)]
    value = _random_element(cls, field, version, rng, size)
    if absent_struct and value == type(value)():
        return None  # An all-default tagged struct is not written, so it comes back absent.
    return value


def _random_element(cls: Any, field: Field, version: int, rng: random.Random, size: int) -> Any:
    if field.struct is not None:
        return random_message(getattr(message_of(cls), field.type), version, rng, size=size)
    kind = field.type
    if kind in INTEGER_BITS:
        bits = INTEGER_BITS[kind]
        low = 0 if kind.startswith("u") else -(1 << bits - 1)
        high = low + (1 << bits) - 1
        return rng.choice([low, high, 0 if low else 1, rng.randint(low, high)])
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.choice([0.0, -1.5, rng.uniform(-1e300, 1e300)])
    if kind == "uuid":
        return rng.randbytes(16)
    if kind == "string":
        return "".join(rng.choices(ALPHABET, k=rng.choice([0, 1, 5, 40])))
    # Lengths around 127 make compact lengths grow from one byte to two.
    return rng.randbytes(rng.choice([0, 1, 10, 126, 127, 128]))
