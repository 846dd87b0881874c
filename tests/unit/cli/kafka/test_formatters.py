"""Records as Kafka's console consumer prints them."""

from __future__ import annotations

import struct

import pytest

from kbroker._ext.client.consumer_record import ConsumerRecord
from kbroker.cli.kafka.deserializers import BadField, deserializer, java_real
from kbroker.cli.kafka.formatters import formatter
from kbroker.coordinator.records import offsets_topic, transaction_topic

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


def record_of(types, key, value) -> ConsumerRecord:
    coded_key, coded_value = types.encode(key, value)
    return ConsumerRecord("internal", 0, 7, coded_value, coded_key)


def test_records_of_internal_topics_are_printed_by_the_formatter_that_is_theirs():
    key = offsets_topic.OffsetCommitKey(group="g", topic="t", partition=1)
    value = offsets_topic.OffsetCommitValue(offset=5, metadata="m", commit_timestamp=7)
    record = record_of(offsets_topic.RECORDS, key, value)
    text = (
        b'{"key":{"type":1,"data":{"group":"g","topic":"t","partition":1}},"value":{"version":3,'
        b'"data":{"offset":5,"leaderEpoch":-1,"metadata":"m","commitTimestamp":7}}}'
    )

    for name in (
        "org.apache.kafka.tools.consumer.OffsetsMessageFormatter",
        "kafka.coordinator.group.GroupMetadataManager$OffsetsMessageFormatter",
        "kafka.coordinator.GroupMetadataManager$OffsetsMessageFormatter",
    ):
        assert formatter(name, {})(record) == text
    groups = formatter("org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter", {})
    assert groups(record) == b""
    key = offsets_topic.GroupMetadataKey(group="g")
    assert groups(record_of(offsets_topic.RECORDS, key, None)) == (
        b'{"key":{"type":2,"data":{"group":"g"}},"value":null}'
    )
    key = transaction_topic.TransactionLogKey(transactional_id="x")
    value = transaction_topic.TransactionLogValue(producer_id=4)
    transactions = formatter("kafka.coordinator.transaction.TransactionLog$"
                             "TransactionLogMessageFormatter", {})  # fmt: skip
    shown = transactions(record_of(transaction_topic.RECORDS, key, value))
    assert shown.startswith(b'{"key":{"type":0,"data":{"transactionalId":"x"}},"value":{"version":')


def test_internal_record_of_a_newer_broker_is_left_out_and_a_damaged_one_is_an_error():
    offsets = formatter("org.apache.kafka.tools.consumer.OffsetsMessageFormatter", {})

    assert offsets(ConsumerRecord("internal", 0, 7, b"", b"\0\x63")) == b""
    assert offsets(ConsumerRecord("internal", 0, 7, b"", None)) == b""
    with pytest.raises(ValueError, match="Could not read record at offset 7"):
        offsets(ConsumerRecord("internal", 0, 7, b"", b"\0\1\0"))
