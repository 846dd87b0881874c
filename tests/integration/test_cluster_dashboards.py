"""kafka_exporter's dashboards on a cluster: what all brokers tell together, and one alone."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from support.brokers.process_harness import http_get
from support.surfaces.dashboards import (
    EXPORTER_OVERVIEW,
    NEEDED,
    STRIMZI_EXPORTER,
    Labels,
    Scrape,
)

from kbroker.client import KafkaProducer
from kbroker.client.admin.groups import list_groups
from kbroker.client.admin.topics import NewTopic, create_topics
from kbroker.client.batches.offsets import commit
from kbroker.client.connections.cluster import Cluster as Client
from kbroker.testing import wait_until
from kbroker.testing.cluster import Cluster

pytestmark = pytest.mark.integration

# Of each broker alone, so that most coordinators have no replica of what their groups read.
TOPICS = {
    "orders": [[0], [1], [2]],
    "bills": [[1], [2], [0]],
    "copied": [[2, 0, 1], [0, 1, 2], [1, 2, 0]],
}
GROUPS = [f"group-{number}" for number in range(12)]
RECORDS, READ = 5, 2
# They are told by the active controller alone, of the cluster as a whole.
OF_CLUSTER = ("kafka_exporter_build_info", "kafka_topic_partitions")
OFFSET, END = "kafka_consumergroup_current_offset", "kafka_topic_partition_current_offset"
LAG, MEMBERS = "kafka_consumergroup_lag", "kafka_consumergroup_members"
# What a scrape may take by default.
PROMETHEUS_S = 10.0
PAIRS = [(topic, str(number)) for topic, rows in TOPICS.items() for number in range(len(rows))]


class Scene(NamedTuple):
    """coordinators: by group."""

    cluster: Cluster
    coordinators: dict[str, int]


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with Cluster(3, num_io_threads=1) as cluster, Client(cluster.bootstrap) as client:
        topics = [NewTopic(name, replicas=rows) for name, rows in TOPICS.items()]
        for made in create_topics(client, topics).values():
            assert not isinstance(made, Exception), made
        with KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
            for topic, number in PAIRS:
                for _ in range(RECORDS):
                    producer.send(topic, b"v", partition=int(number))
        for group in GROUPS:
            commit(client, group, {(topic, int(n)): (READ, "") for topic, n in PAIRS})
        yield Scene(cluster, {row.group: row.coordinator for row in list_groups(client)})


def scrapes(cluster: Cluster) -> list[Scrape]:
    """Of each broker, when all followers have what is committed."""
    found: list[Scrape] = []

    def are_complete() -> bool:
        found[:] = [Scrape(http_get(broker, "/metrics")[1]) for broker in cluster.brokers]
        told = together(found, LAG)
        copied = [dict(labels) for labels in told if dict(labels)["topic"] == "copied"]
        values = {told[labels] for labels in told}
        return len(copied) == 3 * len(GROUPS) and values == {RECORDS - READ}

    wait_until(are_complete, 60)
    return found


def together(found: list[Scrape], name: str) -> dict[Labels, float]:
    """The series of all brokers, as Prometheus has them without ``instance``."""
    told = [row for one in found for row in one.values.get(name, {}).items()]
    times = Counter(labels for labels, _ in told)
    assert not [labels for labels, count in times.items() if count > 1], f"{name}: told twice"
    return dict(told)


def test_brokers_tell_together_all_that_the_dashboards_of_kafka_exporter_ask_for(
    scene: Scene,
) -> None:
    """For every topic, partition and group, each series by one broker: ``instance`` at *All*."""
    assert len(set(scene.coordinators.values())) > 1, "groups of several coordinators"
    found = scrapes(scene.cluster)

    for needed in NEEDED:
        if needed.source not in (EXPORTER_OVERVIEW, STRIMZI_EXPORTER) or needed.name == LAG:
            continue
        told = [dict(labels) for labels in together(found, needed.name)]
        if "consumergroup" in needed.labels:
            there = {(one["consumergroup"], one["topic"], one["partition"]) for one in told}
            assert there == {(group, *pair) for group in GROUPS for pair in PAIRS}, needed
        elif needed.name == "kafka_topic_partitions":
            assert {one["topic"] for one in told} >= set(TOPICS), needed
        elif needed.labels:
            assert {(one["topic"], one["partition"]) for one in told} >= set(PAIRS), needed
        else:
            assert told, needed


def test_lag_of_every_group_is_that_of_the_documented_expression(scene: Scene) -> None:
    """Where a coordinator has no replica of a partition, it does not know the lag: the ends of the
    leaders and the offsets of the coordinators do, and the same where it does.
    """
    found = scrapes(scene.cluster)
    ends = {
        (dict(labels)["topic"], dict(labels)["partition"]): value
        for labels, value in together(found, END).items()
    }

    lags = {
        (one["consumergroup"], one["topic"], one["partition"]): ends[one["topic"], one["partition"]]
        - value
        for labels, value in together(found, OFFSET).items()
        for one in [dict(labels)]
    }
    told = {
        (one["consumergroup"], one["topic"], one["partition"]): value
        for labels, value in together(found, LAG).items()
        for one in [dict(labels)]
    }

    wanted = {(group, *pair) for group in GROUPS for pair in PAIRS}
    assert lags == dict.fromkeys(wanted, RECORDS - READ)
    alone = {"orders", "bills"}
    assert told.keys() == {
        key
        for key in wanted
        if key[1] not in alone or TOPICS[key[1]][int(key[2])] == [scene.coordinators[key[0]]]
    }


@pytest.mark.parametrize("number", range(3))
def test_page_of_the_whole_cluster_has_every_series_once(scene: Scene, number: int) -> None:
    scrapes(scene.cluster)
    status, text = http_get(scene.cluster.brokers[number], "/metrics/cluster")

    assert status == 200, text
    page = Scrape(text)
    for needed in NEEDED:
        if needed.source not in (EXPORTER_OVERVIEW, STRIMZI_EXPORTER) or is_of_jmx(needed.name):
            continue
        told = [dict(labels) for labels in page.values[needed.name]]
        if "consumergroup" in needed.labels:
            there = {(one["consumergroup"], one["topic"], one["partition"]) for one in told}
            assert there == {(group, *pair) for group in GROUPS for pair in PAIRS}, needed
        elif needed.name == "kafka_topic_partitions":
            assert {one["topic"] for one in told} >= set(TOPICS), needed
        elif needed.labels:
            assert {(one["topic"], one["partition"]) for one in told} >= set(PAIRS), needed
    assert page.get("kafka_brokers") == 3
    assert set(page.values[LAG].values()) == {RECORDS - READ}
    assert set(page.values[f"{LAG}_sum"].values()) == {3 * (RECORDS - READ)}
    assert {dict(key)["consumergroup"] for key in page.values[MEMBERS]} == set(GROUPS)
    for topic, at in PAIRS:
        leader = page.get("kafka_topic_partition_leader", topic=topic, partition=at)
        assert leader == TOPICS[topic][int(at)][0]


def is_of_jmx(name: str) -> bool:
    """No figure of kafka_exporter: Strimzi's dashboard takes some of brokers."""
    return name.startswith("kafka_cluster_partition_")


