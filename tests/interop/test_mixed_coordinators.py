"""Groups and transactions of a cluster of kbroker and Apache Kafka 2.7.2: either coordinates them,
writes its markers into partitions of the other, and takes over what the other has written.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from interop.mixed import PATIENCE_S, MixedCluster, commit, committed, waited
from support.clients.wire_client import WireClient

from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

KAFKA, KBROKER = 1, 2
BOTH = pytest.mark.parametrize(
    "coordinator", [KAFKA, pytest.param(KBROKER, marks=pytest.mark.slow)], ids=["kafka", "kbroker"]
)
PARTITIONS = 4
GROUP, TRANSACTION = 0, 1
NAMES = (f"n{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """Each has a replica of every partition of the internal topics."""
    settings = {
        "offsets.topic.replication.factor": "2",
        "transaction.state.log.replication.factor": "2",
        "transaction.state.log.num.partitions": "4",
        "offsets.topic.num.partitions": "4",
        "auto.leader.rebalance.enable": "false",
    }
    with MixedCluster(tmp_path_factory.mktemp("cluster"), settings) as started:
        started.kafka(KAFKA)
        started.kbroker(KBROKER)
        yield started


@pytest.fixture(autouse=True)
def clean_log() -> None:
    """The broker that other tests of this folder share is not needed."""


@pytest.fixture
def topic(cluster: MixedCluster) -> str:
    """Its partitions have one replica each, in turn on both."""
    name = next(NAMES)
    cluster.create(name, {n: [KAFKA if n % 2 else KBROKER] for n in range(PARTITIONS)})
    return name


def coordinator_of(cluster: MixedCluster, kind: int, key: str) -> int:
    """As the kbroker knows it, -1 if there is none."""
    host, port = cluster.members[KBROKER].bootstrap.split(":")
    with WireClient((host, int(port))) as client:
        found = client.call(FindCoordinatorRequest(key=key, key_type=kind), 3)
    return -1 if found.error_code else int(found.node_id)


def key_on(cluster: MixedCluster, kind: int, member: int) -> str:
    """A group or transactional id that a member coordinates. The members lead what they are asked
    to: each is restarted where the other leads all."""
    waited(lambda: coordinator_of(cluster, kind, "any") != -1, "there are coordinators")
    for _ in range(2):
        for name in itertools.islice(NAMES, 40):
            if coordinator_of(cluster, kind, name) == member:
                return name
        other = cluster.members[KAFKA + KBROKER - member]
        other.stop()
        waited(lambda: coordinator_of(cluster, kind, "any") in (member, -1), "it has left")
        other.start()
        cluster.wait_ready()
    raise AssertionError(f"{member} coordinates nothing")


def transactional(cluster: MixedCluster, name: str) -> Any:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name})
    producer.init_transactions(PATIENCE_S)
    return producer


def write(producer: Any, topic: str, text: str) -> None:
    producer.begin_transaction()
    for number in range(PARTITIONS):
        producer.produce(topic, text.encode(), partition=number)


def read_committed(bootstrap: str, topic: str, last: str) -> list[str]:
    """All that is there up to a record that was written behind everything else."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": next(NAMES),
            "isolation.level": "read_committed",
        }
    )
    found: list[str] = []

    def are_read() -> bool:
        messages = consumer.consume(100, timeout=0.5)
        found.extend(message.value().decode() for message in messages if not message.error())
        return found.count(last) == PARTITIONS

    with closing(consumer):
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        waited(are_read, "the last records are read")
    return sorted(text for text in found if text != last)


@pytest.mark.slow
@BOTH
def test_transaction_is_whole_in_the_partitions_and_groups_of_both(
    cluster: MixedCluster, topic: str, coordinator: int
) -> None:
    producer = transactional(cluster, key_on(cluster, TRANSACTION, coordinator))
    groups = [key_on(cluster, GROUP, coordinator), next(NAMES), next(NAMES), next(NAMES)]
    for text, offset in (("aborted", 5), ("committed", 7), ("lost", 9)):
        write(producer, topic, text)
        for group in groups:
            consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
            with closing(consumer):
                offsets = [TopicPartition(topic, number, offset) for number in range(PARTITIONS)]
                metadata = consumer.consumer_group_metadata()
                producer.send_offsets_to_transaction(offsets, metadata, PATIENCE_S)
        producer.flush(PATIENCE_S)
        if text == "committed":
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
    write(producer, topic, "last")
    producer.commit_transaction(PATIENCE_S)
    for member in cluster.members.values():
        assert read_committed(member.bootstrap, topic, "last") == ["committed"] * PARTITIONS
    for group in groups:
        assert committed(cluster.bootstrap, group, topic, PARTITIONS) == [7] * PARTITIONS


@pytest.mark.slow
@BOTH
def test_groups_and_transactions_are_taken_over_by_the_other(
    cluster: MixedCluster, topic: str, coordinator: int
) -> None:
    group = key_on(cluster, GROUP, coordinator)
    name = key_on(cluster, TRANSACTION, coordinator)
    assert coordinator_of(cluster, GROUP, group) == coordinator
    commit(cluster.bootstrap, group, topic, 5, PARTITIONS)
    producer = transactional(cluster, name)
    write(producer, topic, "one")
    producer.commit_transaction(PATIENCE_S)
    write(producer, topic, "open")
    producer.flush(PATIENCE_S)

    member, other = cluster.members[coordinator], KAFKA + KBROKER - coordinator
    member.stop()
    waited(lambda: leads_all(cluster, other), "the other leads")
    assert committed(cluster.bootstrap, group, topic, PARTITIONS) == [5] * PARTITIONS
    commit(cluster.bootstrap, group, topic, 6, PARTITIONS)
    member.start()
    cluster.wait_ready()

    successor = transactional(cluster, name)  # aborts what was open
    write(successor, topic, "last")
    successor.commit_transaction(PATIENCE_S)
    assert read_committed(cluster.bootstrap, topic, "last") == ["one"] * PARTITIONS
    assert committed(cluster.bootstrap, group, topic, PARTITIONS) == [6] * PARTITIONS


def leads_all(cluster: MixedCluster, member: int) -> bool:
    topics = ("__consumer_offsets", "__transaction_state")
    return all(cluster.leader(name, number) == member for name in topics for number in range(4))
