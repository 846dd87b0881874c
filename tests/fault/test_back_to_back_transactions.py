"""Transactions of Java's producer, back to back, over several io workers.

Each commits offsets, every other one records, and the next begins while the markers of the last are
still on their way: from the coordinator of transactions to that of groups, mostly in different io
workers. In the second transaction protocol (Java 4) nobody waits for them but the broker. The
larger sizes: ``python -m pytest -m slow tests/fault/test_back_to_back_transactions.py``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

import pytest
from fault.transaction_exam import Exam
from support.drivers.java import FIRST_TEST_TIMEOUT_S, Java, java_missing
from support.running.threads import repeated

from kbroker.testing import Broker, wait_until

pytestmark = [
    pytest.mark.fault,
    pytest.mark.java,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

KILLS_EVERY_S = 0.5
KILLS_MIN = 3


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
    killed: list[int] = []

    def kill() -> None:
        victim = chance.randrange(io_workers)
        broker.kill("io", victim)
        killed.append(victim)
        wait_until(lambda: is_healthy(broker), 60, "every process serves")

    with repeated(kill, lambda: KILLS_EVERY_S * (0.5 + chance.random())):
        yield killed


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
                while len(killed) < KILLS_MIN:
                    exam.run(20)
        exam.check()
    print(f"{version}, {io_workers} io workers: {exam.commits} committed, {exam.aborts} aborted, "
          f"{len(killed)} kills, {len(exam.errors)} errors: {exam.errors[:5]}")  # fmt: skip
    return exam, killed


@pytest.mark.parametrize(
    ("version", "count"),
    [
        ("4.3.0", 50),
        pytest.param("4.3.0", 1500, marks=pytest.mark.slow),
        pytest.param("3.9.1", 1500, marks=pytest.mark.slow),
    ],
)
def test_back_to_back_transactions_with_offsets_all_commit(version: str, count: int) -> None:
    exam, _ = examine(2, version, count, None)
    assert (exam.commits, exam.errors) == (count, [])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("io_workers", [1, 2, 4])
@pytest.mark.parametrize("version", ["4.1.1", "4.3.0"])
def test_20000_transactions_all_commit(version: str, io_workers: int) -> None:
    exam, _ = examine(io_workers, version, 20_000, None)
    assert (exam.commits, exam.errors) == (20_000, [])


@pytest.mark.slow
@pytest.mark.parametrize("version", ["4.3.0"])
def test_kills_of_io_workers_may_abort_transactions_but_end_no_producer(
    version: str, seed: int, scale: int
) -> None:
    exam, killed = examine(2, version, 100 * scale, random.Random(seed))
    assert len(killed) >= KILLS_MIN and exam.commits


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("io_workers", [1, 2, 4])
def test_kills_of_io_workers_beside_20000_transactions_end_no_producer(
    io_workers: int, seed: int
) -> None:
    exam, killed = examine(io_workers, "4.3.0", 20_000, random.Random(seed))
    assert len(killed) > 10 and exam.commits