def test_whole_cluster_and_brokers_together_tell_the_same(scene: Scene) -> None:
    found = scrapes(scene.cluster)
    page = Scrape(http_get(scene.cluster.brokers[0], "/metrics/cluster")[1])

    for name in page.values:
        if name in (LAG, f"{LAG}_sum", "kafka_broker_info") or "offset" in name:
            continue  # coordinators lack replicas; addresses and offsets of __consumer_offsets
        assert page.values[name] == together(found, name), name


def test_broker_alone_tells_what_it_leads_and_coordinates(scene: Scene) -> None:
    found = scrapes(scene.cluster)

    for number, one in enumerate(found):
        led = {
            (topic, str(at))
            for topic, rows in TOPICS.items()
            for at, replicas in enumerate(rows)
            if replicas[0] == number
        }
        ends = {(dict(key)["topic"], dict(key)["partition"]) for key in one.values[END]}
        groups = {dict(key)["consumergroup"] for key in one.values.get(OFFSET, {})}
        assert ends & set(PAIRS) == led
        assert groups == {name for name, at in scene.coordinators.items() if at == number}
    for name in OF_CLUSTER:
        assert sum(name in one.values for one in found) == 1, name


def test_broker_that_does_not_answer_costs_the_page_its_series_alone(scene: Scene) -> None:
    """The last test: its broker is stopped, and goes on when all is over."""
    silent = scene.cluster.brokers[2]
    pids = [silent.pid, *silent.pids.values()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        status, text = http_get(scene.cluster.brokers[0], "/metrics/cluster")
        took_s = time.monotonic() - began
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)

    assert status == 200, text
    assert took_s < PROMETHEUS_S
    page = Scrape(text)
    ends = {(dict(key)["topic"], dict(key)["partition"]) for key in page.values[END]}
    led = {("orders", "2"), ("bills", "1")}  # by the silent one alone
    assert not ends & led
    assert ends >= {("orders", "0"), ("orders", "1"), ("bills", "0"), ("bills", "2")}
    replicas = page.values["kafka_topic_partition_replicas"]
    assert {(dict(key)["topic"], dict(key)["partition"]) for key in replicas} >= set(PAIRS)
    lags = {
        (one["consumergroup"], one["topic"], one["partition"])
        for one in map(dict, page.values[LAG])
    }
    answering = {name for name, at in scene.coordinators.items() if at != 2}
    assert lags >= {(name, "orders", at) for name in answering for at in ("0", "1")}
