"""Transactions of Java's producer in the second protocol (KIP-890) on three brokers, back to back.

Partitions and groups are on all brokers, and join a transaction by being written to, so each leader
asks the coordinator, mostly on another broker. One broker after the other is killed beside it.
Promise: no transaction ends a producer, and what is committed is read once, with its offsets.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fault.transaction_exam import Exam
from support.drivers.java import FIRST_TEST_TIMEOUT_S, Java, java_missing
from support.running.threads import repeated

from kbroker.testing import Cluster

pytestmark = [
    pytest.mark.fault,
    pytest.mark.slow,
    pytest.mark.java,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S + 600),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

JAVA = "4.3.0"
BROKERS = 3
TRANSACTIONS = 2_000
KILL_EVERY_S = 2.0
SETTINGS = {"default.replication.factor": 3, "min.insync.replicas": 2}


@contextmanager
def kills(cluster: Cluster, chance: random.Random) -> Iterator[list[int]]:
    """One broker after the other, each once the last one serves again; yields their ids."""
    killed: list[int] = []

    def kill() -> None:
        victim = chance.randrange(BROKERS)
        cluster.kill(victim)
        killed.append(victim)
        threading.Event().wait(chance.random())  # it is away for a while
        cluster.restart(victim)

    with repeated(kill, lambda: KILL_EVERY_S * (0.5 + chance.random())):
        yield killed


@pytest.mark.parametrize("kill", [False, True], ids=["calm", "kills"])
def test_transactions_of_the_second_protocol_are_exact_and_end_no_producer(
    kill: bool, seed: int, scale: int
) -> None:
    chance = random.Random(seed)
    with Cluster(BROKERS, SETTINGS) as cluster:
        java = Java(cluster.bootstrap, JAVA)
        try:
            exam = Exam(cluster, java, replicas=BROKERS)
            killed: list[int] = []
            if kill:
                with kills(cluster, chance) as killed:
                    exam.run(TRANSACTIONS // 4 * scale)
            else:
                exam.run(TRANSACTIONS)
            exam.check()
        finally:
            java.close()
    print(f"{exam.commits} committed, {exam.aborts} aborted, {len(killed)} kills, "
          f"{len(exam.errors)} errors: {exam.errors[:5]}")  # fmt: skip
    assert exam.commits
    assert bool(killed) == kill
    assert kill or not exam.errors
