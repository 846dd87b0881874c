"""The settings of the consumer of 0.8.2."""

from __future__ import annotations

import pytest

from kbroker.client.errors import SettingRefused
from kbroker.legacy.zookeeper_consumer.zookeeper_consumer_settings import (
    SETTINGS,
    ConsumerConfig,
)

pytestmark = pytest.mark.unit

NEEDED = {"group.id": "g", "zookeeper.connect": "localhost:2181"}
# The table of the 0.8.2 documentation (CFG-C-01 to 27).
DEFAULTS = {
    "consumer.id": None,
    "socket.timeout.ms": 30 * 1000,
    "socket.receive.buffer.bytes": 64 * 1024,
    "fetch.message.max.bytes": 1024 * 1024,
    "auto.commit.enable": True,
    "auto.commit.interval.ms": 60 * 1000,
    "queued.max.message.chunks": 10,
    "rebalance.max.retries": 4,
    "fetch.min.bytes": 1,
    "fetch.wait.max.ms": 100,
    "rebalance.backoff.ms": 2000,
    "refresh.leader.backoff.ms": 200,
    "auto.offset.reset": "largest",
    "consumer.timeout.ms": -1,
    "exclude.internal.topics": True,
    "partition.assignment.strategy": "range",
    "client.id": "g",
    "zookeeper.session.timeout.ms": 6000,
    "zookeeper.connection.timeout.ms": 6000,
    "zookeeper.sync.time.ms": 2000,
    "offsets.storage": "zookeeper",
    "offsets.channel.backoff.ms": 1000,
    "offsets.channel.socket.timeout.ms": 10000,
    "offsets.commit.max.retries": 5,
    "dual.commit.enabled": True,
}


def test_defaults_are_those_of_the_documentation():
    config = ConsumerConfig(NEEDED)
    assert {name: config[name] for name in DEFAULTS} == DEFAULTS
    assert set(SETTINGS) == {*DEFAULTS, *NEEDED, "num.consumer.fetchers"}


@pytest.mark.parametrize("missing", NEEDED)
def test_group_and_zookeeper_are_required(missing):
    with pytest.raises(SettingRefused, match=f"{missing}: it is required"):
        ConsumerConfig({name: value for name, value in NEEDED.items() if name != missing})


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("auto.commit.enabled", "auto.commit.enable"),
        ("fetch.message.max.byte", "fetch.message.max.bytes"),
        ("zookeeper.conect", "zookeeper.connect"),
        ("zk.sessiontimeout.ms", "zookeeper.session.timeout.ms"),
    ],
)
def test_an_unknown_setting_names_the_nearest(given, nearest):
    with pytest.raises(SettingRefused, match=f"did you mean {nearest}") as raised:
        ConsumerConfig({**NEEDED, given: "1"})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("rebalance.max.retries", "0", "at least 1"),
        ("num.consumer.fetchers", "x", "not a whole number"),
        ("auto.commit.enable", "yes", "neither true nor false"),
        ("offsets.storage", "zk", "not one of zookeeper, kafka"),
        ("partition.assignment.strategy", "sticky", "not one of range, roundrobin"),
        ("auto.offset.reset", "smalest", "did you mean smallest?"),
        ("auto.offset.reset", "", "did you mean smallest, largest or none?"),
        ("group.id", "a b", "letters, digits"),
        ("group.id", "", "letters, digits"),
        ("client.id", "a/b", "letters, digits"),
        ("zookeeper.connect", "host:x", "'host:x' is not host:port"),
        ("zookeeper.connect", "a:1,,b:2", "'' is not host:port"),
        ("zookeeper.connect", "/chroot", "'' is not host:port"),
        ("consumer.timeout.ms", "-2", "-2 is not allowed: -1 to"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(name, value, advice):
    with pytest.raises(SettingRefused, match=advice) as raised:
        ConsumerConfig({**NEEDED, name: value})
    assert raised.value.setting == name and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "read"),
    [("Smallest", "smallest"), ("earliest", "smallest"), ("latest", "largest"), ("none", "none"),
     ("disable", "disable")],
)  # fmt: skip
def test_reset_is_an_end_of_the_log_or_another_word(given, read):
    assert ConsumerConfig({**NEEDED, "auto.offset.reset": given})["auto.offset.reset"] == read


@pytest.mark.parametrize(
    ("given", "read"),
    [("a:1, b:2/x/y/", "a:1,b:2/x/y"), ("a", "a"), ("a:1/", "a:1")],
)
def test_the_address_of_zookeeper_may_have_a_path(given, read):
    assert ConsumerConfig({**NEEDED, "zookeeper.connect": given})["zookeeper.connect"] == read


def test_the_pause_between_attempts_follows_the_sync_time():
    assert ConsumerConfig(NEEDED, zookeeper_sync_time_ms=300)["rebalance.backoff.ms"] == 300
    assert ConsumerConfig(NEEDED, rebalance_backoff_ms=5).seconds("rebalance.backoff.ms") == 0.005


def test_a_file_is_read(tmp_path):
    path = tmp_path / "consumer.properties"
    path.write_text("# mine\ngroup.id=g\nzookeeper.connect=h:1/kafka\nauto.offset.reset=smallest\n")
    config = ConsumerConfig.from_file(str(path), group_id="other")
    found = [config[name] for name in ("group.id", "zookeeper.connect", "auto.offset.reset")]
    assert found == ["other", "h:1/kafka", "smallest"]
    with pytest.raises(SettingRefused, match="cannot read it"):
        ConsumerConfig.from_file(str(tmp_path / "none"))
