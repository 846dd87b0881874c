"""Transactions of Java's producer, back to back, over several io workers.

Each commits offsets, every other one records, and the next begins while the markers of the last are
still on their way: from the coordinator of transactions to that of groups, mostly in different io
workers. In the second transaction protocol (Java 4) nobody waits for them but the broker. The
larger sizes: ``python -m pytest -m slow tests/fault/test_back_to_back_transactions.py``.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, TopicPartition
from interop.drivers.confluent import Confluent
from interop.drivers.java import FIRST_TEST_TIMEOUT_S, Java, java_missing
from interop.drivers.transactions import JavaTransactions

from kbroker.testing import Broker, Cluster, wait_until

pytestmark = [
    pytest.mark.fault,
    pytest.mark.java,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

PARTITIONS = 3
# Enough for some to be coordinated in the io worker of the transaction, and some not.
GROUPS = [f"g{number}" for number in range(8)]
CHUNK_MS = 20_000
KILLS_EVERY_S = 0.5


class Exam:
    """One producer in a loop, and its results."""

    def __init__(self, broker: Broker | Cluster, java: Java, replicas: int = 1) -> None:
        self.bootstrap = broker.bootstrap
        self.reader = Confluent(broker.bootstrap)
        self.reader.create_topic("t", PARTITIONS, replicas=replicas)
        self.producer = JavaTransactions(java, broker.bootstrap, "tx", 60_000)
        self.producer.init()
        self.commits = self.aborts = self.sending = self.next = 0
        self.committed: dict[str, int] = {}
        self.errors: list[str] = []

    def run(self, count: int) -> None:
        end = self.next + count
        while self.next < end:
            told = self.producer.loop(
                "t",
                PARTITIONS,
                GROUPS,
                first=self.next,
                count=end - self.next,
                limit_ms=CHUNK_MS,
            )
            self.next = told["next"]
            self.commits += told["commits"]
            self.aborts += told["aborts"]
            self.sending += told["sending"]
            self.committed |= told["committed"]
            self.errors += told["errors"]
            assert not told["fatal"], f"after {self.commits} commits: {self.errors[-3:]}"

    def check(self) -> None:
        """All committed records are there once, and nothing else."""
        for partition in range(PARTITIONS):
            found = self.reader.fetch("t", self.sending, partition=partition, committed=True)
            values = [int(record.value or b"") for record in found]
            assert values == sorted(set(values))
            assert len(values) == self.sending
        for group, number in self.committed.items():
            settings = {"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0}
            consumer = Consumer(settings)
            (place,) = consumer.committed([TopicPartition("t", 0)], 10)
            consumer.close()
            assert place.offset == number


@contextmanager
def examined(io_workers: int, version: str) -> Iterator[tuple[Broker, Exam]]:
    with Broker(
        num_io_threads=io_workers,
        offsets_topic_num_partitions=8,
        transaction_state_log_num_partitions=8,
        worker_restart_backoff_max_ms=200,
    ) as broker:
        java = Java(broker.bootstrap, version)
        try:
            yield broker, Exam(broker, java)
        finally:
            java.close()


@contextmanager
def kills(broker: Broker, io_workers: int, chance: random.Random) -> Iterator[list[int]]:
    """Io workers are killed one after the other until the end, the next one once the last one
    serves again; returns their indexes.
    """
    done = threading.Event()
    killed: list[int] = []
    failed: list[BaseException] = []

    def kill() -> None:
        try:
            while not done.wait(KILLS_EVERY_S * (0.5 + chance.random())):
                victim = chance.randrange(io_workers)
                broker.kill("io", victim)
                killed.append(victim)
                wait_until(lambda: is_healthy(broker), 60, "every process serves")
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        done.set()
        thread.join()
    assert not failed, failed


def is_healthy(broker: Broker) -> bool:
    try:
        return urlopen(f"{broker.metrics_url}/health", timeout=10).status == 200
    except OSError:  # 503 is one of urllib's
        return False


def examine(io_workers: int, version: str, count: int, chance: random.Random | None) -> Any:
    with examined(io_workers, version) as (broker, exam):
        killed: list[int] = []
        if chance is None:
            exam.run(count)
        else:
            with kills(broker, io_workers, chance) as killed:
                exam.run(count)
        exam.check()
    print(f"{version}, {io_workers} io workers: {exam.commits} committed, {exam.aborts} aborted, "
          f"{len(killed)} kills, {len(exam.errors)} errors: {exam.errors[:5]}")  # fmt: skip
    return exam, killed


@pytest.mark.parametrize("version", ["4.3.0", "3.9.1"])
def test_back_to_back_transactions_with_offsets_all_commit(version: str) -> None:
    exam, _ = examine(2, version, 1500, None)
    assert (exam.commits, exam.errors) == (1500, [])


@pytest.mark.slow
@pytest.mark.parametrize("io_workers", [1, 2, 4])
@pytest.mark.parametrize("version", ["4.1.1", "4.3.0"])
def test_20000_transactions_all_commit(version: str, io_workers: int) -> None:
    exam, _ = examine(io_workers, version, 20_000, None)
    assert (exam.commits, exam.errors) == (20_000, [])


@pytest.mark.parametrize("version", ["4.3.0"])
def test_kills_of_io_workers_may_abort_transactions_but_end_no_producer(
    version: str, seed: int, scale: int
) -> None:
    exam, killed = examine(2, version, 500 * scale, random.Random(seed))
    assert killed and exam.commits


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("io_workers", [1, 2, 4])
def test_kills_of_io_workers_beside_20000_transactions_end_no_producer(
    io_workers: int, seed: int
) -> None:
    exam, killed = examine(io_workers, "4.3.0", 20_000, random.Random(seed))
    assert len(killed) > 10 and exam.commits
