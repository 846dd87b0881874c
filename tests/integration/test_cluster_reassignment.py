"""Partitions of three real brokers get other replicas while the controller is replaced."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kazoo.client import KazooClient

from kbroker.metastore import paths
from kbroker.testing import wait_until
from kbroker.testing.cluster import Cluster

pytestmark = pytest.mark.integration

RECORDS = [b"%d" % number for number in range(100)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as cluster:
        yield cluster


@pytest.fixture
def store(cluster: Cluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper_connect)
    client.start()
    yield client
    client.stop()
    client.close()


def create(cluster: Cluster, name: str, assignment: dict[int, list[int]]) -> None:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    admin.create_topics([NewTopic(name, -1, -1, replica_assignments=assignment)])
    admin.close()


def document(store: KazooClient, path: str) -> Any:
    return json.loads(store.get(path)[0])


def read(cluster: Cluster, topic: str) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0)])
    found: list[bytes] = []

    def all_read() -> bool:
        for records in consumer.poll(500).values():
            found.extend(record.value for record in records)
        return len(found) >= len(RECORDS)

    wait_until(all_read, 60, "all records are read")
    consumer.close()
    return found


@pytest.mark.slow
def test_next_controller_continues_a_reassignment(cluster: Cluster, store: KazooClient) -> None:
    """The new replica's broker is down when it begins; only ZooKeeper knows of it then."""
    controller = cluster.controller
    leader, target = (number for number in range(3) if number != controller)
    create(cluster, "moved", {0: [leader]})
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
    for sent in [producer.send("moved", value, partition=0) for value in RECORDS]:
        sent.get(60)
    producer.close()
    cluster.brokers[target].stop()
    store.create(paths.REASSIGN_PARTITIONS, paths.encode_reassignment({("moved", 0): [target]}))
    wait_until(
        lambda: document(store, paths.topic("moved"))["adding_replicas"] == {"0": [target]},
        60,
        "it has begun",
    )

    cluster.kill(controller)
    wait_until(lambda: cluster.brokers[leader].running and cluster.controller == leader, 60)
    cluster.brokers[target].start()

    wait_until(
        lambda: document(store, paths.topic("moved"))["partitions"] == {"0": [target]},
        90,
        "it is complete",
    )
    state = document(store, paths.partition_state("moved", 0))
    assert (state["leader"], state["isr"]) == (target, [target])
    wait_until(lambda: store.exists(paths.REASSIGN_PARTITIONS) is None, 30, "the node is gone")
    wait_until(
        lambda: not list(cluster.brokers[leader].data_dir.glob("moved-0")), 30, "the log is deleted"
    )
    cluster.start()
    assert read(cluster, "moved") == RECORDS


def test_settings_take_effect_on_brokers_that_were_not_asked(cluster: Cluster) -> None:
    create(cluster, "small", {number: [number] for number in range(3)})
    admin = KafkaAdminClient(bootstrap_servers=cluster.brokers[1].bootstrap)
    setting = {"max.message.bytes": "1000"}
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, "small", setting)])
    admin.close()
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, retries=0)

    def is_rejected(number: int) -> bool:
        try:
            producer.send("small", bytes(2000), partition=number).get(30)
        except Exception as error:
            assert type(error).__name__ in ("MessageSizeTooLargeError", "RecordTooLargeError")
            return True
        return False

    for number in range(3):
        wait_until(lambda number=number: is_rejected(number), 30, f"broker {number} knows")
    producer.close()


def test_replica_that_was_removed_while_its_broker_was_away_is_set_aside(
    cluster: Cluster, store: KazooClient
) -> None:
    """What it still has is kept; when the partition returns, it is copied from the others."""
    away = next(number for number in range(3) if number != cluster.controller)
    others = [number for number in range(3) if number != away]
    create(cluster, "left", {0: [away, *others], 1: [away, *others]})
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
    for sent in [producer.send("left", value, partition=0) for value in RECORDS]:
        sent.get(60)
    producer.close()
    broker = cluster.brokers[away]
    broker.stop()
    reassign(store, others, "left")

    broker.start()
    cluster.wait_ready()

    (stray,) = broker.data_dir.glob("left-0.*-stray")
    assert (stray / f"{0:020}.log").stat().st_size > 0
    assert not (broker.data_dir / "left-0").exists()
    assert (broker.data_dir / "left-1").exists()
    (line,) = (line for line in broker.log_text.splitlines() if str(stray) in line)
    assert "WARNING" in line
    assert "1 replica on disk is not assigned to this broker any more" in line
    assert read(cluster, "left") == RECORDS

    reassign(store, [away, others[0]], "left")
    cluster.wait_in_sync("left")
    assert (broker.data_dir / "left-0").exists() and stray.exists()
    assert read(cluster, "left") == RECORDS


@pytest.mark.slow
def test_replica_whose_removal_is_never_told_is_set_aside(
    cluster: Cluster, store: KazooClient
) -> None:
    """Its broker does not take control requests when it is removed, and when it takes them again,
    another controller is there, which has never known of the replica."""
    controller = cluster.controller
    away, leader = (number for number in range(3) if number != controller)
    create(cluster, "untold", {0: [leader, away]})
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
    for sent in [producer.send("untold", value, partition=0) for value in RECORDS]:
        sent.get(60)
    producer.close()
    cluster.wait_in_sync("untold")
    broker = cluster.brokers[away]
    # The supervisor first: it would restart the other.
    pids = [broker.pid, broker.pids["controller-0"]]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        reassign(store, [leader], "untold")
        cluster.kill(controller)
        wait_until(
            lambda: (
                store.exists(paths.CONTROLLER)
                and document(store, paths.CONTROLLER)["brokerid"] == leader
            ),
            60,
            "another controls",
        )
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)

    wait_until(lambda: list(broker.data_dir.glob("untold-0.*-stray")), 120, "it is set aside")
    (stray,) = broker.data_dir.glob("untold-0.*-stray")
    assert (stray / f"{0:020}.log").stat().st_size > 0
    assert not (broker.data_dir / "untold-0").exists()
    assert "other brokers have untold-0 now" in broker.log_text
    cluster.start()
    reassign(store, [leader, away], "untold")
    cluster.wait_in_sync("untold")
    assert (broker.data_dir / "untold-0").exists() and stray.exists()
    assert read(cluster, "untold") == RECORDS


def reassign(store: KazooClient, replicas: list[int], topic: str) -> None:
    """Returns once partition 0 has these replicas."""
    store.create(paths.REASSIGN_PARTITIONS, paths.encode_reassignment({(topic, 0): replicas}))
    wait_until(
        lambda: (
            document(store, paths.topic(topic))["partitions"]["0"] == replicas
            and store.exists(paths.REASSIGN_PARTITIONS) is None
        ),
        90,
        "it is complete",
    )
