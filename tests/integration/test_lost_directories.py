"""Brokers of a cluster and their disks: logs of deleted topics that stay, disks that are lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kazoo.client import KazooClient
from support.running.grids import some_of

from kbroker.metastore import paths
from kbroker.storage.dirs import boots
from kbroker.storage.dirs.creation_note import read_creation
from kbroker.testing import Broker, Cluster, wait_until

pytestmark = pytest.mark.integration

TOPIC, PATIENCE_S = "kept", 90
ALL = [0, 1, 2]
# A busy machine takes long to start the other brokers.
SETTINGS = {"num.io.threads": 1, "kbroker.tail.repair.wait.ms": 120_000}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, config=SETTINGS) as made:
        yield made


def create(bootstrap: str, name: str = TOPIC, replicas: list[int] = ALL) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        admin.create_topics([NewTopic(name, -1, -1, replica_assignments={0: replicas})])


def produce(bootstrap: str, values: list[bytes], name: str = TOPIC) -> None:
    with closing(KafkaProducer(bootstrap_servers=bootstrap, acks="all", retries=20)) as producer:
        sent = [producer.send(name, value, partition=0) for value in values]
        for one in sent:
            one.get(timeout=PATIENCE_S)


def read_all(bootstrap: str, count: int, name: str = TOPIC) -> list[bytes]:
    with closing(KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")) as one:
        one.assign([TopicPartition(name, 0)])
        found: list[bytes] = []

        def read() -> bool:
            for records in one.poll(timeout_ms=500).values():
                found.extend(record.value for record in records)
            return len(found) >= count

        wait_until(read, PATIENCE_S, f"{count} records are read")
        return found


def directory(broker: Broker, name: str = TOPIC) -> Path:
    return Path(broker.data_dir, f"{name}-0")


def values_of(kind: str, count: int) -> list[bytes]:
    return [f"{kind}{number:05}".encode() for number in range(count)]


@contextmanager
def asked(cluster: Cluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper_connect)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def begin_deletion(cluster: Cluster) -> None:
    """As a client does whose request the controller has stored, but that waits for no broker."""
    with asked(cluster) as client:
        client.create(paths.delete_topic(TOPIC))


def is_gone(cluster: Cluster) -> bool:
    with asked(cluster) as client:
        return client.exists(paths.topic(TOPIC)) is None


def test_records_of_a_deleted_topic_do_not_come_back_in_the_next_one_of_its_name(
    cluster: Cluster,
) -> None:
    """A broker that stops before it has deleted its log must not say later that it is deleted."""
    create(cluster.bootstrap)
    produce(cluster.bootstrap, values_of("old", 40))
    away = cluster.brokers[2]
    first = read_creation(str(directory(away)))
    away.kill_all()
    begin_deletion(cluster)

    away.start()

    wait_until(lambda: is_gone(cluster), PATIENCE_S, "the topic is deleted")
    for broker in cluster.brokers:
        assert not directory(broker).exists(), "its deletion was acknowledged"
    create(cluster.bootstrap)
    values = values_of("new", 5)
    produce(cluster.bootstrap, values)
    cluster.wait_in_sync(TOPIC)
    assert read_all(cluster.bootstrap, len(values)) == values
    creations = {read_creation(str(directory(broker))) for broker in cluster.brokers}
    assert len(creations) == 1 and creations.isdisjoint({first, b""})


def test_log_that_a_deletion_has_left_behind_is_not_that_of_the_next_topic(
    cluster: Cluster,
) -> None:
    """Whatever the reason: its directory says which creation of the topic it belongs to."""
    create(cluster.bootstrap)
    produce(cluster.bootstrap, values_of("old", 40))
    away = cluster.brokers[2]
    cluster.wait_in_sync(TOPIC)
    away.stop()
    kept = Path(away.data_dir).parent / "kept-aside"
    shutil.copytree(directory(away), kept)
    away.start()
    with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin:
        admin.delete_topics([TOPIC])
    wait_until(lambda: is_gone(cluster), PATIENCE_S, "the topic is deleted")
    away.stop()
    shutil.move(kept, directory(away))
    with asked(cluster) as client:  # no broker creates a replica on one that is away
        document = paths.encode_topic(None, {0: [0, 2]})
        client.create(paths.topic(TOPIC), document)
    values = values_of("new", 5)
    produce(cluster.brokers[0].bootstrap, values)

    away.start()

    cluster.wait_in_sync(TOPIC)
    log = directory(away) / f"{0:020}.log"
    assert log.read_bytes() == (directory(cluster.brokers[0]) / log.name).read_bytes()
    (stray,) = Path(away.data_dir).glob(f"{TOPIC}-0.*-stray")
    assert b"old00039" in (stray / log.name).read_bytes()


def produced(cluster: Cluster) -> list[bytes]:
    create(cluster.bootstrap)
    values = values_of("v", 200)
    produce(cluster.bootstrap, values)
    cluster.wait_in_sync(TOPIC)
    return values


def kill(cluster: Cluster) -> None:
    """All of them; broker 0 is the last one in sync."""
    for broker in reversed(cluster.brokers):
        broker.kill_all()


def empty(broker: Broker) -> None:
    """Another disk is mounted in the place of the broker's."""
    shutil.rmtree(broker.data_dir)
    Path(broker.data_dir).mkdir()


