"""Consistency of the config table."""

from __future__ import annotations

import pytest
from support.running.in_one import in_one

from kbroker.config.broker_keys import ALIASES, BROKER_KEYS, SECTIONS, find_key
from kbroker.config.key import (
    BUILT,
    CLUSTER_WIDE,
    HIGH,
    LOW,
    MEDIUM,
    PER_BROKER,
    READ_ONLY,
    TYPE_NAMES,
    Computed,
)
from kbroker.config.table import rules
from kbroker.config.topic_keys import TOPIC_KEYS

pytestmark = pytest.mark.unit

ALL_KEYS = [*BROKER_KEYS.values(), *TOPIC_KEYS.values()]


def test_names_are_unique_over_sections_and_aliases():
    names = [key.name for _, keys in SECTIONS for key in keys]

    assert len(names) == len(set(names)) == len(BROKER_KEYS)
    assert not set(ALIASES) & set(names)


@in_one("key", ALL_KEYS)
def test_key_is_complete_and_its_default_is_allowed(key):
    assert key.type in TYPE_NAMES
    assert key.importance in (HIGH, MEDIUM, LOW)
    assert key.dynamic in (READ_ONLY, PER_BROKER, CLUSTER_WIDE)
    assert key.doc.endswith(".")
    assert key.name in key.synonyms
    default = key.default_value()
    if default is not None:
        assert key.parse(key.format(default)) == default


@in_one("key", BROKER_KEYS.values())
def test_synonyms_exist_and_agree(key):
    for name in key.synonyms:
        assert set(BROKER_KEYS[name].synonyms) >= {name}
        assert BROKER_KEYS[name].type in TYPE_NAMES


@in_one("key", TOPIC_KEYS.values())
def test_topic_key_names_broker_keys_of_its_kind(key):
    for name, factor in key.server_keys:
        server = BROKER_KEYS[name]
        assert factor > 1 or server.type == key.type, name
        assert server.status == BUILT or key.status != BUILT, name


def test_table_has_every_setting_of_the_consumer_group_protocol_in_kafka_43():
    expected = """assignment.interval.ms assignors assignor.offload.enable heartbeat.interval.ms
        max.assignment.interval.ms max.heartbeat.interval.ms max.session.timeout.ms max.size
        migration.policy min.assignment.interval.ms min.heartbeat.interval.ms
        min.session.timeout.ms regex.refresh.interval.ms session.timeout.ms"""
    found = {name for name in BROKER_KEYS if name.startswith("group.consumer.")}

    assert found == {f"group.consumer.{name}" for name in expected.split()}


def test_topic_table_has_all_of_kafka_39():
    expected = """cleanup.policy compression.type compression.gzip.level compression.lz4.level
        compression.zstd.level delete.retention.ms file.delete.delay.ms flush.messages flush.ms
        follower.replication.throttled.replicas index.interval.bytes
        leader.replication.throttled.replicas local.retention.bytes local.retention.ms
        max.compaction.lag.ms max.message.bytes message.downconversion.enable
        message.format.version message.timestamp.after.max.ms message.timestamp.before.max.ms
        message.timestamp.difference.max.ms message.timestamp.type min.cleanable.dirty.ratio
        min.compaction.lag.ms min.insync.replicas preallocate remote.log.copy.disable
        remote.log.delete.on.disable remote.storage.enable retention.bytes retention.ms
        segment.bytes segment.index.bytes segment.jitter.ms segment.ms
        unclean.leader.election.enable"""

    assert set(TOPIC_KEYS) == set(expected.split())


@pytest.mark.parametrize(
    ("cores", "network", "io"), [(1, 1, 1), (2, 1, 2), (4, 2, 4), (7, 3, 7), (64, 8, 8)]
)
def test_process_defaults_follow_the_cores(monkeypatch, cores, network, io):
    monkeypatch.setattr(rules, "core_count", lambda: cores)

    for name, count in (("num.network.threads", network), ("num.io.threads", io)):
        assert isinstance(BROKER_KEYS[name].default, Computed)
        assert BROKER_KEYS[name].default_value() == count


def test_find_key_knows_aliases():
    assert find_key("log.delete.delay.ms") is BROKER_KEYS["log.segment.delete.delay.ms"]
