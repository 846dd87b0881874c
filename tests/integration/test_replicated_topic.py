"""Brokers that lead and follow each other's partitions, on a real ZooKeeper."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import KafkaError
from support.brokers.zookeeper import skip_without_zookeeper

from kbroker.testing import Broker, Cluster, wait_until

pytestmark = pytest.mark.integration

TOPIC, PARTITIONS = "copied", 6
ALONE = "alone"
PATIENCE_S = 60
# BOUND: of a request. A network process keeps not much more than two of them in memory.
LARGEST = 1 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    skip_without_zookeeper()
    settings = {
        "socket.request.max.bytes": LARGEST,
        "queued.max.request.bytes": LARGEST,
        "replica.lag.time.max.ms": 600_000,
    }
    with Cluster(2, settings, num_io_threads=2, replica_fetch_backoff_ms=50) as started:
        admin = KafkaAdminClient(bootstrap_servers=started.bootstrap)
        try:
            alone = NewTopic(ALONE, -1, -1, {0: [0]})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 2), alone])
        finally:
            admin.close()
        yield started


def logs(broker: Broker) -> dict[int, bytes]:
    """The bytes of each partition's log."""
    directory = Path(broker.config["log.dirs"])
    return {
        number: b"".join(
            path.read_bytes() for path in sorted((directory / f"{TOPIC}-{number}").glob("*.log"))
        )
        for number in range(PARTITIONS)
    }


def write(cluster: Cluster, text: str, count: int) -> None:
    """Written by the leaders with acks=1."""
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks=1, retries=20)
    try:
        sent = [
            producer.send(TOPIC, f"{text} {number}".encode(), partition=number % PARTITIONS)
            for number in range(count)
        ]
        for one in sent:
            one.get(timeout=PATIENCE_S)
    finally:
        producer.close()


def await_copies(cluster: Cluster, text: str) -> None:
    def equal() -> bool:
        first, second = map(logs, cluster.brokers)
        return first == second and all(text.encode() in data for data in first.values())

    wait_until(equal, PATIENCE_S, "the logs of both brokers are the same")


def test_logs_of_followers_are_those_of_their_leaders(cluster: Cluster) -> None:
    write(cluster, "first", 60)

    await_copies(cluster, "first")


@pytest.mark.parametrize("victim", ["io", "network"])
def test_followers_continue_after_a_process_of_a_leader_has_died(
    cluster: Cluster, victim: str
) -> None:
    write(cluster, f"before {victim}", 60)
    cluster.brokers[0].kill(victim)
    write(cluster, f"after {victim}", 60)

    await_copies(cluster, f"after {victim}")


@contextmanager
def stopped_follower(cluster: Cluster) -> Iterator[list[int]]:
    """Broker 1 fetches nothing meanwhile. Partitions that broker 0 leads."""
    with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin:
        rows = admin.describe_topics([TOPIC])[0]["partitions"]
    follower = cluster.brokers[1]
    io_workers = [pid for name, pid in follower.pids.items() if name.startswith("io")]
    os.kill(follower.pid, signal.SIGSTOP)  # otherwise it would restart the others
    for pid in io_workers:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield [row["partition_index"] for row in rows if row["leader_id"] == 0]
    finally:
        for pid in [*io_workers, follower.pid]:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_what_waits_for_a_follower_takes_no_memory_from_others(cluster: Cluster) -> None:
    """More waits than broker 0 has memory for, from more connections than one."""
    producers = [
        KafkaProducer(
            bootstrap_servers=cluster.bootstrap,
            acks=acks,
            batch_size=0,
            max_request_size=LARGEST,
            retries=0,
            enable_idempotence=False,
            request_timeout_ms=1000 * PATIENCE_S,
        )
        for acks in ["all"] * 8 + [1]
    ]
    record = b"x" * (LARGEST // 2)
    for producer in producers:  # it knows the topics when the follower stops
        producer.partitions_for(TOPIC)
        producer.partitions_for(ALONE)
    with stopped_follower(cluster) as led:
        waiting = [
            producer.send(TOPIC, record, partition=led[number % len(led)])
            for producer in producers[:-1]
            for number in range(5)
        ]
        for _ in range(5):
            producers[-1].send(ALONE, record, partition=0).get(timeout=PATIENCE_S)
        assert not any(one.is_done for one in waiting)
    for one in waiting:
        one.get(timeout=PATIENCE_S)
    for producer in producers:
        producer.close()


def test_records_are_deleted_when_the_follower_has_deleted_them(cluster: Cluster) -> None:
    write(cluster, "to be deleted", 60)
    await_copies(cluster, "to be deleted")
    with (
        closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin,
        stopped_follower(cluster) as led,
    ):
        below = {TopicPartition(TOPIC, number): 5 for number in led}
        with pytest.raises(KafkaError, match="RequestTimedOut"):
            admin.delete_records(below, timeout_ms=300)
    with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin:
        found = admin.delete_records(below, timeout_ms=30_000)

    assert below
    assert {partition: answer["low_watermark"] for partition, answer in found.items()} == below
