"""The settings of the producer of 0.8: its defaults, its older names, and what is refused."""

from __future__ import annotations

import pytest

from kbroker.client.errors import SettingRefused
from kbroker.legacy import (
    ByteArrayPartitioner,
    CallbackHandler,
    DefaultEncoder,
    DefaultEventHandler,
    LongEncoder,
    ProducerConfig,
    RoundRobinPartitioner,
    StringEncoder,
)
from kbroker.legacy.producer_config import SETTINGS

pytestmark = pytest.mark.unit

PLACE = {"metadata.broker.list": "h:1"}
# The table of the documentation of 0.8.2.
DEFAULTS = {
    "request.required.acks": 0,
    "request.timeout.ms": 10_000,
    "producer.type": "sync",
    "compression.codec": "none",
    "compressed.topics": (),
    "message.send.max.retries": 3,
    "retry.backoff.ms": 100,
    "topic.metadata.refresh.interval.ms": 600_000,
    "queue.buffering.max.ms": 5_000,
    "queue.buffering.max.messages": 10_000,
    "queue.enqueue.timeout.ms": -1,
    "batch.num.messages": 200,
    "send.buffer.bytes": 102_400,
    "client.id": "",
}
# All that the documents of 0.8.2 and 0.7 name.
NAMES = (
    *DEFAULTS,
    *("metadata.broker.list", "serializer.class", "key.serializer.class", "partitioner.class"),
    *("queue.time", "batch.size", "event.handler", "callback.handler", "zk.connect", "broker.list"),
)


def refused(name: str, **given: object) -> str:
    with pytest.raises(SettingRefused) as caught:
        ProducerConfig({**PLACE, **{key.replace("_", "."): value for key, value in given.items()}})
    assert caught.value.setting == name
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_defaults_are_those_of_0_8_2():
    config = ProducerConfig(PLACE)

    assert {name: config[name] for name in DEFAULTS} == DEFAULTS
    assert type(config["serializer.class"]) is DefaultEncoder
    assert config["key.serializer.class"] is config["serializer.class"]
    assert type(config["event.handler"]) is DefaultEventHandler
    assert config["callback.handler"] is None


def test_every_setting_has_an_effect():
    assert [name for name in NAMES if name not in SETTINGS] == []
    assert [name for name, row in SETTINGS.items() if row.no_effect] == []


def test_brokers_are_named_in_one_of_three_ways():
    assert ProducerConfig(metadata_broker_list="a:1, b:2").seeds == [("a", 1), ("b", 2)]
    older = ProducerConfig({"broker.list": "0:a:1,17:[::1]:2,127.0.0.1:3"})
    assert older.seeds == [("a", 1), ("::1", 2), ("127.0.0.1", 3)]
    assert ProducerConfig({"zk.connect": "z:2181/kafka"}).seeds == []
    with pytest.raises(SettingRefused, match=r"metadata\.broker\.list: write host:port"):
        ProducerConfig()
    assert "metadata.broker.list says already" in refused("zk.connect", zk_connect="z:2181")
    with pytest.raises(SettingRefused, match=r"broker\.list: 'a' is not host:port"):
        ProducerConfig({"broker.list": "a"})


def test_names_of_0_7_mean_those_of_0_8():
    config = ProducerConfig({**PLACE, "queue.time": "20", "batch.size": 7})

    assert (config["queue.buffering.max.ms"], config["batch.num.messages"]) == (20, 7)
    assert "also as batch.num.messages" in refused("batch.size", batch_size=7, batch_num_messages=7)


