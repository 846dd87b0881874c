"""Brokers of Apache Kafka 2.7 and kbrokers in one cluster: a broker that stops asks the other
kind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kazoo.client import KazooClient
from support.brokers.kafka_servers import Kafka27
from support.brokers.zookeeper import ZooKeeperServer

from kbroker.testing import Broker, wait_until
from kbroker.testing.metadata import partition_states

pytestmark = pytest.mark.interop

KAFKA, FIRST, SECOND = 0, 1, 2
PARTITIONS = 4


class Cluster:
    """Brokers on their own ZooKeeper, started by the test."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.protocol = "2.7"
        self.home = home
        self.stack = stack
        server = stack.enter_context(ZooKeeperServer(home / "zookeeper"))
        self.connect = f"{server.connect}/mixed"
        # The path exists before Kafka or kbroker creates it.
        self.store = KazooClient(server.connect)
        self.store.start()
        stack.callback(self.store.stop)

    def kafka(self) -> Kafka27:
        broker = Kafka27(self.home / "kafka", self.connect, **{"broker.id": str(KAFKA)})
        broker.config["replica.lag.time.max.ms"] = "5000"
        broker.config["inter.broker.protocol.version"] = self.protocol
        started: Kafka27 = self.stack.enter_context(broker)
        self.await_registration(KAFKA)
        return started

    def kbroker(self, number: int) -> Broker:
        broker = self.stack.enter_context(
            Broker(
                broker_id=number,
                zookeeper_connect=self.connect,
                inter_broker_protocol_version=self.protocol,
                directory=self.home / f"kbroker-{number}",
            )
        )
        self.await_registration(number)
        return broker

    def read(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.store.get(f"/mixed{path}")[0])
        return found

    def await_registration(self, number: int) -> None:
        path = f"/mixed/brokers/ids/{number}"
        wait_until(lambda: self.store.exists(path), 60, f"broker {number} is registered")

    def states(self, topic: str) -> list[dict[str, Any]]:
        parent = f"/brokers/topics/{topic}/partitions"
        names = self.store.get_children(f"/mixed{parent}")
        return [self.read(f"{parent}/{name}/state") for name in sorted(names)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def create(broker: Broker | Kafka27, topic: str, assignment: dict[int, list[int]]) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        admin.create_topics([NewTopic(topic, replica_assignments=assignment)])


def by_turns(first: int, second: int) -> dict[int, list[int]]:
    return {
        number: [first, second] if number % 2 else [second, first] for number in range(PARTITIONS)
    }


@pytest.mark.slow
def test_kbroker_that_stops_hands_over_through_a_controller_of_kafka(cluster: Cluster) -> None:
    kafka, kbroker = cluster.kafka(), cluster.kbroker(FIRST)
    assert cluster.read("/controller")["brokerid"] == KAFKA
    create(kafka, "t", by_turns(KAFKA, FIRST))
    wait_until(lambda: [s["leader"] for s in cluster.states("t")] == [1, 0, 1, 0], 30, "both lead")

    assert kbroker.stop() == 0

    assert "controlled shutdown succeeded" in kbroker.log_text
    assert [s["leader"] for s in cluster.states("t")] == [KAFKA] * PARTITIONS
    with closing(KafkaProducer(bootstrap_servers=kafka.bootstrap, acks="all")) as producer:
        for number in range(PARTITIONS):
            producer.send("t", b"x", partition=number).get(timeout=30)


@pytest.mark.slow
def test_kafka_that_stops_hands_over_through_a_kbroker(cluster: Cluster) -> None:
    kbroker = cluster.kbroker(FIRST)
    kafka = cluster.kafka()
    assert cluster.read("/controller")["brokerid"] == FIRST
    create(kbroker, "t", by_turns(KAFKA, FIRST))
    wait_until(lambda: [s["leader"] for s in cluster.states("t")] == [1, 0, 1, 0], 30, "both lead")

    kafka.stop()

    text = f"broker {KAFKA} is shutting down; it still leads 0 of {PARTITIONS} partitions"
    assert kbroker.log_text.count(text) == 1, "it did not have to ask again"
    found = [(s["leader"], s["isr"], s["leader_epoch"]) for s in cluster.states("t")]
    assert found == [(FIRST, [FIRST], 1)] * PARTITIONS


def in_sync(broker: Broker | Kafka27, topic: str) -> list[int]:
    """The ISR of partition 0 in the broker's metadata."""
    return sorted(partition_states(broker.bootstrap, topic)[0].in_sync)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["2.7", "2.6"])
def test_leader_of_kafka_has_its_in_sync_replicas_known_to_a_kbroker(
    cluster: Cluster, protocol: str
) -> None:
    """By AlterIsr, or by writing the state and a notification: for a follower that has caught up
    again.
    """
    cluster.protocol = protocol
    controller = cluster.kbroker(FIRST)
    kafka, follower = cluster.kafka(), cluster.kbroker(SECOND)
    assert cluster.read("/controller")["brokerid"] == FIRST
    create(kafka, "t", {0: [KAFKA, SECOND]})
    wait_until(lambda: cluster.states("t")[0]["isr"] == [KAFKA, SECOND], 30, "both are in sync")

    follower.kill_all()
    wait_until(lambda: cluster.states("t")[0]["isr"] == [KAFKA], 30, "one is in sync")
    with closing(KafkaProducer(bootstrap_servers=kafka.bootstrap, acks="all")) as producer:
        producer.send("t", b"x", partition=0).get(timeout=30)
    wait_until(lambda: in_sync(controller, "t") == [KAFKA], 30, "the controller knows")
    follower.start()

    wait_until(lambda: cluster.states("t")[0]["isr"] == [KAFKA, SECOND], 60, "both are again")
    assert cluster.states("t")[0]["leader"] == KAFKA
    wait_until(lambda: in_sync(controller, "t") == [KAFKA, SECOND], 30, "the controller knows")
    reports = "/mixed/isr_change_notification"
    wait_until(lambda: not cluster.store.get_children(reports), 30, "no report is left")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["2.7", pytest.param("2.6", marks=pytest.mark.slow)])
def test_leader_of_kbroker_has_its_in_sync_replicas_known_to_a_kafka(
    cluster: Cluster, protocol: str
) -> None:
    """The same with the roles exchanged."""
    cluster.protocol = protocol
    kafka = cluster.kafka()
    leader, follower = cluster.kbroker(FIRST), cluster.kbroker(SECOND)
    assert cluster.read("/controller")["brokerid"] == KAFKA
    create(kafka, "t", {0: [FIRST, SECOND]})
    wait_until(lambda: cluster.states("t")[0]["isr"] == [FIRST, SECOND], 30, "both are in sync")

    follower.kill_all()
    wait_until(lambda: cluster.states("t")[0]["isr"] == [FIRST], 30, "one is in sync")
    with closing(KafkaProducer(bootstrap_servers=leader.bootstrap, acks="all")) as producer:
        producer.send("t", b"x", partition=0).get(timeout=30)
    follower.start()

    wait_until(lambda: sorted(cluster.states("t")[0]["isr"]) == [FIRST, SECOND], 60, "both again")
    assert cluster.states("t")[0]["leader"] == FIRST
    wait_until(lambda: in_sync(kafka, "t") == [FIRST, SECOND], 30, "the controller knows")
    reports = "/mixed/isr_change_notification"
    wait_until(lambda: not cluster.store.get_children(reports), 30, "no report is left")
