"""Throttled replication between two real brokers (KIP-73)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import NewTopic

from kbroker.testing import wait_until
from kbroker.testing.cluster import Cluster

pytestmark = pytest.mark.integration

RECORD_BYTES = 12_300
PATIENCE_S = 60
LEADER, TARGET = 0, 1
NO_LIMIT = 1 << 40


# A fetch gets four records and little of a fifth, and so little is sent beyond the quota.
SETTINGS = {"replica.fetch.max.bytes": 50_000, "num.io.threads": 2}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def fill(cluster: Cluster, name: str, records: int, partitions: int = 1) -> None:
    """A topic on one broker."""
    creator = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    assignment = {number: [LEADER] for number in range(partitions)}
    creator.create_topics([NewTopic(name, -1, -1, replica_assignments=assignment)])
    creator.close()
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.size": 1000})
    for number in range(records):
        producer.produce(name, bytes(RECORD_BYTES), partition=number % partitions)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0


def set_config(admin: AdminClient, kind: ResourceType, name: str, **values: object) -> None:
    """IncrementalAlterConfigs."""
    entries = [
        ConfigEntry(
            key.replace("_", "."),
            str(value),
            incremental_operation=AlterConfigOpType.SET,
        )
        for key, value in values.items()
    ]
    changed = admin.incremental_alter_configs(
        [ConfigResource(kind, name, incremental_configs=entries)]
    )
    for future in changed.values():
        future.result(PATIENCE_S)


def throttle_replicas(admin: AdminClient, topic: str, partitions: int = 1) -> None:
    """As kafka-reassign-partitions does."""
    leading = ",".join(f"{number}:{LEADER}" for number in range(partitions))
    following = ",".join(f"{number}:{TARGET}" for number in range(partitions))
    set_config(
        admin,
        ResourceType.TOPIC,
        topic,
        leader_replication_throttled_replicas=leading,
        follower_replication_throttled_replicas=following,
    )


def set_rate(admin: AdminClient, side: str, rate: int) -> None:
    broker = LEADER if side == "leader" else TARGET
    values = {f"{side}_replication_throttled_rate": rate}
    set_config(admin, ResourceType.BROKER, str(broker), **values)


def reassign(cluster: Cluster, topic: str, partitions: int = 1) -> None:
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    wanted = {TopicPartition(topic, number): [TARGET, LEADER] for number in range(partitions)}
    client.alter_partition_reassignments(wanted)
    client.close()


def copied_bytes(cluster: Cluster, topic: str) -> int:
    logs = cluster.brokers[TARGET].data_dir.glob(f"{topic}-*/*.log")
    return sum(log.stat().st_size for log in logs)


def in_sync(admin: AdminClient, topic: str) -> list[set[int]]:
    found = admin.list_topics(topic, PATIENCE_S).topics[topic].partitions
    return [set(partition.isrs) for partition in found.values()]


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_reassignment_stands_still_until_its_rate_is_raised(
    cluster: Cluster, admin: AdminClient, side: str
) -> None:
    topic = f"still-{side}"
    fill(cluster, topic, 20)
    throttle_replicas(admin, topic)
    set_rate(admin, side, 1)
    try:
        reassign(cluster, topic)
        # A topic that is not throttled is copied meanwhile, over the same connections.
        free = f"free-{side}"
        fill(cluster, free, 20)
        reassign(cluster, free)
        wait_until(lambda: in_sync(admin, free) == [{LEADER, TARGET}], PATIENCE_S, "free moves")
        assert copied_bytes(cluster, topic) < 10 * RECORD_BYTES
        assert in_sync(admin, topic) == [{LEADER}]
    finally:
        set_rate(admin, side, NO_LIMIT)
    wait_until(lambda: in_sync(admin, topic) == [{LEADER, TARGET}], PATIENCE_S, "it is complete")


@pytest.mark.slow
@pytest.mark.parametrize("side", ["leader", "follower"])
def test_reassignment_keeps_its_rate(side: str) -> None:
    """Over 8 s and with three partitions, which belong to both io workers of each broker.

    The brokers are new: like Kafka's, their quotas allow at once what was not used in the samples
    that they remember, and here a little was used in the test before.
    """
    topic, rate, partitions = "rated", 1_000_000, 3
    with Cluster(2, SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        fill(cluster, topic, 8 * rate // RECORD_BYTES, partitions)
        throttle_replicas(admin, topic, partitions)
        set_rate(admin, side, rate)
        asked = time.monotonic()
        reassign(cluster, topic, partitions)
        wait_until(lambda: copied_bytes(cluster, topic) > 0, PATIENCE_S, "the copy has begun")
        begun = time.monotonic()
        wait_until(
            lambda: in_sync(admin, topic) == [{LEADER, TARGET}] * partitions, PATIENCE_S, "complete"
        )
        done = time.monotonic()
        copied = copied_bytes(cluster, topic)
    assert copied < 1.1 * rate * (done - asked)
    assert copied > 0.5 * rate * (done - begun)
