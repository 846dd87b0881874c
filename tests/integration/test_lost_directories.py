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

PATIENCE_S = 90
# A busy machine takes long to start the other brokers.
SETTINGS = {"num.io.threads": 1, "kbroker.tail.repair.wait.ms": 120_000}


@pytest.fixture(scope="module", params=some_of([2, 3], [2]))
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Each test leaves it with all brokers running, and has a topic of its own."""
    with Cluster(brokers=request.param, config=SETTINGS) as made:
        yield made


def create(cluster: Cluster, name: str) -> None:
    """With one partition, of which every broker has a replica, and the first one leads."""
    replicas = {0: list(range(len(cluster.brokers)))}
    with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin:
        admin.create_topics([NewTopic(name, -1, -1, replica_assignments=replicas)])


def produce(bootstrap: str, name: str, values: list[bytes]) -> None:
    with closing(KafkaProducer(bootstrap_servers=bootstrap, acks="all", retries=20)) as producer:
        sent = [producer.send(name, value, partition=0) for value in values]
        for one in sent:
            one.get(timeout=PATIENCE_S)


def read_all(bootstrap: str, name: str, count: int) -> list[bytes]:
    with closing(KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")) as one:
        one.assign([TopicPartition(name, 0)])
        found: list[bytes] = []

        def read() -> bool:
            for records in one.poll(timeout_ms=500).values():
                found.extend(record.value for record in records)
            return len(found) >= count

        wait_until(read, PATIENCE_S, f"{count} records are read")
        return found


def directory(broker: Broker, name: str) -> Path:
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


def begin_deletion(cluster: Cluster, name: str) -> None:
    """As a client does whose request the controller has stored, but that waits for no broker."""
    with asked(cluster) as client:
        client.create(paths.delete_topic(name))


def is_gone(cluster: Cluster, name: str) -> bool:
    with asked(cluster) as client:
        return client.exists(paths.topic(name)) is None


def test_records_of_a_deleted_topic_do_not_come_back_in_the_next_one_of_its_name(
    cluster: Cluster,
) -> None:
    """A broker that stops before it has deleted its log must not say later that it is deleted."""
    topic = "deleted"
    create(cluster, topic)
    produce(cluster.bootstrap, topic, values_of("old", 40))
    away = cluster.brokers[-1]
    first = read_creation(str(directory(away, topic)))
    away.kill_all()
    begin_deletion(cluster, topic)

    away.start()

    wait_until(lambda: is_gone(cluster, topic), PATIENCE_S, "the topic is deleted")
    for broker in cluster.brokers:
        assert not directory(broker, topic).exists(), "its deletion was acknowledged"
    create(cluster, topic)
    values = values_of("new", 5)
    produce(cluster.bootstrap, topic, values)
    cluster.wait_in_sync(topic)
    assert read_all(cluster.bootstrap, topic, len(values)) == values
    creations = {read_creation(str(directory(broker, topic))) for broker in cluster.brokers}
    assert len(creations) == 1 and creations.isdisjoint({first, b""})


def test_log_that_a_deletion_has_left_behind_is_not_that_of_the_next_topic(
    cluster: Cluster,
) -> None:
    """Whatever the reason: its directory says which creation of the topic it belongs to."""
    topic = "left-behind"
    create(cluster, topic)
    produce(cluster.bootstrap, topic, values_of("old", 40))
    away = cluster.brokers[-1]
    cluster.wait_in_sync(topic)
    away.stop()
    kept = Path(away.data_dir).parent / "kept-aside"
    shutil.copytree(directory(away, topic), kept)
    away.start()
    with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin:
        admin.delete_topics([topic])
    wait_until(lambda: is_gone(cluster, topic), PATIENCE_S, "the topic is deleted")
    away.stop()
    shutil.move(kept, directory(away, topic))
    with asked(cluster) as client:  # no broker creates a replica on one that is away
        document = paths.encode_topic(None, {0: [0, cluster.brokers.index(away)]})
        client.create(paths.topic(topic), document)
    values = values_of("new", 5)
    produce(cluster.brokers[0].bootstrap, topic, values)

    away.start()

    cluster.wait_in_sync(topic)
    log = directory(away, topic) / f"{0:020}.log"
    assert log.read_bytes() == (directory(cluster.brokers[0], topic) / log.name).read_bytes()
    (stray,) = Path(away.data_dir).glob(f"{topic}-0.*-stray")
    assert b"old00039" in (stray / log.name).read_bytes()


def produced(cluster: Cluster, topic: str) -> list[bytes]:
    create(cluster, topic)
    values = values_of("v", 200)
    produce(cluster.bootstrap, topic, values)
    cluster.wait_in_sync(topic)
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
    topic = "emptied"
    values = produced(cluster, topic)
    kill(cluster)
    lost, *others = cluster.brokers
    empty(lost)

    lost.start()
    for other in others:
        other.start()

    assert read_all(cluster.bootstrap, topic, len(values)) == values
    assert f"{topic}-0: to be led in leader epoch" in lost.log_text
    cluster.wait_in_sync(topic)
    assert read_all(lost.bootstrap, topic, len(values)) == values
    wait_until(lambda: not boots.has_suspects(lost.data_dir), PATIENCE_S, "nothing is suspect")


@pytest.mark.slow  # tests of the directory check tell restored directories from others
@pytest.mark.parametrize("is_clean", [True, False])
def test_broker_that_returns_first_with_an_older_disk_gets_its_records_back(
    cluster: Cluster, is_clean: bool
) -> None:
    """A restored backup looks like a directory that was closed in order."""
    topic = f"restored-{is_clean}"
    create(cluster, topic)
    old = values_of("old", 20)
    produce(cluster.bootstrap, topic, old)
    cluster.wait_in_sync(topic)
    lost, *others = cluster.brokers
    backup = Path(lost.data_dir).parent / f"backup-{is_clean}"
    if is_clean:
        lost.stop()
    shutil.copytree(lost.data_dir, backup)
    if is_clean:
        lost.start()
        cluster.wait_in_sync(topic)
    values = values_of("v", 200)
    produce(cluster.bootstrap, topic, values)
    cluster.wait_in_sync(topic)
    kill(cluster)
    shutil.rmtree(lost.data_dir)
    shutil.copytree(backup, lost.data_dir)
    said_before = len(lost.log_text)

    lost.start()
    for other in others:
        other.start()

    assert read_all(cluster.bootstrap, topic, len(old + values)) == old + values
    assert "is not as this broker left it" in lost.log_text[said_before:]


def test_broker_whose_disk_is_what_it_was_is_not_suspect(cluster: Cluster) -> None:
    """Idle replicas neither: nothing waits for other brokers when a whole cluster comes back."""
    topic = "well"
    values = produced(cluster, topic)
    create(cluster, "idle")
    cluster.wait_in_sync("idle")
    kill(cluster)
    first, *others = cluster.brokers
    said_before = len(first.log_text)

    first.start()

    produce(first.bootstrap, topic, [b"alone"])
    assert "as this broker left it" not in first.log_text[said_before:]
    assert not boots.has_suspects(first.data_dir)
    for other in others:
        other.start()
    assert read_all(cluster.bootstrap, topic, len(values) + 1) == [*values, b"alone"]
