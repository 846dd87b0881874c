"""Three brokers of Kafka 2.7.2 become kbrokers, one by one, and Kafkas again, under a load.

On the same directories, with the same files of settings. All the time an idempotent producer
writes, a consumer group reads and commits, and transactions are committed and aborted; nothing of
it may show more than a change of leaders. Takes minutes: ``tools/exam.py mixed``.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from interop.mixed import MixedCluster, waited
from support.clients.wire_client import WireClient
from support.faults.history import History, LoggedRecord
from support.faults.load import TOPIC, Load, read_partition
from support.faults.transactions import PARTITIONS as WRITTEN
from support.faults.transactions import (
    Transactions,
    check,
    read_committed,
    running,
    write_last,
)
from support.running.seeds import seeded

from kbroker.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(1800)]

NUMBERS = [1, 2, 3]
PARTITIONS = 6
GROUP = "swap"
TRANSACTED = "t"
COORDINATORS = {"__consumer_offsets": 3, "__transaction_state": 3}
SETTINGS = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
}


@pytest.fixture(autouse=True)
def clean_log() -> None:
    """The broker that other tests of this folder share is not needed."""


class SwapLoad(Load):
    """An idempotent writer, and a member of a group that commits what it has read."""

    def __init__(self, cluster: MixedCluster, history: History, seed: int) -> None:
        first: Any = cluster.members[NUMBERS[0]]
        super().__init__(first, history, PARTITIONS, seed)
        self.bootstrap = cluster.bootstrap
        self.read: set[tuple[int, int]] = set()  # partitions and offsets
        self.commits = 0

    def begin(self) -> SwapLoad:
        self.librdkafka_writer("idempotent", rate=200, enable_idempotence=True)
        self.start(GROUP, self._read_as_group)
        return self

    def _read_as_group(self) -> None:
        log = self.history.group(GROUP, TOPIC)
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        consumer.subscribe([TOPIC])
        try:
            while self.running:
                read = [one for one in consumer.consume(500, 0.5) if one.error() is None]
                self.read.update((one.partition(), one.offset()) for one in read)
                with suppress(KafkaException):  # its coordinator moves
                    for committed in consumer.commit(asynchronous=False) if read else ():
                        if committed.offset >= 0:  # something of the partition was read
                            log.see(committed.partition, committed.offset)
                            self.commits += 1
        finally:
            consumer.close()

    def wait_for_progress(self, transactions: list[Transactions]) -> None:
        """Until there were records of each partition, commits and transactions since the call."""
        acked = self.history.writers["idempotent"].acked
        before, commits = len(acked), self.commits
        counts = [one.count for one in transactions]

        def is_so() -> bool:
            if self.errors:
                raise self.errors[0]
            partitions = {partition for _, partition, *_ in acked[before:]}
            assert len(partitions) == PARTITIONS, f"only {partitions} are written to"
            assert self.commits > commits + PARTITIONS, "the group does not commit"
            now = [one.count for one in transactions]
            assert all(n > b + 1 for n, b in zip(now, counts, strict=True)), f"{now} transactions"
            return True

        waited(is_so, "the load goes on")


def assignment(partitions: int) -> dict[int, list[int]]:
    """The brokers lead in turn."""
    return {number: [NUMBERS[(number + n) % 3] for n in range(3)] for number in range(partitions)}


def wait_in_sync(cluster: MixedCluster) -> None:
    topics = {TOPIC: PARTITIONS, TRANSACTED: WRITTEN, **COORDINATORS}

    def are_so() -> bool:
        late = [
            f"{topic}-{number}"
            for topic, partitions in topics.items()
            for number in range(partitions)
            if cluster.isr(topic, number) != set(NUMBERS)
        ]
        assert not late, late
        return True

    waited(are_so, "all replicas are in sync")


def read_leaders(cluster: MixedCluster) -> dict[tuple[str, int], list[LoggedRecord]]:
    found = {}
    for number in range(PARTITIONS):
        leader = cluster.members[cluster.leader(TOPIC, number) or 0]
        with WireClient((leader.host, leader.port)) as client:
            found[TOPIC, number] = read_partition(client, TOPIC, number)
    return found


def check_group(load: SwapLoad) -> None:
    """Its commits go forwards, and it has read all that is below them."""
    committed = load.history.groups[GROUP].seen
    assert len(committed) == PARTITIONS
    for partition, offsets in committed.items():
        assert offsets == sorted(offsets), f"{TOPIC}-{partition}"
        unread = {
            offset
            for _, number, _, offset in load.history.writers["idempotent"].acked
            if number == partition
            and 0 <= offset < offsets[-1]
            and (partition, offset) not in load.read
        }
        assert not unread, f"{TOPIC}-{partition}: {sorted(unread)[:10]} of {offsets[-1]}"


def test_kafkas_become_kbrokers_and_kafkas_again(tmp_path: Path) -> None:
    seed, ending, history = seeded().getrandbits(32), threading.Event(), History()
    with MixedCluster(tmp_path, SETTINGS) as cluster:
        kafkas = {number: cluster.kafka(number) for number in NUMBERS}
        cluster.create(TOPIC, assignment(PARTITIONS))
        cluster.create(TRANSACTED, assignment(WRITTEN))
        producers = [Transactions(cluster.bootstrap, f"p{n}", seed, ending) for n in range(2)]
        load = SwapLoad(cluster, history, seed)
        with load.begin(), running(producers, ending):
            load.wait_for_progress(producers)
            for number, kafka in kafkas.items():
                kafka.stop()
                cluster.replace(number, kafka)
                wait_in_sync(cluster)
                load.wait_for_progress(producers)
            assert all(isinstance(member, Broker) for member in cluster.members.values())
            for number, kafka in kafkas.items():
                assert cluster.members[number].stop() == 0
                cluster.members[number] = kafka.start()
                cluster.wait_ready()
                wait_in_sync(cluster)
                load.wait_for_progress(producers)
        write_last(cluster.bootstrap, seed, ending)

        problems = history.check(read_leaders(cluster))
        assert not problems, f"{len(problems)} problems: " + "\n".join(problems[:10])
        check(producers, read_committed(cluster.bootstrap))
        check_group(load)
        for topic, partitions in ((TOPIC, PARTITIONS), (TRANSACTED, WRITTEN)):
            for number in range(partitions):
                cluster.assert_same_logs(topic, partition=number)
        # Nobody noticed more than changes of leaders.
        assert not history.writers["idempotent"].failed
        assert not [text for one in producers for text in one.unknown]
