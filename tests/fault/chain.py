"""A chain of transactional read-process-write hops under load, and what it leaves behind.

An idempotent writer fills the first topic; the workers of each hop, a consumer group, take records
from one topic and put the same values into the same partition of the next, offsets and output in
one transaction. Some transactions are aborted on purpose. Whatever breaks, the last topic must have
visibly what the first has.
"""

from __future__ import annotations

import random
import sys
import threading
import time
import traceback
from itertools import pairwise
from typing import Any

from support.clients.wire_client import WireClient
from support.faults.history import (
    ABORTED,
    COMMITTED,
    Entry,
    History,
    OffsetLog,
    ReaderLog,
    check_chain,
    entries_of,
)
from support.faults.load import CLIENT_TIMEOUT_MS, REQUEST_TIMEOUT_S, TOPIC, Load, close

from kbroker.record.batch import RecordBatch
from kbroker.testing import Broker, wait_until

HOPS = 3
WORKERS = 2
PARTITIONS = 2
TOPICS = (TOPIC, *(f"{TOPIC}-{number}" for number in range(1, HOPS + 1)))
GROUPS = tuple(f"hop-{number}" for number in range(1, HOPS + 1))
ABORT_CHANCE = 0.08
CALL_S = 5.0
TRANSACTION_TIMEOUT_MS = 15_000
WATCH_PAUSE_S = 0.05
# Groups and transactions proceed as fast as they can.
SETTINGS = {
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}


class Chain:
    """A writer, hops, a read_committed consumer of each topic, watchers of offsets."""

    def __init__(self, broker: Broker, history: History, seed: int, rate: int = 300) -> None:
        self.broker, self.history, self.rate = broker, history, rate
        self.source = Load(broker, history, PARTITIONS, seed)
        self.hops = Load(broker, history, PARTITIONS, seed)
        self._random = random.Random(seed)
        self.readers: list[ReaderLog] = []

    def __enter__(self) -> Chain:
        with WireClient((self.broker.host, self.broker.port)) as client:
            for topic in TOPICS:
                client.create_topic(topic, PARTITIONS)
        for topic in TOPICS:
            log = self.history.reader(f"committed {topic}", topic)
            self.readers.append(log)
            self.hops.start(log.name, self._read, log)
        for index, group in enumerate(GROUPS):
            log_of_group = self.history.group(group, TOPICS[index])
            self.hops.start(f"watch {group}", self._watch, log_of_group)
            for number in range(WORKERS):
                worker = Worker(self, index, f"{group}.{number}", self._random.randrange(1 << 30))
                self.hops.start(worker.name, worker.run)
        self.source.librdkafka_writer("source", self.rate, enable_idempotence=True)
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is None:
            self.source.stop()
            try:
                wait_until(self._drained, 60, "the last topic has all that was written")
            except AssertionError:
                print(self.hops.errors)
                print_stacks()
                raise
        else:
            self.source._stopping.set()
        self.hops.stop(90)
        if kind is None:
            for log in self.history.groups.values():
                wait_until(lambda log=log: self._see_last(log), 20, f"offsets of {log.group}")

    def counts(self) -> list[int]:
        """The number of committed records read from each topic."""
        return [sum(map(len, list(reader.polled.values()))) for reader in self.readers]

    def _drained(self) -> bool:
        counts = self.counts()
        assert counts[0] >= self.history.acked_count and len(set(counts)) == 1, counts
        return True

    def wait_for_progress(self, timeout: float = 40.0) -> None:
        """Wait until records written from now on have passed all hops."""
        before = self.counts()
        goal = before[0] + 10
        wait_until(lambda: self.counts()[-1] >= goal, timeout, f"progress from {before} to {goal}")

    def check(self) -> None:
        """Raises AssertionError with all contradictions."""
        log = read_entries(self.broker)
        problems = self.history.check_transactions(log)
        problems += self.history.check_offsets(log, dict(zip(GROUPS, TOPICS[1:], strict=True)))
        for source, target in pairwise(TOPICS):
            for partition in range(PARTITIONS):
                problems += check_chain(log, source, target, partition)
        assert not problems, f"{len(problems)} problems, the first: " + "\n".join(problems[:10])
        attempts = [a for t in self.history.transactors.values() for a in t.attempts]
        outcomes = [attempt.outcome for attempt in attempts]
        print(f"{self.counts()[-1]} records, {len(attempts)} transactions, {set(outcomes)}")
        assert outcomes.count(COMMITTED) > 10 and self.counts()[-1] > 100

    def _read(self, log: ReaderLog) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(log.topic, index, 0) for index in range(PARTITIONS)])
        try:
            while self.hops.running:
                for message in consumer.consume(500, 0.1):
                    if message.error() is not None:
                        assert message.error().name() != "_AUTO_OFFSET_RESET", message.error()
                        continue
                    log.poll(message.partition(), message.offset(), message.value())
        finally:
            consumer.close()

    def _see_last(self, log: OffsetLog) -> bool:
        """Whether all partitions have their offsets and none waits for a marker."""
        with WireClient((self.broker.host, self.broker.port)) as client:
            offsets = client.committed(log.group, log.topic, PARTITIONS, stable=True)
        for partition, offset in offsets.items():
            log.see(partition, offset)
        return len(offsets) == PARTITIONS

    def _watch(self, log: OffsetLog) -> None:
        client: WireClient | None = None
        while self.hops.running:
            try:
                client = client or WireClient(self.source.address, REQUEST_TIMEOUT_S)
                for partition, offset in client.committed(log.group, log.topic, PARTITIONS).items():
                    log.see(partition, offset)
            except TimeoutError as error:
                raise AssertionError(f"OffsetFetch of {log.group} hangs") from error
            except OSError:
                client = close(client)
            time.sleep(WATCH_PAUSE_S)
        close(client)


