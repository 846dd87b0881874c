"""Clients of a cluster whose brokers are killed, and when each of them last succeeded.

Each client notes the times of its successes under a role; the longest pause between two of them
that touches a kill is what that kill has cost it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from support.running.pace import hold

from kbroker.client import KafkaProducer

TOPIC, COMMITTED, IN_TRANSACTIONS = "failover", "failover-committed", "failover-transactions"
PARTITIONS = 6
GROUPS = 3
PACE_S = 0.02
QUIET = {"log_level": 0, "error_cb": lambda _: None}


class Successes:
    """When something has succeeded, by what it was."""

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    def note(self, what: str) -> None:
        with self._lock:
            self._times.setdefault(what, []).append(time.monotonic())

    def longest(self, since: float, until: float) -> dict[str, float]:
        """The longest pause of each between two successes, of which one is in that time."""
        with self._lock:
            times = {what: list(found) for what, found in self._times.items()}
        pauses = {}
        for what, found in times.items():
            pairs = zip(found, [*found[1:], until], strict=True)
            pauses[what] = max((b - a for a, b in pairs if b >= since and a <= until), default=0.0)
        return pauses


class FailoverLoad:
    """Threads with clients, until ``stop``. ``problems``: what they were told that must not be."""

    def __init__(self, bootstrap: str) -> None:
        self.successes = Successes()
        self.acked: dict[str, list[bytes]] = {"confluent": [], "own": []}
        self.committed: list[bytes] = []
        self.unknown: set[bytes] = set()
        self.problems: list[str] = []
        self._bootstrap = bootstrap
        self._stopping = threading.Event()
        works: list[Callable[[], None]] = [self._confluent, self._own, self._read, self._transact]
        works += [lambda number=number: self._commit(number) for number in range(GROUPS)]
        self._threads = [threading.Thread(target=self._guarded, args=(work,)) for work in works]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive(), "a client does not end"

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.problems.append(f"{work}: {error!r}")

    # -- acks=all --

    def _confluent(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "enable.idempotence": True,
             "linger.ms": 0, **QUIET}
        )  # fmt: skip
        number = 0

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self.acked["confluent"].append(message.value())
                self.successes.note(f"confluent produce {message.partition()}")
            else:
                self.problems.append(f"confluent produce: {error}")

        while not self._stopping.is_set():
            for partition in range(PARTITIONS):
                value = f"confluent {number}".encode()
                producer.produce(TOPIC, value, partition=partition, on_delivery=delivered)
                number += 1
            producer.poll(PACE_S)
            hold(PACE_S)
        if producer.flush(60):
            self.problems.append("confluent produce: not everything was delivered")

    def _own(self) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self._bootstrap, acks="all", enable_idempotence=True
        )
        number = 0

        def sent(partition: int, value: bytes) -> None:
            def delivered(_: Any, error: Any) -> None:
                if error is not None:
                    self.problems.append(f"own produce: {error!r}")
                    return
                self.acked["own"].append(value)
                self.successes.note(f"own produce {partition}")

            producer.send(TOPIC, value, partition=partition, callback=delivered)

        while not self._stopping.is_set():
            for partition in range(PARTITIONS):
                sent(partition, f"own {number}".encode())
                number += 1
            hold(PACE_S)
        producer.flush(60)
        producer.close()

    # -- reading and committing --

    def _read(self) -> None:
        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "reader",
             "enable.auto.commit": False, "auto.offset.reset": "earliest", **QUIET}
        )  # fmt: skip
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        while not self._stopping.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.successes.note(f"consume {message.partition()}")
        consumer.close()

    def _commit(self, number: int) -> None:
        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": f"group-{number}",
             "enable.auto.commit": False, **QUIET}
        )  # fmt: skip
        offset = 0
        while not self._stopping.is_set():
            offset += 1
            with suppress(KafkaException):
                place = TopicPartition(COMMITTED, 0, offset)
                (done,) = consumer.commit(offsets=[place], asynchronous=False)
                if done.error is None:
                    self.successes.note("commit")
                    self.successes.note(f"commit of group {number}")
            hold(PACE_S)
        consumer.close()

    # -- transactions --

    def _transact(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "transactional.id": "failover",
             "transaction.timeout.ms": 60_000, "linger.ms": 0, **QUIET}
        )  # fmt: skip
        self._until_done(producer.init_transactions)
        number = 0
        while not self._stopping.is_set():
            value = f"transaction {number}".encode()
            number += 1
            try:
                producer.begin_transaction()
                producer.produce(IN_TRANSACTIONS, value, partition=number % PARTITIONS)
                self._until_done(producer.commit_transaction)
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                self._until_done(producer.abort_transaction)
                continue
            self.committed.append(value)
            self.successes.note("transaction")
            hold(PACE_S)

    @staticmethod
    def _until_done(step: Callable[[float], None]) -> None:
        """Repeat what may be repeated."""
        while True:
            try:
                step(60.0)
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise


def doubled(values: Iterable[bytes]) -> list[bytes]:
    return [value for value, count in Counter(values).items() if count > 1]
