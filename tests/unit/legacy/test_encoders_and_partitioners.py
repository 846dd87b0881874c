"""Encoders, partitioners and messages of the producer of 0.8."""

from __future__ import annotations

import pytest

from kbroker.client.errors import SettingRefused
from kbroker.legacy import (
    DefaultEncoder,
    DefaultPartitioner,
    IntegerEncoder,
    KeyedMessage,
    LongEncoder,
    Message,
    NullEncoder,
    ProducerData,
    RoundRobinPartitioner,
    StringEncoder,
)
from kbroker.legacy.encoders import EncoderOf
from kbroker.legacy.keyed_message import flattened
from kbroker.legacy.partitioners import java_abs, java_hash, partition_function

pytestmark = pytest.mark.unit

# What ``hashCode`` of String, Arrays, Integer, Long, Boolean and Double is in Java.
HASHES = (
    ("", 0),
    ("key", 106079),
    ("polygenelubricants", -2147483648),
    ("\N{GRINNING FACE}", 1772899),
    (b"", 1),
    (b"key", 135870),
    (b"\xff\x80", 802),
    (0, 0),
    (-5, -5),
    (2147483647, 2147483647),
    (2147483648, -2147483648),
    (-2147483649, -2147483648),
    (1 << 40, 256),
    (True, 1231),
    (False, 1237),
    (0.0, 0),
    (-0.0, -2147483648),
    (1.5, 1073217536),
    (float("nan"), 2146959360),
)


@pytest.mark.parametrize(("key", "expected"), HASHES)
def test_hashes_of_keys_are_javas(key, expected):
    assert java_hash(key) == expected


def test_negative_hashes_have_a_partition_and_the_smallest_has_the_first():
    assert java_abs(-5) == 5
    assert DefaultPartitioner().partition(-5, 3) == 2
    assert DefaultPartitioner().partition("polygenelubricants", 3) == 0


@pytest.mark.parametrize("key", [("a", 1), [1], 1 << 63, object()])
def test_other_keys_need_a_partitioner(key):
    with pytest.raises(TypeError, match=r"set partitioner\.class"):
        DefaultPartitioner().partition(key, 3)


def test_round_robin_goes_over_all_partitions():
    one = RoundRobinPartitioner()

    assert sorted(one.partition("same", 4) for _ in range(8)) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert partition_function(one)[1]


def test_encoders_of_0_8_make_its_bytes():
    for encoder, data, expected in (
        (DefaultEncoder(), b"x", b"x"),
        (DefaultEncoder(), bytearray(b"x"), b"x"),
        (DefaultEncoder(), None, None),
        (StringEncoder(), "\N{EURO SIGN}", b"\xe2\x82\xac"),
        (StringEncoder("latin-1"), "é", b"\xe9"),
        (StringEncoder(), None, None),
        (NullEncoder(), "anything", None),
        (IntegerEncoder(), -2, b"\xff\xff\xff\xfe"),
        (LongEncoder(), 1 << 32, b"\0\0\0\1\0\0\0\0"),
        (IntegerEncoder(), None, None),
        (LongEncoder(), None, None),
    ):
        assert encoder.to_bytes(data) == expected
    with pytest.raises(TypeError, match=r"bytes, and not str: set serializer\.class"):
        DefaultEncoder().to_bytes("x")


def test_encoders_are_objects_with_one_of_two_methods_or_callables():
    class ToMessage:
        def to_message(self, data):
            return Message(data * 2)

    for given, expected in (
        (ToMessage(), b"xx"),
        (lambda data: data + b"!", b"x!"),
        (lambda data: Message(data), b"x"),
        (DefaultEncoder(), b"x"),
    ):
        made = EncoderOf("serializer.class", given)
        assert made.to_bytes(b"x") == expected
        assert made.to_message(b"x") == made(b"x") == Message(expected)
    with pytest.raises(SettingRefused):
        EncoderOf("serializer.class", object())


def test_messages_are_written_as_in_0_8_or_with_keywords():
    assert KeyedMessage("t", "m") == KeyedMessage(topic="t", message="m")
    assert KeyedMessage("t", "k", "m") == KeyedMessage("t", "m", key="k")
    four = KeyedMessage("t", "k", "p", "m")
    assert (four.key, four.part_key, four.message) == ("k", "p", "m")
    assert (four.partition_key, four.has_key) == ("p", True)
    assert KeyedMessage("t", "k", "m").partition_key == "k"
    assert KeyedMessage("t", None).message is None
    assert repr(four) == "KeyedMessage(topic='t', key='k', message='m')"
    for wrong in (
        lambda: KeyedMessage("t"),
        lambda: KeyedMessage("t", 1, 2, 3, 4),
        lambda: KeyedMessage("t", 1, message=2),
        lambda: KeyedMessage("t", 1, 2, key=3),
        lambda: KeyedMessage("", "m"),
        lambda: KeyedMessage(None, "m"),
    ):
        with pytest.raises(TypeError):
            wrong()


def test_what_is_sent_is_a_message_or_data_of_one_or_many_or_a_list():
    data = ProducerData("t", "k", ["a", "b"])

    found = flattened([KeyedMessage("t", "m"), data, [ProducerData("u", data=None), data]])

    rows = [(one.topic, one.key, one.message) for one in found]
    twice = [("t", "k", "a"), ("t", "k", "b")]
    assert rows == [("t", None, "m"), *twice, ("u", None, None), *twice]
    with pytest.raises(TypeError, match="KeyedMessage"):
        flattened(["text"])
