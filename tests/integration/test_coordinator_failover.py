"""Coordinators whose records are on three brokers: another one takes over when one is killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.clients.wire_client import WireClient
from support.running.grids import some_of

from kbroker.client.batches.produce import BatchProducer
from kbroker.client.connections.cluster import Cluster as Client
from kbroker.coordinator.partitioner import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    coordinator_partition,
)
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.update_features import UpdateFeaturesRequest
from kbroker.record.builder import BatchBuilder
from kbroker.testing import Cluster, wait_until

pytestmark = pytest.mark.integration

PARTITIONS = 6
INTERNAL_PARTITIONS = 6
PATIENCE_S = 90
NAMES = (f"n-{number}" for number in count())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    settings = {
        "offsets.topic.replication.factor": 3,
        "offsets.topic.num.partitions": INTERNAL_PARTITIONS,
        "transaction.state.log.replication.factor": 3,
        "transaction.state.log.num.partitions": INTERNAL_PARTITIONS,
        "transaction.state.log.min.isr": 2,
        "default.replication.factor": 3,
        "min.insync.replicas": 2,
        "num.io.threads": 1,
    }
    with Cluster(3, settings) as started:
        yield started


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = next(NAMES)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (created,) = admin.create_topics([NewTopic(name, PARTITIONS, 3)]).values()
    created.result(PATIENCE_S)
    return name


def leader(cluster: Cluster, topic: str, key: str) -> int:
    """Of the partition that coordinates a key; -1 if nobody leads it."""
    partition = cluster.partitions(topic).get(coordinator_partition(key, INTERNAL_PARTITIONS))
    return -1 if partition is None else partition.leader


def commit(cluster: Cluster, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    wanted = [TopicPartition(topic, number, offset) for number in range(PARTITIONS)]

    def is_committed() -> bool:
        with suppress(KafkaException):
            consumer.commit(offsets=wanted, asynchronous=False)
            return True
        return False

    with closing(consumer):
        wait_until(is_committed, PATIENCE_S, f"offset {offset} of {group} is committed")


def committed(cluster: Cluster, group: str, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    asked = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found: list[int] = []

    def are_fetched() -> bool:
        with suppress(KafkaException):
            found.extend(one.offset for one in consumer.committed(asked, 30))
        return bool(found)

    with closing(consumer):
        wait_until(are_fetched, PATIENCE_S, f"the offsets of {group} are fetched")
    return found


def test_group_is_taken_over_with_its_offsets(cluster: Cluster, topic: str) -> None:
    group = next(NAMES)
    commit(cluster, group, topic, 5)
    coordinator = leader(cluster, OFFSETS_TOPIC, group)
    cluster.kill(coordinator)
    try:
        assert committed(cluster, group, topic) == [5] * PARTITIONS
        assert leader(cluster, OFFSETS_TOPIC, group) not in (coordinator, -1)
        commit(cluster, group, topic, 6)
    finally:
        cluster.restart(coordinator)
    assert committed(cluster, group, topic) == [6] * PARTITIONS


def write(cluster: Cluster, topic: str, texts: list[str]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for number, text in enumerate(texts):
        producer.produce(topic, text.encode(), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("ends", "protocol"),
    some_of(
        [("killed", "classic"), ("stopped", "classic"), ("killed", "consumer")],
        [("killed", "consumer")],
    ),
)
@pytest.mark.slow
def test_members_of_a_group_join_again_at_the_next_coordinator(
    cluster: Cluster, topic: str, ends: str, protocol: str
) -> None:
    """Members of the consumer protocol keep their assignment."""
    group, found = next(NAMES), list[str]()
    timeout = {"session.timeout.ms": 10_000} if protocol == "classic" else {}
    members = [
        Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "group.protocol": protocol,
                **timeout,
            }
        )
        for _ in range(2)
    ]

    def read(count: int) -> None:
        def are_read() -> bool:
            for member in members:
                messages = member.consume(100, timeout=0.2)
                found.extend(str(m.value(), "ascii") for m in messages if not m.error())
            return len(set(found)) >= count

        wait_until(are_read, PATIENCE_S, f"{count} records are read")

    texts = [f"{number:03}" for number in range(120)]
    for member in members:
        member.subscribe([topic])
    try:
        write(cluster, topic, texts[:60])
        read(60)
        coordinator = leader(cluster, OFFSETS_TOPIC, group)
        if ends == "killed":
            cluster.kill(coordinator)
        else:
            cluster.brokers[coordinator].stop()
        write(cluster, topic, texts[60:])
        read(120)
        described = type_of(cluster, group)
    finally:
        for member in members:
            member.close()
        cluster.restart(coordinator)
    assert set(found) == set(texts)
    assert described == protocol.upper()


def type_of(cluster: Cluster, group: str) -> str:
    alive = ",".join(broker.bootstrap for broker in cluster.brokers if broker.running)
    admin = AdminClient({"bootstrap.servers": alive})
    listed = {one.group_id: one.type.name for one in admin.list_consumer_groups().result().valid}
    return str(listed[group])


def transactional(cluster: Cluster, name: str) -> Any:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name})
    producer.init_transactions(PATIENCE_S)
    return producer


def read_committed(cluster: Cluster, topic: str, last: str) -> list[str]:
    """All that is there up to a record that was written behind everything else."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": next(NAMES),
            "isolation.level": "read_committed",
        }
    )
    found: list[str] = []

    def read() -> bool:
        found.extend(
            m.value().decode() for m in consumer.consume(100, timeout=0.5) if not m.error()
        )
        return found.count(last) == PARTITIONS

    with closing(consumer):
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        wait_until(read, PATIENCE_S, "the last records are read")
    return sorted(text for text in found if text != last)


