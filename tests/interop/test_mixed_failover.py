"""Brokers of Apache Kafka 2.7 and kbrokers in one cluster, killed at once: what kbrokers do before
the sessions have ended, which last much longer than these tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from interop.test_mixed_shutdown import FIRST, KAFKA, PARTITIONS, SECOND, Cluster, create
from kafka import KafkaProducer
from support.brokers.kafka_servers import Kafka27

from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

WITHIN_S = 25
SESSION = "40000"


class Patient(Cluster):
    """Nobody's session ends in time."""

    def kafka(self) -> Kafka27:
        broker = Kafka27(self.home / "kafka", self.connect, **{"broker.id": str(KAFKA)})
        broker.config["zookeeper.session.timeout.ms"] = SESSION
        broker.config["min.insync.replicas"] = "2"
        started: Kafka27 = self.stack.enter_context(broker)
        self.await_registration(KAFKA)
        return started

    def kbroker(self, number: int) -> Broker:
        broker = self.stack.enter_context(
            Broker(
                broker_id=number,
                zookeeper_connect=self.connect,
                zookeeper_session_timeout_ms=SESSION,
                inter_broker_protocol_version=self.protocol,
                directory=self.home / f"kbroker-{number}",
                min_insync_replicas=2,
            )
        )
        self.await_registration(number)
        return broker

    def is_registered(self, number: int) -> bool:
        return self.store.exists(f"/mixed/brokers/ids/{number}") is not None


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Patient]:
    with ExitStack() as stack:
        yield Patient(tmp_path, stack)


ON_ALL = {number: [(number + turn) % 3 for turn in range(3)] for number in range(PARTITIONS)}


def all_in_sync(cluster: Cluster) -> bool:
    states = cluster.states("t")
    assert len(states) == PARTITIONS and all(len(state["isr"]) == 3 for state in states), states
    return True


def write(bootstrap: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    with closing(producer):
        for number in range(PARTITIONS):
            producer.send("t", b"x", partition=number).get(timeout=WITHIN_S)


def test_kafka_that_is_gone_is_deposed_and_replaced(cluster: Patient) -> None:
    """It was the controller, and led some partitions."""
    kafka = cluster.kafka()
    first, _ = cluster.kbroker(FIRST), cluster.kbroker(SECOND)
    assert cluster.read("/controller")["brokerid"] == KAFKA
    create(kafka, "t", ON_ALL)
    wait_until(lambda: all_in_sync(cluster), 60, "all are in sync")

    kafka.kill()

    def is_replaced() -> bool:
        states = cluster.states("t")
        assert all(KAFKA not in (state["leader"], *state["isr"]) for state in states), states
        return True

    wait_until(is_replaced, WITHIN_S, "kbrokers lead")
    assert cluster.read("/controller")["brokerid"] in (FIRST, SECOND)
    assert cluster.is_registered(KAFKA), "its session has not ended"
    write(first.bootstrap)


def test_kafka_that_follows_and_is_gone_is_replaced_by_a_kbroker(cluster: Patient) -> None:
    first, second = cluster.kbroker(FIRST), cluster.kbroker(SECOND)
    kafka = cluster.kafka()
    create(first, "t", ON_ALL)
    wait_until(lambda: all_in_sync(cluster), 60, "all are in sync")

    kafka.kill()

    def is_replaced() -> bool:
        states = cluster.states("t")
        assert all(KAFKA not in (state["leader"], *state["isr"]) for state in states), states
        return True

    wait_until(is_replaced, WITHIN_S, "kbrokers lead")
    assert cluster.is_registered(KAFKA)
    write(second.bootstrap)


def test_kbroker_that_follows_and_is_gone_holds_nothing_up_under_a_kafka(cluster: Patient) -> None:
    """The controller, a Kafka, waits for its session; leaders that are kbrokers do not."""
    kafka = cluster.kafka()
    first, second = cluster.kbroker(FIRST), cluster.kbroker(SECOND)
    assert cluster.read("/controller")["brokerid"] == KAFKA
    assignment = {number: [FIRST, SECOND, KAFKA] for number in range(PARTITIONS)}
    create(kafka, "t", assignment)
    wait_until(lambda: all_in_sync(cluster), 60, "all are in sync")

    second.kill_at_once()

    def is_dropped() -> bool:
        states = cluster.states("t")
        assert all(SECOND not in state["isr"] for state in states), states
        return True

    wait_until(is_dropped, WITHIN_S, "leaders drop it")
    assert cluster.is_registered(SECOND)
    write(first.bootstrap)
    assert cluster.read("/controller")["brokerid"] == KAFKA
