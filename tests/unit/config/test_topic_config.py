"""Topic configs over the broker's."""

from __future__ import annotations

import pytest

from kbroker.config import topic_config
from kbroker.config.key import LONG_MAX
from kbroker.config.loader import BrokerConfig
from kbroker.config.topic_config import TopicConfig, validate, validate_topic
from kbroker.errors import ConfigError

pytestmark = pytest.mark.unit

BROKER = BrokerConfig({"log.retention.hours": "1", "log.segment.bytes": "1000"})


def test_topic_without_settings_follows_the_broker():
    topic = TopicConfig({}, BROKER)

    assert topic["retention.ms"] == 3_600_000
    assert topic["segment.bytes"] == 1000
    assert topic["max.message.bytes"] == 1_048_588
    assert topic["flush.ms"] == 1000
    assert topic["cleanup.policy"] == ("delete",)
    assert not topic.is_set("retention.ms")


def test_topic_setting_wins_over_the_broker():
    topic = TopicConfig({"retention.ms": "5", "cleanup.policy": "compact, delete"}, BROKER)

    assert topic["retention.ms"] == 5
    assert topic["cleanup.policy"] == ("compact", "delete")
    assert topic["segment.bytes"] == 1000
    assert topic.overrides == {"retention.ms": "5", "cleanup.policy": "compact, delete"}


def test_topic_follows_a_dynamic_change_of_the_broker():
    changed = BROKER.with_dynamic({"log.segment.bytes": "2000"}, {})

    assert TopicConfig({}, changed)["segment.bytes"] == 2000


def test_stored_name_that_does_not_exist_is_kept_and_means_nothing():
    topic = TopicConfig({"from.the.future": "1"}, BROKER)

    assert topic.overrides == {"from.the.future": "1"}
    with pytest.raises(KeyError):
        topic["from.the.future"]


def test_unlimited_broker_retention_reaches_the_topic():
    broker = BrokerConfig({"log.retention.hours": "-1"})

    assert broker.topic_defaults["retention.ms"] == -1
    assert TopicConfig({}, broker)["retention.ms"] == -1


def test_older_timestamp_bound_counts_where_the_newer_is_unset():
    topic = TopicConfig(
        {"message.timestamp.difference.max.ms": "7", "message.timestamp.after.max.ms": "3"}, BROKER
    )

    assert topic.timestamp_before_max_ms == 7
    assert topic.timestamp_after_max_ms == 3
    assert TopicConfig({}, BROKER).timestamp_after_max_ms == 3_600_000
    assert TopicConfig({}, BROKER).timestamp_before_max_ms == LONG_MAX


def test_validate_gives_the_typed_value():
    assert validate("segment.ms", "60000") == 60000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention.ms", "-2"),
        ("retention.ms", "soon"),
        ("segment.bytes", "13"),
        ("cleanup.policy", "shred"),
        ("compression.type", "rar"),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("min.insync.replicas", "0"),
        ("remote.storage.enable", "true"),
        ("follower.replication.throttled.replicas", "1-2"),
        ("log.segment.bytes", "1000"),
    ],
)
def test_validate_refuses_what_is_not_allowed(name, text):
    with pytest.raises(ConfigError):
        validate(name, text)


@pytest.mark.parametrize("text", ["*", "none", "", "0:1,12:3"])
def test_throttled_replicas_take_pairs_or_a_star(text):
    validate("leader.replication.throttled.replicas", text)


def test_unknown_topic_setting_names_the_nearest():
    with pytest.raises(ConfigError, match=r"retention\.ms\?"):
        validate("retension.ms", "1")


def test_topic_as_a_whole_is_checked():
    validate_topic({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"}, BROKER)
    with pytest.raises(ConfigError) as raised:
        validate_topic({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"}, BROKER)
    assert raised.value.key == "max.compaction.lag.ms"

    with pytest.raises(ConfigError):
        validate_topic({"no.such": "1"}, BROKER)


def test_nearest_name_is_looked_for_a_few_times_in_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """10,000 topics with a wrong config blocked the controller for more than two seconds."""
    now = [5.0]
    looks = []
    monkeypatch.setattr(topic_config.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(topic_config, "_hints", topic_config._Hints())
    monkeypatch.setattr(
        topic_config, "_nearest", lambda name, known: looks.append(name) or "retention.ms"
    )

    def texts(count: int) -> list[str]:
        return [str(topic_config.unknown_name(f"retention.m{n}", "1", {})) for n in range(count)]

    most = topic_config.HINTS_PER_SECOND_MAX
    first = texts(1000)
    now[0] += 1
    second = texts(1)

    assert len(looks) == most + 1
    assert all(text.endswith("did you mean retention.ms?") for text in [*first[:most], *second])
    assert all(text.endswith("expected a known setting") for text in first[most:])