def test_broker_that_returns_first_with_an_empty_disk_gets_its_records_back(
    cluster: Cluster,
) -> None:
    """Kafka 2.7 elects it, and has the others truncate everything."""
    values = produced(cluster)
    kill(cluster)
    lost, *others = cluster.brokers
    empty(lost)

    lost.start()
    for other in others:
        other.start()

    assert read_all(cluster.bootstrap, len(values)) == values
    assert f"{TOPIC}-0: to be led in leader epoch" in lost.log_text
    cluster.wait_in_sync(TOPIC)
    assert read_all(lost.bootstrap, len(values)) == values
    wait_until(lambda: not boots.has_suspects(lost.data_dir), PATIENCE_S, "nothing is suspect")


@pytest.mark.parametrize("is_clean", some_of([True, False], [True]))
def test_broker_that_returns_first_with_an_older_disk_gets_its_records_back(
    cluster: Cluster, is_clean: bool
) -> None:
    """A restored backup looks like a directory that was closed in order."""
    create(cluster.bootstrap)
    old = values_of("old", 20)
    produce(cluster.bootstrap, old)
    cluster.wait_in_sync(TOPIC)
    lost, *others = cluster.brokers
    backup = Path(lost.data_dir).parent / "backup"
    if is_clean:
        lost.stop()
    shutil.copytree(lost.data_dir, backup)
    if is_clean:
        lost.start()
        cluster.wait_in_sync(TOPIC)
    values = values_of("v", 200)
    produce(cluster.bootstrap, values)
    cluster.wait_in_sync(TOPIC)
    kill(cluster)
    shutil.rmtree(lost.data_dir)
    shutil.copytree(backup, lost.data_dir)

    lost.start()
    for other in others:
        other.start()

    assert read_all(cluster.bootstrap, len(old + values)) == old + values
    assert "is not as this broker left it" in lost.log_text


def test_broker_whose_disk_is_what_it_was_is_not_suspect(cluster: Cluster) -> None:
    """Idle replicas neither: nothing waits for other brokers when a whole cluster comes back."""
    values = produced(cluster)
    create(cluster.bootstrap, "idle")
    cluster.wait_in_sync("idle")
    kill(cluster)
    first, *others = cluster.brokers

    first.start()

    produce(first.bootstrap, [b"alone"])
    assert "as this broker left it" not in first.log_text
    assert not boots.has_suspects(first.data_dir)
    for other in others:
        other.start()
    assert read_all(cluster.bootstrap, len(values) + 1) == [*values, b"alone"]
