"""Where a cluster puts the replicas of topics that name no brokers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from support.running.grids import some_of

from kbroker.testing import wait_until
from kbroker.testing.cluster import Cluster

pytestmark = pytest.mark.integration

RACKS = ("a", "a", "b", "b")
TOPICS = 40
TIMEOUT_S = 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(
        len(RACKS),
        {
            "offsets.topic.replication.factor": 2,
            "transaction.state.log.replication.factor": 2,
            "default.replication.factor": 2,
            "auto.create.topics.enable": True,
        },
        each={number: {"broker.rack": rack} for number, rack in enumerate(RACKS)},
    ) as cluster:
        yield cluster


def placed(cluster: Cluster, *topics: str) -> dict[str, list[list[int]]]:
    """The replicas of each partition."""
    found = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=TIMEOUT_S)
    return {
        name: [list(row.replicas) for _, row in sorted(found.topics[name].partitions.items())]
        for name in topics
    }


def rows_in_both_racks(rows: list[list[int]]) -> bool:
    return all({RACKS[node] for node in row} == {"a", "b"} for row in rows)


def test_topics_of_one_partition_are_spread_over_brokers_and_racks(cluster: Cluster) -> None:
    """Otherwise one broker leads them all, and the failure of a rack takes all replicas."""
    names = [f"one-{number}" for number in range(TOPICS)]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    created = admin.create_topics([NewTopic(name, 1, 2) for name in names])
    for outcome in created.values():
        outcome.result(TIMEOUT_S)

    rows = [row for topic in placed(cluster, *names).values() for row in topic]

    assert rows_in_both_racks(rows)
    leaders = Counter(row[0] for row in rows)
    assert set(leaders) == {0, 1, 2, 3} and max(leaders.values()) < TOPICS * 2 // 3


def test_new_partitions_are_led_by_the_brokers_in_turn(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("grown", 1, 2)])["grown"].result(TIMEOUT_S)
    for count in (2, 3, 8):
        admin.create_partitions([NewPartitions("grown", count)])["grown"].result(TIMEOUT_S)

    rows = placed(cluster, "grown")["grown"]

    assert rows_in_both_racks(rows)
    assert Counter(row[0] for row in rows) == dict.fromkeys(range(4), 2)
    assert Counter(node for row in rows for node in row) == dict.fromkeys(range(4), 4)


def has_coordinator(consumer: Consumer) -> bool:
    try:
        return bool(consumer.committed([TopicPartition("none", 0)], timeout=TIMEOUT_S))
    except KafkaException:  # it is being elected
        return False


@pytest.mark.parametrize("count", some_of([4, TOPICS], [4]))
def test_topics_that_any_broker_creates_are_spread_in_the_same_way(
    cluster: Cluster, count: int
) -> None:
    """Internal ones, and those that a client merely names."""
    names = [f"named-{number}-of-{count}" for number in range(count)]
    settings = {"bootstrap.servers": cluster.bootstrap}
    producer = Producer({**settings, "transactional.id": "t"})
    producer.init_transactions(TIMEOUT_S)
    consumer = Consumer({**settings, "group.id": "g"})
    wait_until(lambda: has_coordinator(consumer), timeout=TIMEOUT_S)
    writer = Producer(settings)
    for name in names:
        writer.produce(name, b"v")
    assert writer.flush(TIMEOUT_S) == 0

    found = placed(cluster, "__consumer_offsets", "__transaction_state", *names)
    consumer.close()

    for name in ("__consumer_offsets", "__transaction_state"):
        rows = found.pop(name)
        assert rows_in_both_racks(rows), name
        assert {row[0] for row in rows} == {0, 1, 2, 3}
    rows = [row for topic in found.values() for row in topic]
    assert rows_in_both_racks(rows)
    if count == TOPICS:
        leaders = Counter(row[0] for row in rows)
        assert set(leaders) == {0, 1, 2, 3} and max(leaders.values()) < TOPICS * 2 // 3