class Worker:
    """One member of a hop. When anything is rejected it starts over, as after a crash."""

    def __init__(self, chain: Chain, index: int, name: str, seed: int) -> None:
        self.name = name
        self._load = chain.hops
        self._bootstrap = chain.broker.bootstrap
        self._source, self._target, self._group = TOPICS[index], TOPICS[index + 1], GROUPS[index]
        self._log = chain.history.transactor(name)
        self._random = random.Random(seed)

    def run(self) -> None:
        """Until the load stops."""
        from confluent_kafka import KafkaException

        while self._load.running:
            consumer = self._consumer()
            try:
                producer = self._producer()
                producer.init_transactions(CLIENT_TIMEOUT_MS / 1000)
                consumer.subscribe([self._source])
                while self._load.running:
                    self._process(consumer, producer)
            except (KafkaException, SystemError):
                # A fatal error interrupts a callback, which Python reports as a SystemError.
                time.sleep(0.05)
            finally:
                consumer.close()

    def _consumer(self) -> Any:
        from confluent_kafka import Consumer

        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self._group,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 200,
                "metadata.recovery.strategy": "none",
                "log_level": 0,
            }
        )

    def _producer(self) -> Any:
        from confluent_kafka import Producer

        return Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": self.name,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 1,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                # librdkafka 2.16 waits forever for a group's coordinator that it has replaced by
                # bootstrapping again, within send_offsets_to_transaction.
                "metadata.recovery.strategy": "none",
                "log_level": 0,
                "error_cb": lambda error: None,
            }
        )

    def _process(self, consumer: Any, producer: Any) -> None:
        """One transaction, if there are records."""
        from confluent_kafka import TopicPartition

        given = consumer.consume(self._random.choice((1, 20, 100)), 0.1)
        taken = [message for message in given if message.error() is None]
        if not taken:
            return
        attempt = self._log.begin()
        producer.begin_transaction()
        following: dict[int, int] = {}
        first: dict[int, int] = {}
        for message in taken:
            first.setdefault(message.partition(), message.offset())
            attempt.wrote(self._target, message.partition())
            producer.produce(
                self._target, message.value(), attempt.key, partition=message.partition()
            )
            following[message.partition()] = message.offset() + 1
        places = [TopicPartition(self._source, *place) for place in following.items()]
        metadata = consumer.consumer_group_metadata()
        self._repeat(lambda: producer.send_offsets_to_transaction(places, metadata, CALL_S))
        if self._random.random() < ABORT_CHANCE:
            self._repeat(lambda: producer.abort_transaction(CALL_S))
            attempt.outcome = ABORTED
            for partition, offset in first.items():
                consumer.seek(TopicPartition(self._source, partition, offset))
            return
        self._repeat(lambda: producer.commit_transaction(CALL_S))
        attempt.outcome = COMMITTED

    def _repeat(self, call: Any) -> None:
        """Retry errors that librdkafka calls retriable."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + CLIENT_TIMEOUT_MS / 1000
        while True:
            try:
                call()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise


def print_stacks() -> None:
    """Print the stack of each thread, to see which client a stalled chain waits for."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        print(f"-- {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame)[-4:])}")


def read_entries(
    broker: Broker, topics: tuple[str, ...] = TOPICS, timeout: float = 15.0
) -> dict[tuple[str, int], list[Entry]]:
    """All entries of the topics, read once all partitions are served again."""

    def read(topic: str, partition: int) -> tuple[list[RecordBatch]] | None:
        try:
            with WireClient((broker.host, broker.port)) as client:
                return (client.read_batches(topic, partition),)
        except OSError:
            return None

    log = {}
    for topic in topics:
        for partition in range(PARTITIONS):
            found = wait_until(
                lambda t=topic, p=partition: read(t, p), timeout, f"{topic}-{partition} is read"
            )
            log[topic, partition] = entries_of(found[0])
    return log
