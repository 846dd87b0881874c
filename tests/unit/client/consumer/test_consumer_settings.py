"""The consumer's settings: Java's defaults, and what they need of one another."""

from __future__ import annotations

import pytest

from kbroker.client.consumer.consumer_settings import SETTINGS, consumer_settings, duration_ms
from kbroker.client.errors import SettingRefused

pytestmark = pytest.mark.unit

# Java's ConsumerConfig of 4.3, without those of security and of Java's own plug-ins.
OF_JAVA = (
    "bootstrap.servers client.dns.lookup group.id group.instance.id session.timeout.ms "
    "heartbeat.interval.ms partition.assignment.strategy metadata.max.age.ms enable.auto.commit "
    "auto.commit.interval.ms client.id client.rack max.partition.fetch.bytes send.buffer.bytes "
    "receive.buffer.bytes fetch.min.bytes fetch.max.bytes fetch.max.wait.ms reconnect.backoff.ms "
    "reconnect.backoff.max.ms retry.backoff.ms retry.backoff.max.ms auto.offset.reset check.crcs "
    "metrics.sample.window.ms metrics.num.samples metrics.recording.level metric.reporters "
    "key.deserializer value.deserializer request.timeout.ms default.api.timeout.ms "
    "socket.connection.setup.timeout.ms socket.connection.setup.timeout.max.ms "
    "connections.max.idle.ms interceptor.classes max.poll.records max.poll.interval.ms "
    "exclude.internal.topics isolation.level allow.auto.create.topics group.protocol "
    "group.remote.assignor enable.metrics.push metadata.recovery.strategy "
    "metadata.recovery.rebootstrap.trigger.ms"
).split()


def settings(**keywords):
    return consumer_settings({"bootstrap.servers": "h:1"}, keywords)


def test_all_settings_of_java_are_there_with_its_defaults():
    found = settings(group_id="g")

    assert [name for name in OF_JAVA if name not in SETTINGS] == []
    assert found["session.timeout.ms"] == 45_000
    assert found["heartbeat.interval.ms"] == 3_000
    assert found["max.poll.records"] == 500
    assert found["fetch.max.bytes"] == 52_428_800
    assert found["auto.offset.reset"] == "latest"
    assert found["enable.auto.commit"] is True
    assert found["partition.assignment.strategy"] == ("range", "cooperative-sticky")


def test_without_a_group_nothing_is_committed_by_itself():
    assert settings()["enable.auto.commit"] is False
    with pytest.raises(SettingRefused, match=r"group\.id"):
        settings(enable_auto_commit=True)
    with pytest.raises(SettingRefused, match=r"group\.id"):
        settings(group_instance_id="i")
    with pytest.raises(SettingRefused, match=r"group\.id"):
        settings(group_id=" ")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("earliest", "earliest"),
        ("LATEST", "latest"),
        ("smallest", "earliest"),
        ("by_duration:PT1H30M", "by_duration:PT1H30M"),
    ],
)
def test_reset_policies(given, read):
    assert settings(auto_offset_reset=given)["auto.offset.reset"] == read


@pytest.mark.parametrize("given", ["soonest", "by_duration:", "by_duration:1h", "by_duration:P"])
def test_a_policy_that_does_not_exist_is_refused(given):
    with pytest.raises(SettingRefused, match="earliest"):
        settings(auto_offset_reset=given)


def test_durations_are_those_of_iso_8601():
    assert duration_ms("P1DT2H3M4.5S") == 93_784_500
    assert duration_ms("PT0.25S") == 250
    assert duration_ms("one hour") is None


def test_assignors_by_name_and_by_javas_classes():
    java = "org.apache.kafka.clients.consumer"
    given = f"{java}.RoundRobinAssignor, sticky,{java}.CooperativeStickyAssignor"
    found = settings(partition_assignment_strategy=given)
    assert found["partition.assignment.strategy"] == ("roundrobin", "sticky", "cooperative-sticky")
    with pytest.raises(SettingRefused, match="cannot load"):
        settings(partition_assignment_strategy="stickiest")


def test_what_the_consumer_protocol_has_from_the_brokers_is_refused():
    settings(group_protocol="CONSUMER", group_id="g", group_remote_assignor="uniform")
    for name, value in (
        ("session_timeout_ms", 6000),
        ("heartbeat_interval_ms", 100),
        ("partition_assignment_strategy", "range"),
    ):
        with pytest.raises(SettingRefused, match="on the brokers"):
            settings(group_protocol="consumer", **{name: value})
    with pytest.raises(SettingRefused, match=r"group\.protocol"):
        settings(group_remote_assignor="uniform")


def test_heartbeats_fit_into_the_session():
    with pytest.raises(SettingRefused, match=r"below session\.timeout\.ms"):
        settings(session_timeout_ms=3000)
    with pytest.raises(SettingRefused, match="did you mean max"):
        settings(max_poll_record=1)
    with pytest.raises(SettingRefused, match="bootstrap"):
        consumer_settings(None, {})
