"""Clients of a cluster that write with acks=all and read, and what its replicas hold in the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from support.clients.wire_client import WireClient
from support.faults.history import History, LoggedRecord
from support.faults.load import TOPIC, Load, read_partition

from kbroker.testing import Cluster, wait_until

# A producer that gives up a record may repeat others (``support.faults.producer_record``). One that
# gives up none during any harm has no excuse for a record that is there twice.
GIVE_UP_MS = 300_000
QUIET = {"log_level": 0, "socket.timeout.ms": 5_000}


class ClusterLoad(Load):
    """Writers and readers that find the leaders by themselves."""

    def __init__(self, cluster: Cluster, history: History, partitions: int, seed: int) -> None:
        super().__init__(cluster.brokers[0], history, partitions, seed)
        self.bootstrap = cluster.bootstrap

    def begin(self) -> ClusterLoad:
        """An idempotent writer, one that is not, and a reader."""
        self.idempotent_writer()
        self.librdkafka_writer("all", acks="all")
        self.librdkafka_reader("reader")
        return self

    def idempotent_writer(self) -> None:
        """librdkafka's, which repeats nothing of its own accord."""
        self.librdkafka_writer("idempotent", enable_idempotence=True, message_timeout_ms=GIVE_UP_MS)


def create_replicated(
    cluster: Cluster, partitions: int, min_in_sync: int = 2, led_by: int | None = None
) -> None:
    """The topic of the load, without records, with a replica on each broker, all in sync.

    led_by: the preferred leader of all partitions; None: as the controller assigns them.
    """
    replicas = len(cluster.brokers)
    place: dict[str, Any] = {"replication_factor": replicas}
    if led_by is not None:
        order = [led_by, *(n for n in range(replicas) if n != led_by)]
        place = {"replica_assignment": [order] * partitions}
    config = {"min.insync.replicas": str(min_in_sync)}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    if TOPIC in admin.list_topics(timeout=30).topics:
        admin.delete_topics([TOPIC], operation_timeout=30)[TOPIC].result(30)

    def created() -> bool:
        new = NewTopic(TOPIC, partitions, config=config, **place)
        try:
            admin.create_topics([new], operation_timeout=30)[TOPIC].result(30)
        except KafkaException as error:
            raise AssertionError(str(error)) from error  # not deleted everywhere yet
        return True

    wait_until(created, 60, f"{TOPIC} is created")
    cluster.wait_in_sync(TOPIC, replicas)


def read_leaders(cluster: Cluster) -> dict[tuple[str, int], list[LoggedRecord]]:
    """All records of the topic, each partition from its leader."""

    def read(partition: int) -> tuple[list[LoggedRecord]]:
        # Another broker may have become the leader since the last attempt.
        number = cluster.partitions(TOPIC)[partition].leader
        assert number >= 0, "it has no leader"
        leader = cluster.brokers[number]
        try:
            with WireClient((leader.host, leader.port)) as client:
                return (read_partition(client, TOPIC, partition),)
        except OSError as error:
            raise AssertionError(str(error)) from error

    def records(partition: int) -> list[LoggedRecord]:
        # An attempt alone waits as long as PATIENCE_S for a log that is not open.
        return wait_until(lambda: read(partition), 100, f"{TOPIC}-{partition} is read")[0]

    return {(TOPIC, partition): records(partition) for partition in cluster.partitions(TOPIC)}


def segments(cluster: Cluster, partition: int) -> list[bytes]:
    """What each broker's log of a partition holds on disk, without preallocated space."""
    found = []
    for broker in cluster.brokers:
        directory = broker.data_dir / f"{TOPIC}-{partition}"
        files: Iterable[Any] = sorted(directory.glob("*.log"))
        found.append(b"".join(path.read_bytes().rstrip(b"\0") for path in files))
    return found


def assert_replicas_agree(cluster: Cluster, partitions: int) -> None:
    """After all writers have ended, all replicas of a partition become the same bytes."""
    for partition in range(partitions):

        def same(partition: int = partition) -> bool:
            found = segments(cluster, partition)
            assert len(set(found)) == 1, f"{TOPIC}-{partition}: {[len(log) for log in found]} bytes"
            return True

        wait_until(same, 30, f"the replicas of {TOPIC}-{partition} are the same")