@pytest.mark.parametrize("distance", some_of([0, 1], [0]), ids=["coordinator", "another"])
@pytest.mark.slow
def test_transaction_survives_the_death_of_a_broker(
    cluster: Cluster, topic: str, distance: int
) -> None:
    name = next(NAMES)
    producer = transactional(cluster, name)
    killed = (leader(cluster, TRANSACTIONS_TOPIC, name) + distance) % 3
    for text in (b"one", b"last"):
        producer.begin_transaction()
        for number in range(PARTITIONS):
            producer.produce(topic, text, partition=number)
        producer.flush(PATIENCE_S)
        if text == b"one":
            cluster.kill(killed)
        producer.commit_transaction(PATIENCE_S)
    cluster.restart(killed)
    assert read_committed(cluster, topic, "last") == ["one"] * PARTITIONS


def batch(text: str) -> bytearray:
    builder = BatchBuilder()
    builder.append(text.encode(), None, 1)
    return bytearray(builder.build())


@pytest.mark.parametrize(
    "killed", some_of([None, 0, 1], [None]), ids=["nobody", "coordinator", "another"]
)
def test_partitions_join_a_transaction_of_the_second_protocol_wherever_they_are(
    cluster: Cluster, topic: str, killed: int | None
) -> None:
    """By the first batch: its leader asks the coordinator, which is on one of the brokers."""
    name, group = next(NAMES), next(NAMES)
    with closing(Client(cluster.bootstrap, deadline=PATIENCE_S)) as client:
        producer = BatchProducer(client, transactional_id=name)
        assert producer.identity.implicit
        victim = (
            None if killed is None else (leader(cluster, TRANSACTIONS_TOPIC, name) + killed) % 3
        )
        for number, text in enumerate(["one", "lost", "two", "last"]):
            producer.begin()
            for partition in range(PARTITIONS):
                producer.send(topic, partition, batch(text), 1)
            if text == "one" and victim is not None:
                cluster.kill(victim)
            if text != "lost":
                producer.commit_offsets(group, {(topic, 0): (10 + number, "")})
            producer.end(commit=text != "lost")
        producer.close()
    if victim is not None:
        cluster.restart(victim)
    assert read_committed(cluster, topic, "last") == sorted(["one", "two"] * PARTITIONS)
    assert committed(cluster, group, topic)[0] == 13


def test_controller_alone_changes_features(cluster: Cluster) -> None:
    """They are on in this cluster, and no level is above."""
    for level, elsewhere in ((1, 0), (2, int(ErrorCode.INVALID_UPDATE_VERSION))):
        update = UpdateFeaturesRequest.FeatureUpdateKey(
            feature="group.version", max_version_level=level
        )
        codes = []
        for broker in cluster.brokers:
            with WireClient((broker.host, broker.port)) as client:
                response = client.call(UpdateFeaturesRequest(feature_updates=[update]), 2)
            codes.append(response.error_code)
        assert codes.count(elsewhere) == 1
        assert codes.count(int(ErrorCode.NOT_CONTROLLER)) == 2
