"""Apache Kafka 2.7.2 and kbroker send consumers to each other's replicas (KIP-392)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from interop.mixed import MixedCluster
from support.brokers.racks import bytes_by_now, fetches_redirected

from kbroker.config.table.rules import RACK_AWARE_SELECTOR
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

KAFKA, KBROKER = 1, 2
RACKS = {KAFKA: "a", KBROKER: "b"}
PATIENCE_S = 60
VALUE_BYTES, RECORDS = 10_000, 50
FILLED = VALUE_BYTES * RECORDS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    settings = {"replica.selector.class": RACK_AWARE_SELECTOR, "num.network.threads": "1"}
    with MixedCluster(tmp_path_factory.mktemp("racks"), settings) as started:
        started.kafka(KAFKA, **{"broker.rack": RACKS[KAFKA]})
        started.kbroker(KBROKER, **{"broker.rack": RACKS[KBROKER]})
        yield started


@pytest.fixture(autouse=True)
def clean_log() -> None:
    """The broker that other tests of this folder share is not needed."""


@pytest.fixture
def kbroker(cluster: MixedCluster) -> Broker:
    member = cluster.members[KBROKER]
    assert isinstance(member, Broker)
    return member


def fill(cluster: MixedCluster, topic: str, leader: int, follower: int) -> list[bytes]:
    """Records of a topic that both have; they cannot be compressed."""
    cluster.create(topic, {0: [leader, follower]})
    values = [os.urandom(VALUE_BYTES) for _ in range(RECORDS)]
    producer = Producer({"bootstrap.servers": cluster.members[leader].bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    return values


def read(cluster: MixedCluster, topic: str, rack: str) -> list[bytes]:
    reader = Consumer(
        {
            "bootstrap.servers": cluster.members[KAFKA].bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "client.rack": rack,
        }
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []

    def all_read() -> bool:
        while len(found) < RECORDS and (message := reader.poll(0.2)) is not None:
            if message.error() is None:
                found.append(message.value())
        assert len(found) == RECORDS, f"{len(found)} were read"
        return True

    wait_until(all_read, PATIENCE_S, "everything is read")
    reader.close()
    return found


@pytest.mark.slow
def test_kafka_sends_consumers_to_a_kbroker_in_their_rack(
    cluster: MixedCluster, kbroker: Broker
) -> None:
    written = fill(cluster, "from-kafka", KAFKA, KBROKER)
    before = bytes_by_now(kbroker)

    assert read(cluster, "from-kafka", RACKS[KBROKER]) == written

    assert bytes_by_now(kbroker) - before >= FILLED


@pytest.mark.slow
def test_kbroker_sends_consumers_to_a_kafka_in_their_rack(
    cluster: MixedCluster, kbroker: Broker
) -> None:
    written = fill(cluster, "from-kbroker", KBROKER, KAFKA)
    before, sent_away = bytes_by_now(kbroker), fetches_redirected(kbroker)

    assert read(cluster, "from-kbroker", RACKS[KAFKA]) == written

    assert bytes_by_now(kbroker) - before < FILLED // 4
    assert fetches_redirected(kbroker) > sent_away
