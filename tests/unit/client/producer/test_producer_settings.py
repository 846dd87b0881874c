"""The producer's settings: Java's defaults, and what they need of one another."""

from __future__ import annotations

import pytest

from kbroker.client.errors import SettingRefused
from kbroker.client.producer.producer_settings import SETTINGS, producer_settings

pytestmark = pytest.mark.unit

# Of the new producer of 0.8.2 (its documentation); all must be there.
OF_0_8_2 = (
    "bootstrap.servers acks buffer.memory compression.type retries batch.size client.id linger.ms "
    "max.request.size receive.buffer.bytes send.buffer.bytes timeout.ms block.on.buffer.full "
    "metadata.fetch.timeout.ms metadata.max.age.ms metric.reporters metrics.num.samples "
    "metrics.sample.window.ms reconnect.backoff.ms retry.backoff.ms"
).split()


def settings(**keywords):
    return producer_settings({"bootstrap.servers": "h:1"}, keywords)


def test_defaults_are_those_of_java_4():
    found = settings()

    assert found["acks"] == -1
    assert found["enable.idempotence"] is True
    assert (found["batch.size"], found["linger.ms"]) == (16384, 5)
    assert found["buffer.memory"] == 33554432
    assert found["retries"] == 2147483647
    assert found["max.in.flight.requests.per.connection"] == 5
    assert found["delivery.timeout.ms"] == 120000


def test_every_setting_of_the_producer_of_0_8_2_is_there_and_has_an_effect():
    assert [name for name in OF_0_8_2 if name not in SETTINGS] == []
    assert [name for name in OF_0_8_2 if SETTINGS[name].no_effect] == []


def test_every_default_is_one_that_may_be_set():
    for name, row in SETTINGS.items():
        if row.default not in (None, ()):
            given = {"all": "all"}.get(str(row.default), row.default)
            producer_settings({"bootstrap.servers": "h:1", name: given}, {})


def test_bootstrap_servers_are_needed():
    with pytest.raises(SettingRefused, match=r"bootstrap\.servers"):
        producer_settings(None, {})
    assert producer_settings(None, {"bootstrap_servers": ["a:1", "b:2"]})["bootstrap.servers"] == (
        "a:1",
        "b:2",
    )


@pytest.mark.parametrize(("given", "acks"), [("all", -1), (-1, -1), ("0", 0), (1, 1), ("ALL", -1)])
def test_acks_are_words_or_numbers(given, acks):
    assert settings(acks=given)["acks"] == acks


def test_reporter_that_java_always_has_may_be_named():
    java = "org.apache.kafka.common.metrics.JmxReporter"
    assert settings(metric_reporters=f"{java}, ")["metric.reporters"] == ()
    assert settings(metric_reporters=[java, len])["metric.reporters"] == (len,)
    with pytest.raises(SettingRefused, match=r"cannot load org\.example\.Other"):
        settings(metric_reporters=f"{java},org.example.Other")


def test_acks_of_two_are_refused():
    with pytest.raises(SettingRefused, match="all, -1, 0 or 1"):
        settings(acks=2)


@pytest.mark.parametrize(
    "other", [{"acks": 1}, {"retries": 0}, {"max_in_flight_requests_per_connection": 6}], ids=str
)
def test_idempotence_gives_way_unless_it_was_asked_for(other):
    assert settings(**other)["enable.idempotence"] is False
    with pytest.raises(SettingRefused, match="idempotent producer needs"):
        settings(enable_idempotence=True, **other)
    with pytest.raises(SettingRefused, match="idempotent producer needs"):
        settings(transactional_id="t", **other)


def test_transactions_need_idempotence():
    with pytest.raises(SettingRefused, match=r"transactional\.id needs"):
        settings(transactional_id="t", enable_idempotence=False)


def test_delivery_timeout_is_long_enough():
    assert settings(request_timeout_ms=200_000)["delivery.timeout.ms"] == 200_005
    with pytest.raises(SettingRefused, match="at least"):
        settings(delivery_timeout_ms=1000)


@pytest.mark.parametrize(
    ("given", "ignores_keys", "found"),
    [
        ("org.apache.kafka.clients.producer.RoundRobinPartitioner", False, "round_robin"),
        ("org.apache.kafka.clients.producer.UniformStickyPartitioner", True, None),
        ("org.apache.kafka.clients.producer.internals.DefaultPartitioner", False, None),
        (max, False, max),
        ("builtins.max", False, max),
    ],
)
def test_partitioner_is_a_class_of_java_or_a_callable(given, ignores_keys, found):
    read = settings(partitioner=given)

    assert read["partitioner.class"] == found
    assert read["partitioner.ignore.keys"] is ignores_keys


def test_partitioner_must_be_callable():
    with pytest.raises(SettingRefused, match="callable"):
        settings(partitioner=5)
