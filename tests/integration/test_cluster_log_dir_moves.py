"""Replicas of a cluster are moved between log directories, those of followers too, under load."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from support.brokers.zookeeper import skip_without_zookeeper
from support.clients.log_dir_moves import move_all, replicas, set_rate
from support.clients.wire_client import LATEST, WireClient

from kbroker.testing import Cluster, wait_until

pytestmark = pytest.mark.integration

TOPIC = "moves"
PARTITIONS = 4
RECORD = b"x" * 1000
PATIENCE_S = 60
UNLIMITED = 1 << 40


@pytest.fixture
def dirs(tmp_path: Path) -> list[list[str]]:
    """The two log directories of each broker."""
    return [[str(tmp_path / f"{name}-{number}") for name in "ab"] for number in range(3)]


@pytest.fixture
def cluster(dirs: list[list[str]]) -> Iterator[Cluster]:
    skip_without_zookeeper()
    each = {number: {"log.dirs": ",".join(pair)} for number, pair in enumerate(dirs)}
    with Cluster(3, each=each, num_io_threads=1, log_segment_bytes=1 << 20) as started:
        with closing(KafkaAdminClient(bootstrap_servers=started.bootstrap)) as admin:
            settings = {"min.insync.replicas": "2"}
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, topic_configs=settings)])
        yield started


class Load:
    """Sends records to every partition with acks=all until it is stopped."""

    def __init__(self, cluster: Cluster) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=cluster.bootstrap, acks="all", retries=100, linger_ms=2,
            request_timeout_ms=20_000, delivery_timeout_ms=PATIENCE_S * 1000,
        )  # fmt: skip
        self.acknowledged = [0] * PARTITIONS
        self.errors: list[Exception] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with closing(self._producer):
            while not self._over.is_set() and not self.errors:
                sent = [
                    self._producer.send(TOPIC, RECORD, partition=p)
                    for p in range(PARTITIONS)
                    for _ in range(20)
                ]
                try:
                    for future in sent:
                        self.acknowledged[future.get(PATIENCE_S).partition] += 1
                except Exception as error:
                    self.errors.append(error)

    def stop(self) -> list[int]:
        self.close()
        assert not self.errors
        return self.acknowledged

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def logs(dirs: list[str]) -> list[bytes]:
    """The bytes of each partition, which is in one of the directories only."""
    found = []
    for number in range(PARTITIONS):
        (place,) = [at for path in dirs if (at := Path(path, f"{TOPIC}-{number}")).is_dir()]
        found.append(b"".join(path.read_bytes() for path in sorted(place.glob("*.log"))))
    return found


@pytest.mark.slow
def test_replicas_of_leaders_and_followers_are_moved_under_load(
    cluster: Cluster, dirs: list[list[str]]
) -> None:
    load = Load(cluster)
    clients = [WireClient((broker.host, broker.port)) for broker in cluster.brokers]
    wait_until(lambda: all(len(replicas(one)) == PARTITIONS for one in clients), PATIENCE_S)
    wait_until(lambda: min(load.acknowledged) > 400, PATIENCE_S, "there is something to move")

    wanted = [move_all(client, pair) for client, pair in zip(clients, dirs, strict=True)]
    for client, targets in zip(clients, wanted, strict=True):
        wait_until(lambda c=client, t=targets: replicas(c) == t, PATIENCE_S, "all are moved")

    counts = load.stop()
    (topic,) = clients[0].metadata(TOPIC).topics
    leader_of = {one.partition_index: one.leader_id for one in topic.partitions}
    ends = [clients[leader_of[p]].offset(TOPIC, p, LATEST) for p in range(PARTITIONS)]
    assert ends == counts
    wait_until(
        lambda: len({tuple(logs(pair)) for pair in dirs}) == 1, PATIENCE_S, "all logs are equal"
    )
    for client in clients:
        client.close()


def test_move_of_a_broker_that_is_not_the_controller_continues_after_a_restart(
    cluster: Cluster, dirs: list[list[str]]
) -> None:
    """The first image of its processes has no topic."""
    number = next(n for n in range(3) if n != cluster.controller)
    broker = cluster.brokers[number]
    with closing(Load(cluster)) as load:
        wait_until(lambda: min(load.acknowledged) > 100, PATIENCE_S, "there is something to move")
    with closing(WireClient((broker.host, broker.port))) as client:
        set_rate(client, 1)
        wanted = move_all(client, dirs[number])

    broker.restart()

    with closing(WireClient((broker.host, broker.port))) as client:
        # A throttled move ends all the same if the rest is small.
        wait_until(
            lambda: {**replicas(client), **replicas(client, future=True)} == wanted,
            PATIENCE_S,
            "they continue, or are at their end",
        )
        set_rate(client, UNLIMITED)
        wait_until(lambda: replicas(client) == wanted, PATIENCE_S, "all are moved")
