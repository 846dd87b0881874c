"""Transactions of librdkafka under faults, and what of them a reader finds: each whole or not at
all.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from kbroker.testing import wait_until

PARTITIONS = 6
PATIENCE_S = 90
RETRIES_MAX = 10
LAST = "last"


class Transactions:
    """One producer after the other, and what became of each transaction."""

    def __init__(self, bootstrap: str, name: str, seed: int, ending: threading.Event) -> None:
        self.committed: set[str] = set()
        self.aborted: set[str] = set()
        self.unknown: set[str] = set()
        self.invalid: list[str] = []  # transactions that a coordinator did not know as open
        self._bootstrap = bootstrap
        self._name = name
        self._random = random.Random(f"{seed}-{name}")
        self._ending = ending
        self.thread = threading.Thread(target=self._run, name=name)

    @property
    def count(self) -> int:
        return len(self.committed) + len(self.aborted) + len(self.unknown)

    def _producer(self) -> Any:
        config = {
            "bootstrap.servers": self._bootstrap,
            "transactional.id": self._name,
            "transaction.timeout.ms": 2 * PATIENCE_S * 1000,
        }
        while True:
            producer = Producer({**config, "log_level": 0})
            try:
                producer.init_transactions(PATIENCE_S)
            except KafkaException:
                continue
            return producer

    def _run(self) -> None:
        producer = self._producer()
        while not self._ending.is_set():
            text = f"{self._name}-{self.count}"
            if not self._transact(producer, text):
                self.unknown.add(text)
                producer = self._producer()

    def _transact(self, producer: Any, text: str) -> bool:
        """Whether its end is known."""
        try:
            producer.begin_transaction()
            for number in range(PARTITIONS):
                producer.produce("t", text.encode(), partition=number)
            if self._random.random() < 0.3:
                # librdkafka ends a transaction even if AddPartitionsToTxn had no response: when the
                # coordinator died before it, INVALID_TXN_STATE is Kafka's answer, too, and fatal.
                # It also gives the sequence numbers of records whose response was lost to the next
                # transaction (rd_kafka_toppar_purge_queues, "advancing epoch base msgid"), although
                # the log has them: OUT_OF_ORDER_SEQUENCE_NUMBER, and fatal.
                if producer.flush(PATIENCE_S):
                    return False
                producer.abort_transaction(PATIENCE_S)
                self.aborted.add(text)
                return True
        except KafkaException as error:
            self._note(text, error)
            return False
        for _ in range(RETRIES_MAX):
            try:
                producer.commit_transaction(PATIENCE_S)
                self.committed.add(text)
                return True
            except KafkaException as error:
                if not error.args[0].retriable():
                    self._note(text, error)
                    return False
        return False

    def _note(self, text: str, error: KafkaException) -> None:
        if error.args[0].code() == KafkaError.INVALID_TXN_STATE:
            self.invalid.append(f"{text}: {error}")


def write_last(bootstrap: str, seed: int, ending: threading.Event) -> None:
    """Commit a record behind all others of each partition."""
    last = Transactions(bootstrap, "last", seed, ending)._producer()
    last.begin_transaction()
    for number in range(PARTITIONS):
        last.produce("t", LAST.encode(), partition=number)
    last.commit_transaction(PATIENCE_S)


def check(producers: Iterable[Transactions], found: dict[str, list[int]]) -> None:
    """Raises AssertionError unless what is read is what the producers were told."""
    whole = list(range(PARTITIONS))
    for one in producers:
        assert {t: found.get(t) for t in one.committed} == dict.fromkeys(one.committed, whole)
        assert not one.aborted & found.keys()
        assert not one.invalid
        assert all(found.get(text, whole) == whole for text in one.unknown)


@contextmanager
def running(producers: Iterable[Transactions], ending: threading.Event) -> Iterator[None]:
    """They write until the block ends."""
    for one in producers:
        one.thread.start()
    try:
        yield
    finally:
        ending.set()
        for one in producers:
            one.thread.join()


def read_committed(bootstrap: str) -> dict[str, list[int]]:
    """The partitions of each transaction's records, up to the last one."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    found: dict[str, list[int]] = {}

    def are_read() -> bool:
        for message in consumer.consume(1000, timeout=0.5):
            if message.error() is None:
                text = str(message.value(), "ascii")
                found.setdefault(text, []).append(message.partition())
        return len(found.get(LAST, ())) == PARTITIONS

    with closing(consumer):
        consumer.assign([TopicPartition("t", number, 0) for number in range(PARTITIONS)])
        wait_until(are_read, PATIENCE_S, "the last records are read")
    del found[LAST]
    return {text: sorted(partitions) for text, partitions in found.items()}