def test_unknown_settings_are_refused_with_the_nearest():
    hints = {
        "request_requird_acks": "request.required.acks",
        "acks": "request.required.acks",
        "bootstrap_servers": "metadata.broker.list",
        "linger_ms": "queue.buffering.max.ms",
        "compression_type": "compression.codec",
    }
    for wrong, right in hints.items():
        name = wrong.replace("_", ".")
        assert refused(name, **{wrong: 1}) == (
            f"{name}: unknown client setting; did you mean {right}?"
        )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("request.required.acks", -2, "-1 to 32767"),
        ("request.required.acks", "all", "not a whole number"),
        ("request.timeout.ms", 0, "at least 1"),
        ("producer.type", "asynch", "one of sync, async"),
        ("compression.codec", "zstd", "one of none, gzip, snappy, lz4"),
        ("compression.codec", 4, "one of none, gzip, snappy, lz4"),
        ("message.send.max.retries", -1, "at least 0"),
        ("queue.buffering.max.messages", 0, "at least 1"),
        ("queue.buffering.max.messages", 100, "at least batch.num.messages, which is 200"),
        ("client.id", "a b", "letters"),
        ("serializer.encoding", "utf-9", "no encoding"),
        ("serializer.class", "no.such.Encoder", "cannot load"),
        ("serializer.class", "kafka.serializer.AvroEncoder", "in Java"),
        ("partitioner.class", "kafka.producer.MyPartitioner", "RoundRobinPartitioner"),
        ("serializer.class", 5, "has no to_bytes"),
        ("key.serializer.class", 5, "has no to_bytes"),
        ("partitioner.class", 5, "has no partition"),
        ("event.handler", 5, "has no init"),
        ("callback.handler", 5, "has no before_enqueue"),
    ],
)
def test_values_that_are_not_allowed_are_refused(name, value, words):
    assert words in refused(name, **{name: value})


def test_classes_are_given_by_javas_name_by_a_path_by_a_class_or_as_objects():
    given = ProducerConfig(
        PLACE,
        serializer_class="kafka.serializer.StringEncoder",
        key_serializer_class=LongEncoder,
        partitioner_class="kafka.producer.ByteArrayPartitioner",
        callback_handler="kbroker.legacy.event_handlers.CallbackHandler",
        serializer_encoding="UTF-16BE",
    )

    assert type(given["serializer.class"]) is StringEncoder
    assert given.encoder.to_bytes("é") == b"\x00\xe9"
    assert type(given["key.serializer.class"]) is LongEncoder
    assert type(given["partitioner.class"]) is ByteArrayPartitioner
    assert type(given["callback.handler"]) is CallbackHandler
    short = ProducerConfig(PLACE, partitioner_class="RoundRobinPartitioner")
    assert type(short["partitioner.class"]) is RoundRobinPartitioner
    assert short.takes_null_keys
    own = ProducerConfig(PLACE, partitioner_class=lambda key, count: count - 1)
    assert own.partition("k", 3) == 2
    assert not own.takes_null_keys


def test_init_of_a_plug_in_is_called_once_with_the_settings():
    class Counting:
        calls = 0

        def init(self, config):
            self.calls += 1
            self.name = config["client.id"]

        def to_bytes(self, data):
            return b"x"

        def partition(self, key, count):
            return 0

    one = Counting()
    ProducerConfig(PLACE, serializer_class=one, partitioner_class=one, client_id="me")

    assert (one.calls, one.name) == (1, "me")


def test_properties_file_of_0_8_is_read(tmp_path):
    path = tmp_path / "producer.properties"
    path.write_text(
        "# comment\nmetadata.broker.list=localhost:9092\nproducer.type=sync\n"
        "compression.codec=2\nserializer.class=kafka.serializer.DefaultEncoder\n"
    )
    config = ProducerConfig.from_file(str(path), client_id="c")

    assert config.seeds == [("localhost", 9092)]
    assert (config["compression.codec"], config["client.id"]) == ("snappy", "c")


def test_every_default_may_be_set():
    for name, value in DEFAULTS.items():
        assert ProducerConfig({**PLACE, name: value})[name] == value
        if value != ():
            assert ProducerConfig({**PLACE, name: str(value)})[name] == value
