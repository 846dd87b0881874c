"""Records as Kafka's console consumer prints them."""

from __future__ import annotations

import struct

import pytest

from kbroker._ext.client.consumer_record import ConsumerRecord
from kbroker.cli.kafka.deserializers import BadField, deserializer, java_real
from kbroker.cli.kafka.formatters import formatter

pytestmark = pytest.mark.unit

DEFAULT = "org.apache.kafka.tools.consumer.DefaultMessageFormatter"


def shown(settings: dict[str, str], **fields: object) -> bytes:
    given = {"value": b"v", "key": b"k", "timestamp": 5, "timestamp_type": 0, **fields}
    return formatter(DEFAULT, settings)(ConsumerRecord("t", 3, 7, **given))


def test_value_alone_is_a_line():
    assert shown({}) == b"v\n"
    assert shown({}, value=None) == b"null\n"


def test_all_columns_are_in_kafka_s_order():
    names = ("value", "key", "headers", "epoch", "offset", "partition", "timestamp")
    every = {f"print.{name}": "true" for name in names}

    assert shown(every, headers=[("a", b"1"), ("b", None)]) == (
        b"CreateTime:5\tPartition:3\tOffset:7\tEpoch:NOT_PRESENT\ta:1,b:null\tk\tv\n"
    )
    assert shown(every, timestamp_type=1).startswith(b"LogAppendTime:5\tPartition:3\t")
    assert b"\tNO_HEADERS\t" in shown(every)


def test_separators_and_null_are_settings():
    settings = {"print.key": "true", "key.separator": "|", "line.separator": ";"}

    assert shown({**settings, "null.literal": "-"}, key=None) == b"-|v;"
    assert shown({"print.value": "false"}) == b""


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("String", "grüße".encode(), "grüße"),
        ("Integer", b"\xff\xff\xff\xfe", "-2"),
        ("Long", (1 << 40).to_bytes(8, "big"), "1099511627776"),
        ("Short", b"\x00\x07", "7"),
        ("Double", struct.pack(">d", 1e10), "1.0E10"),
        ("Float", struct.pack(">f", 0.1), "0.1"),
        ("Boolean", b"\x01", "true"),
    ],
)
def test_java_s_deserializers_are_known(name, data, text):
    full = f"org.apache.kafka.common.serialization.{name}Deserializer"
    assert shown({"value.deserializer": full}, value=data).decode() == f"{text}\n"


def test_wrong_size_and_unknown_classes_are_errors():
    read = deserializer("org.apache.kafka.common.serialization.LongDeserializer")
    assert read is not None
    with pytest.raises(BadField, match="Size of data received by LongDeserializer is not 8"):
        read(b"x")
    with pytest.raises(KeyError):
        deserializer("com.example.Own")
    with pytest.raises(KeyError):
        formatter("com.example.Own", {})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (100.0, "100.0"), (1234567.0, "1234567.0"),
        (12345678.0, "1.2345678E7"), (0.001, "0.001"), (0.0001, "1.0E-4"), (-2.5e-7, "-2.5E-7"),
        (float("nan"), "NaN"), (float("inf"), "Infinity"),
    ],
)  # fmt: skip
def test_real_numbers_are_as_java_prints_them(value, text):
    assert java_real(value) == text
