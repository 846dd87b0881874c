"""Three brokers on one real ZooKeeper, with each partition on one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kazoo.client import KazooClient
from support.brokers.zookeeper import skip_without_zookeeper

from kbroker.testing import Broker, Cluster, wait_until
from kbroker.testing.metadata import partition_states

pytestmark = pytest.mark.integration

PARTITIONS = 6
TOPICS = (f"t-{number}" for number in count())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    skip_without_zookeeper()
    with Cluster(3) as started:
        yield started


@pytest.fixture
def brokers(cluster: Cluster) -> list[Broker]:
    return cluster.brokers


@pytest.fixture
def topic(brokers: list[Broker]) -> str:
    name = next(TOPICS)
    with_admin = KafkaAdminClient(bootstrap_servers=brokers[2].bootstrap)
    try:
        with_admin.create_topics([NewTopic(name, PARTITIONS, 1)])
    finally:
        with_admin.close()
    return name


def leaders(broker: Broker, topic: str) -> dict[int, int]:
    """The leaders in this broker's metadata."""
    found = partition_states(broker.bootstrap, topic)
    return {number: one.leader for number, one in found.items()}


def write(broker: Broker, topic: str, texts: list[str]) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    try:
        sent = [
            producer.send(topic, text.encode(), partition=number % PARTITIONS)
            for number, text in enumerate(texts)
        ]
        for future in sent:
            future.get(timeout=30)
    finally:
        producer.close()


def read(broker: Broker, topic: str, count: int) -> list[str]:
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
    try:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        found: list[str] = []

        def read_all() -> bool:
            for records in consumer.poll(timeout_ms=500).values():
                found.extend(record.value.decode() for record in records)
            return len(found) >= count

        wait_until(read_all, 30, f"{count} records are read")
        return sorted(found)
    finally:
        consumer.close()


def test_every_broker_knows_all_and_leads_its_part(brokers: list[Broker], topic: str) -> None:
    wait_until(
        lambda: all(len(leaders(broker, topic)) == PARTITIONS for broker in brokers), 30, "all know"
    )
    first, *others = [leaders(broker, topic) for broker in brokers]
    assert others == [first, first]
    assert sorted(first.values()) == [0, 0, 1, 1, 2, 2]


def test_records_are_written_and_read_through_any_broker(brokers: list[Broker], topic: str) -> None:
    texts = [f"{number:03}" for number in range(60)]
    write(brokers[1], topic, texts)
    assert read(brokers[2], topic, len(texts)) == texts


def test_broker_that_comes_back_leads_what_it_led_with_its_records(
    brokers: list[Broker], topic: str
) -> None:
    texts = [f"{number:03}" for number in range(60)]
    write(brokers[0], topic, texts)
    before = leaders(brokers[0], topic)

    assert brokers[2].stop() == 0
    brokers[2].start()

    wait_until(lambda: leaders(brokers[2], topic) == before, 30, "it leads again")
    assert read(brokers[0], topic, len(texts)) == texts


def test_next_controller_takes_over_when_the_first_is_gone(cluster: Cluster, topic: str) -> None:
    client = KazooClient(cluster.zookeeper_connect)
    client.start()
    try:
        controller = json.loads(client.get("/controller")[0])["brokerid"]
        assert controller == cluster.controller
        epoch = int(client.get("/controller_epoch")[0])
        stopped = cluster.brokers[controller]
        assert stopped.stop() == 0
        cluster.wait_ready()
        assert json.loads(client.get("/controller")[0])["brokerid"] != controller
        assert int(client.get("/controller_epoch")[0]) > epoch
        cluster.restart(controller)
    finally:
        client.stop()
        client.close()
    name = next(TOPICS)
    admin = KafkaAdminClient(bootstrap_servers=stopped.bootstrap)
    try:
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])
    finally:
        admin.close()
    write(stopped, name, ["a", "b", "c"])
    assert read(stopped, name, 3) == ["a", "b", "c"]
