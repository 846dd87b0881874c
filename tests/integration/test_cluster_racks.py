"""Consumers read from the replica in their rack (KIP-392), and are assigned it (KIP-881)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from support.brokers.racks import (
    LEADER,
    NEAR,
    PATIENCE_S,
    RACKS,
    bytes_by_now,
    cluster_of_racks,
    create_topic,
    fetches_redirected,
    produce,
)
from support.running.grids import some_of

from kbroker.client import KafkaAdminClient, KafkaConsumer
from kbroker.client.admin.topics import NewTopic
from kbroker.testing import wait_until
from kbroker.testing.cluster import Cluster

pytestmark = pytest.mark.integration

VALUE_BYTES = 10_000
RECORDS = 100
# Beside the records, clients get metadata and responses without records.
FILLED = VALUE_BYTES * RECORDS
LITTLE = FILLED // 4
_names = (f"racks-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of_racks() as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = next(_names)
    create_topic(cluster, name)
    return name


def consumer(cluster: Cluster, topic: str, rack: str, **settings: object) -> Consumer:
    reader = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "client.rack": rack,
            **settings,
        }
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    return reader


def read(reader: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []

    def all_read() -> bool:
        while len(found) < count and (message := reader.poll(0.2)) is not None:
            if message.error() is None:
                found.append(message.value())
        assert len(found) == count, f"{len(found)} of {count} were read"
        return True

    wait_until(all_read, PATIENCE_S, "everything is read")
    return found


def values(count: int = RECORDS) -> list[bytes]:
    """They cannot be compressed."""
    return [os.urandom(VALUE_BYTES) for _ in range(count)]


@pytest.mark.parametrize(
    "isolation", some_of(["read_uncommitted", "read_committed"], ["read_committed"])
)
def test_consumer_reads_from_the_follower_in_its_rack_and_continues_without_it(
    cluster: Cluster, topic: str, isolation: str
) -> None:
    written = values()
    produce(cluster, topic, written)
    before = [bytes_by_now(cluster.brokers[broker]) for broker in (LEADER, NEAR)]
    sent_away = fetches_redirected(cluster.brokers[LEADER])
    reader = consumer(cluster, topic, "b", **{"isolation.level": isolation})

    def was_read_from(broker: int) -> int:
        return bytes_by_now(cluster.brokers[broker]) - before[broker]

    assert read(reader, RECORDS) == written
    assert was_read_from(NEAR) >= FILLED
    assert was_read_from(LEADER) < LITTLE
    assert fetches_redirected(cluster.brokers[LEADER]) > sent_away, "published with the bytes"

    cluster.kill(NEAR)
    try:
        more = values()
        produce(cluster, topic, more)
        assert read(reader, RECORDS) == more
        assert was_read_from(LEADER) >= FILLED
        sent_away = fetches_redirected(cluster.brokers[LEADER])
    finally:
        cluster.restart(NEAR)
    cluster.wait_in_sync(topic, timeout=PATIENCE_S)
    wait_until(
        lambda: fetches_redirected(cluster.brokers[LEADER]) > sent_away,
        PATIENCE_S,
        "it is sent back",
    )
    before = [bytes_by_now(cluster.brokers[broker]) for broker in (LEADER, NEAR)]
    assert cluster.partitions(topic)[0].leader == LEADER

    last = values()
    produce(cluster, topic, last)
    assert read(reader, RECORDS) == last
    assert was_read_from(NEAR) >= FILLED
    assert was_read_from(LEADER) < LITTLE
    reader.close()


@pytest.mark.parametrize("rack", some_of(["a", "elsewhere", ""], ["elsewhere"]))
def test_consumer_without_a_follower_in_its_rack_reads_from_the_leader(
    cluster: Cluster, topic: str, rack: str
) -> None:
    written = values()
    produce(cluster, topic, written)
    before = bytes_by_now(cluster.brokers[LEADER])
    sent_away = fetches_redirected(cluster.brokers[LEADER])
    reader = consumer(cluster, topic, rack)

    assert read(reader, RECORDS) == written
    assert bytes_by_now(cluster.brokers[LEADER]) - before >= FILLED
    assert fetches_redirected(cluster.brokers[LEADER]) == sent_away
    reader.close()


def test_consumer_that_waits_at_a_follower_gets_what_is_appended(
    cluster: Cluster, topic: str
) -> None:
    """The follower's high watermark wakes it, long before its wait is over."""
    reader = consumer(cluster, topic, "b", **{"fetch.wait.max.ms": 200_000})
    for number in range(3):
        produce(cluster, topic, [b"%d" % number])
        assert read(reader, 1) == [b"%d" % number]
    wait_until(
        lambda: fetches_redirected(cluster.brokers[LEADER]) > 0, PATIENCE_S, "it was sent away"
    )
    reader.close()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.slow
def test_members_of_our_consumer_are_assigned_what_is_in_their_racks(
    cluster: Cluster, strategy: str
) -> None:
    """Leaders in the racks c, b, a for members in a, b, c: without racks none would be near."""
    name = next(_names)
    with KafkaAdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        made = admin.create_topics([NewTopic(name, replicas=[[2], [1], [0]])])
        assert not isinstance(made[name], Exception)
    members = [
        KafkaConsumer(
            bootstrap_servers=cluster.bootstrap,
            group_id=name,
            client_rack=rack,
            partition_assignment_strategy=strategy,
        )
        for rack in RACKS
    ]
    for member in members:
        member.subscribe([name])

    def assigned() -> list[list[int]]:
        for member in members:
            member.poll(0.1)
        return [sorted(number for _, number in member.assignment()) for member in members]

    wait_until(lambda: assigned() == [[2], [1], [0]], PATIENCE_S, "each has what is near")
    for member in members:
        member.close()
