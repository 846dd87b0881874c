"""The results of DescribeConfigs."""

from __future__ import annotations

import pytest

from kbroker.config.broker_keys import BROKER_KEYS
from kbroker.config.describe import (
    ConfigEntry,
    Synonym,
    describe_broker,
    describe_broker_defaults,
    describe_topic,
)
from kbroker.config.key import INT, LIST, LONG
from kbroker.config.loader import BrokerConfig, ConfigSource
from kbroker.config.topic_config import TopicConfig
from kbroker.config.topic_keys import TOPIC_KEYS

pytestmark = pytest.mark.unit

STATIC_TEXTS = {"log.retention.hours": "1", "ssl.key.password": "hunter2"}
STATIC = BrokerConfig(STATIC_TEXTS)


def topic_entry(name: str, broker: BrokerConfig, **own: str) -> ConfigEntry:
    overrides = {key.replace("_", "."): text for key, text in own.items()}
    [entry] = describe_topic(TopicConfig(overrides, broker), broker, [name])
    return entry


def broker_entry(name: str, broker: BrokerConfig) -> ConfigEntry:
    [entry] = describe_broker(broker, [name])
    return entry


def test_topic_description_holds_every_setting():
    for names in (None, []):
        entries = describe_topic(TopicConfig({}, STATIC), STATIC, names)
        assert [entry.name for entry in entries] == list(TOPIC_KEYS)
    assert all(entry.documentation and not entry.read_only for entry in entries)


def test_topic_own_value_comes_first():
    entry = topic_entry("retention.ms", STATIC, retention_ms="5")

    assert (entry.value, entry.source, entry.type) == ("5", ConfigSource.DYNAMIC_TOPIC, LONG)
    assert not entry.is_default
    assert entry.synonyms == [Synonym("retention.ms", "5", ConfigSource.DYNAMIC_TOPIC)]


def test_topic_value_that_the_file_gives_in_another_unit_is_a_default():
    """As in Kafka: the sample file sets log.retention.hours."""
    entry = topic_entry("retention.ms", STATIC)

    assert (entry.value, entry.source, entry.synonyms) == ("3600000", ConfigSource.DEFAULT, [])
    assert entry.is_default  # for version 0: not one of the topic's own


def test_topic_value_from_the_file_is_static_and_names_every_unit():
    entry = topic_entry("retention.ms", BrokerConfig({"log.retention.ms": "7", **STATIC_TEXTS}))

    assert (entry.value, entry.source) == ("7", ConfigSource.STATIC_BROKER)
    assert entry.synonyms == [
        Synonym("log.retention.ms", "7", ConfigSource.STATIC_BROKER),
        Synonym("log.retention.hours", "1", ConfigSource.STATIC_BROKER),
        Synonym("log.retention.hours", "168", ConfigSource.DEFAULT),
    ]


def test_topic_value_of_nobody_is_default():
    entry = topic_entry("cleanup.policy", STATIC)

    assert (entry.value, entry.source, entry.type) == ("delete", ConfigSource.DEFAULT, LIST)
    assert entry.synonyms == [Synonym("log.cleanup.policy", "delete", ConfigSource.DEFAULT)]
    assert topic_entry("leader.replication.throttled.replicas", STATIC).value == ""


def test_topic_value_from_dynamic_layers():
    broker = STATIC.with_dynamic({"log.segment.bytes": "100"}, {"log.segment.bytes": "200"})

    entry = topic_entry("segment.bytes", broker)

    assert (entry.value, entry.source) == ("200", ConfigSource.DYNAMIC_BROKER)
    assert [(s.value, s.source) for s in entry.synonyms] == [
        ("200", ConfigSource.DYNAMIC_BROKER),
        ("100", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("1073741824", ConfigSource.DEFAULT),
    ]


def test_broker_description_holds_every_setting():
    entries = describe_broker(STATIC)

    assert [entry.name for entry in entries] == list(BROKER_KEYS)


def test_broker_values_are_printed_as_kafka_does():
    assert broker_entry("log.cleaner.io.buffer.load.factor", STATIC).value == "0.9"
    limit = broker_entry("log.cleaner.io.max.bytes.per.second", STATIC)
    assert limit.value == "1.7976931348623157E308"
    assert broker_entry("auto.create.topics.enable", STATIC).value == "true"
    assert broker_entry("log.retention.ms", STATIC).value is None


def test_broker_setting_is_read_only_unless_it_may_change():
    assert broker_entry("log.dirs", STATIC).read_only
    entry = broker_entry("message.max.bytes", STATIC)
    assert not entry.read_only
    assert (entry.type, entry.source, entry.is_default) == (INT, ConfigSource.DEFAULT, True)


def test_secret_is_never_shown():
    entry = broker_entry("ssl.key.password", STATIC)

    assert entry.sensitive
    assert entry.value is None
    assert entry.source == ConfigSource.STATIC_BROKER
    assert [synonym.value for synonym in entry.synonyms] == [None]


def test_unknown_names_are_left_out():
    assert describe_broker(STATIC, ["no.such"]) == []
    assert describe_topic(TopicConfig({}, STATIC), STATIC, ["no.such"]) == []


def test_defaults_for_all_brokers_are_only_the_dynamic_ones():
    broker = STATIC.with_dynamic({"log.segment.bytes": "100"}, {"num.replica.fetchers": "2"})

    [entry] = describe_broker_defaults(broker)

    assert (entry.name, entry.value) == ("log.segment.bytes", "100")
    assert entry.source == ConfigSource.DYNAMIC_DEFAULT_BROKER
    assert describe_broker_defaults(broker, ["num.replica.fetchers"]) == []
