"""Partitions with three replicas on three real brokers: what is acknowledged is on all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from support.running.grids import some_of

from kbroker.client import KafkaAdminClient
from kbroker.client.admin.topics import NewTopic
from kbroker.testing import Cluster, wait_until

pytestmark = pytest.mark.integration

PARTITIONS = 3
PATIENCE_S = 90
LAG_MS = 4000
RESTARTED = "continuing with what the previous controller process knew"
TOPICS = (f"replicated-{number}" for number in count())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, replica_lag_time_max_ms=LAG_MS, num_io_threads=1) as started:
        yield started


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = next(TOPICS)
    cluster.wait_ready()  # the test before may have killed the controller
    with KafkaAdminClient(bootstrap_servers=cluster.bootstrap) as admin:  # waits for a controller
        settings = {"min.insync.replicas": "2"}
        admin.create_topics([NewTopic(name, PARTITIONS, 3, configs=settings)])
    cluster.wait_in_sync(name, timeout=PATIENCE_S)
    return name


def in_sync_without(cluster: Cluster, topic: str, broker: int) -> Callable[[], bool]:
    def is_without() -> bool:
        found = cluster.partitions(topic)
        return len(found) == PARTITIONS and not any(
            broker in one.in_sync or one.leader in (broker, -1) for one in found.values()
        )

    return is_without


def write(cluster: Cluster, topic: str, first: int, last: int) -> list[str]:
    """The values of the records that were acknowledged: all of them."""
    values = [f"{number:05}" for number in range(first, last)]
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap, acks="all", retries=100, linger_ms=5,
        request_timeout_ms=20_000, delivery_timeout_ms=PATIENCE_S * 1000,
    )  # fmt: skip
    with closing(producer):
        sent = [
            producer.send(topic, value.encode(), partition=number % PARTITIONS)
            for number, value in enumerate(values)
        ]
        for future in sent:
            future.get(timeout=PATIENCE_S)
    return values


def read(cluster: Cluster, topic: str, count: int) -> list[str]:
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
    with closing(consumer):
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        found: list[str] = []

        def read_all() -> bool:
            for records in consumer.poll(timeout_ms=500).values():
                found.extend(record.value.decode() for record in records)
            return len(found) >= count

        wait_until(read_all, PATIENCE_S, f"{count} records are read")
        return sorted(found)


def logs(cluster: Cluster, topic: str) -> list[dict[str, bytes]]:
    """The segments of each broker, by their place in its data directory."""
    return [
        {
            f"{path.parent.name}/{path.name}": path.read_bytes()
            for path in sorted(Path(broker.data_dir).glob(f"**/{topic}-*/*.log"))
        }
        for broker in cluster.brokers
    ]


def logs_agree(cluster: Cluster, topic: str) -> bool:
    first, *others = logs(cluster, topic)
    return len(first) == PARTITIONS and any(first.values()) and others == [first, first]


def test_what_is_acknowledged_is_byte_for_byte_on_every_replica(
    cluster: Cluster, topic: str
) -> None:
    written = write(cluster, topic, 0, 300)

    assert read(cluster, topic, len(written)) == written
    wait_until(lambda: logs_agree(cluster, topic), PATIENCE_S, "the logs are the same")


@pytest.mark.slow
def test_replicas_in_sync_follow_a_broker_that_is_killed_and_comes_back(
    cluster: Cluster, topic: str
) -> None:
    """Two of three still acknowledge; what was written meanwhile is copied before it is back."""
    written = write(cluster, topic, 0, 60)
    victim = next(n for n in range(3) if n != cluster.controller)

    cluster.kill(victim)
    written += write(cluster, topic, 60, 120)
    wait_until(in_sync_without(cluster, topic, victim), PATIENCE_S, "it has left the ISR")
    written += write(cluster, topic, 120, 180)
    cluster.restart(victim)

    cluster.wait_in_sync(topic, timeout=PATIENCE_S)
    assert read(cluster, topic, len(written)) == written
    wait_until(lambda: logs_agree(cluster, topic), PATIENCE_S, "the logs are the same")


def test_nothing_acknowledged_is_missing_after_leader_and_controller_were_killed(
    cluster: Cluster, topic: str
) -> None:
    written = write(cluster, topic, 0, 120)
    victim = cluster.controller

    cluster.kill(victim)
    wait_until(in_sync_without(cluster, topic, victim), PATIENCE_S, "others lead")
    written += write(cluster, topic, 120, 180)
    assert read(cluster, topic, len(written)) == written
    cluster.restart(victim)

    cluster.wait_in_sync(topic, timeout=PATIENCE_S)
    wait_until(lambda: logs_agree(cluster, topic), PATIENCE_S, "the logs are the same")
    assert read(cluster, topic, len(written)) == written


@pytest.mark.parametrize("kind", some_of(["io", "network", "controller"], ["io"]))
def test_process_of_a_leader_that_is_killed_costs_nothing_acknowledged(
    cluster: Cluster, topic: str, kind: str
) -> None:
    written = write(cluster, topic, 0, 60)

    for broker in cluster.brokers:
        broker.kill(kind, 0)
    written += write(cluster, topic, 60, 120)

    assert read(cluster, topic, len(written)) == written
    cluster.wait_in_sync(topic, timeout=PATIENCE_S)
    wait_until(lambda: logs_agree(cluster, topic), PATIENCE_S, "the logs are the same")


def test_broker_whose_controller_process_died_knows_what_it_hosts(
    cluster: Cluster, topic: str
) -> None:
    """The process is not the controller, and the one that is has told its predecessor only."""
    written = write(cluster, topic, 0, 60)
    victim = next(n for n in range(3) if n != cluster.controller)
    before = len(cluster.brokers[victim].log_text)

    cluster.brokers[victim].kill("controller", 0)
    wait_until(
        lambda: RESTARTED in cluster.brokers[victim].log_text[before:],
        PATIENCE_S,
        "the process has restarted",
    )
    written += write(cluster, topic, 60, 120)

    cluster.wait_in_sync(topic, timeout=PATIENCE_S)
    assert read(cluster, topic, len(written)) == written
    wait_until(lambda: logs_agree(cluster, topic), PATIENCE_S, "the logs are the same")
    assert "is no longer in the metadata" not in cluster.brokers[victim].log_text
