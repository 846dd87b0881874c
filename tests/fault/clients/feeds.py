"""What readers of the exam read, what writers have written, and what groups have committed: all by
confluent-kafka, so that no client of ours says whether another one is right.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, ElectionType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kbroker.testing import wait_until

QUIET: dict[str, Any] = {"log_level": 0, "socket.timeout.ms": 6_000}
PAUSE_S = 0.05
READ_S = 60.0
_ELECTED = ("NO_ERROR", "ELECTION_NOT_NEEDED")

Log = dict[int, list[tuple[int, str]]]  # offset and value, by partition


class Feed:
    """Writes to all partitions of these topics until it is closed. acked: when readers may have
    what was written, by topic and partition; their ends by ``ends``, and those of what is
    committed by ``committed_ends``.
    """

    def __init__(self, bootstrap: str, topics: dict[str, int], transactional: str = "") -> None:
        self.topics = topics
        self.acked: dict[tuple[str, int], list[float]] = defaultdict(list)
        self.ends: dict[tuple[str, int], int] = {}
        self.committed_ends: dict[tuple[str, int], int] = {}
        config = {"bootstrap.servers": bootstrap, "linger.ms": 2, "acks": "all", **QUIET}
        # A record that it gave up would have others in the log twice: they are sent again.
        config |= {"enable.idempotence": True, "message.timeout.ms": 0}
        config["topic.metadata.refresh.interval.ms"] = 1_000  # a topic may grow
        if transactional:
            config |= {"transactional.id": transactional, "transaction.timeout.ms": 60_000}
            config["message.timeout.ms"] = 60_000  # no longer than a transaction
        self._transactional = bool(transactional)
        self._written: set[tuple[str, int]] = set()  # by the open transaction
        self._config = config
        self._producer = Producer(config)
        self._stop = threading.Event()
        self._is_old = threading.Event()
        self._number = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if not self._transactional:
            while not self._stop.wait(PAUSE_S):
                if self._is_old.is_set():
                    self._is_old.clear()
                    with suppress(SystemError):
                        self._producer.flush(1)
                    self._producer = Producer(self._config)
                self._write()
            return
        begun = False
        while not self._stop.wait(PAUSE_S):
            try:
                if not begun:
                    self._producer.init_transactions(60)
                    begun = True
                self._transact()
            except KafkaException:
                if begun:
                    # It cannot go on: it has met a fatal error, as when its topic was deleted
                    # before the first record arrived; or it waits for the end of a commit, which
                    # may neither be aborted nor followed by a new transaction.
                    self._producer, begun = Producer(self._config), False

    def _transact(self) -> None:
        """One of them. Raises KafkaException if the producer may have it open still."""
        self._written.clear()
        self._producer.begin_transaction()
        try:
            for _ in range(3):
                self._write()
            if self._number % 2:
                self._producer.commit_transaction(30)
                for key in self._written:
                    self.acked[key].append(time.monotonic())
                    self.committed_ends[key] = self.ends[key]
            else:
                self._producer.abort_transaction(30)
        except KafkaException as error:
            if error.args[0].fatal():
                raise
            self._producer.abort_transaction(60)

    def _write(self) -> None:
        self._number += 1
        for topic, count in list(self.topics.items()):
            for partition in range(count):
                try:
                    self._producer.produce(
                        topic, b"feed:%d:%d" % (partition, self._number), partition=partition,
                        on_delivery=self._delivered,
                    )  # fmt: skip
                except (BufferError, KafkaException):
                    time.sleep(0.01)  # full, or a partition that it has not heard of yet
        try:
            self._producer.poll(0)
        except SystemError:
            # confluent-kafka 2.16.1 raises one now and then in the place of an exception, and no
            # call of this producer works from then on.
            self.renew()

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            key = message.topic(), message.partition()
            if self._transactional:
                self._written.add(key)
            else:
                self.acked[key].append(time.monotonic())
            self.ends[key] = max(self.ends.get(key, 0), message.offset() + 1)
            if not self._transactional:
                self.committed_ends[key] = self.ends[key]

    def renew(self) -> None:
        """Write with another producer: one that knows a topic of this name from before believes for
        three minutes that leaders of a lower epoch are old, where brokers have no topic ids. One of
        transactions is renewed when they fail.
        """
        self._is_old.set()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(90)
        with suppress(KafkaException, SystemError):  # its last transaction
            self._producer.flush(30)


class Topics:
    """Creates, grows and removes topics."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})

    def create(self, name: str, replicas: list[list[int]]) -> None:
        new = NewTopic(
            name, len(replicas), replica_assignment=replicas, config={"min.insync.replicas": "2"}
        )

        self._done(
            lambda: self._admin.create_topics([new], operation_timeout=20)[name],
            ("TOPIC_ALREADY_EXISTS",),
            f"{name} is created",
        )

    def elect_preferred(self, partitions: dict[str, int]) -> None:
        """Of topics with so many partitions. Raises KafkaException, AssertionError."""
        keys = [TopicPartition(name, n) for name, count in partitions.items() for n in range(count)]
        rows = self._admin.elect_leaders(ElectionType.PREFERRED, keys)  # within socket.timeout.ms
        for key, error in rows.result(30).items():
            found = error.args[0] if isinstance(error, KafkaException) else error
            name = "NO_ERROR" if found is None else found.name()
            assert name in _ELECTED, f"{key.topic}-{key.partition}: {name}"

    def delete(self, name: str) -> None:
        self._done(
            lambda: self._admin.delete_topics([name], operation_timeout=20)[name],
            ("UNKNOWN_TOPIC_OR_PART",),
            f"{name} is deleted",
        )

    def grow(self, name: str, count: int) -> None:
        self._done(
            lambda: self._admin.create_partitions([NewPartitions(name, count)])[name],
            ("INVALID_PARTITIONS",),
            f"{name} has {count} partitions",
        )

    def _done(self, call: Callable[[], Any], already: tuple[str, ...], what: str) -> None:
        """Make a change, which an attempt that timed out may have made. already: its errors then;
        else another topic of that name is still being deleted.
        """
        in_vain: list[str] = []

        def done() -> bool:
            try:
                call().result(30)
            except KafkaException as error:
                name = error.args[0].name()
                if name == "NOT_CONTROLLER":  # librdkafka asks who it is when a connection ends
                    self._admin.list_topics(timeout=30)
                if name not in already:
                    in_vain.append(name)
                assert in_vain and name in already, str(error)
            return True

        wait_until(done, 60, what)


def touch_transactions(bootstrap: str) -> None:
    """Have the topic of their coordinators created. Raises KafkaException."""
    Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": "exam-first", **QUIET}
    ).init_transactions(20)


def read_log(bootstrap: str, topic: str, partitions: int) -> Log:
    """Everything that a reader of committed records may be given."""
    config = {"bootstrap.servers": bootstrap, "group.id": "exam-log", "enable.auto.commit": False}
    config |= {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = Consumer({**config, "enable.partition.eof": True, **QUIET})
    found: Log = {n: [] for n in range(partitions)}
    open_ = set(found)
    deadline = time.monotonic() + READ_S
    try:
        consumer.assign([TopicPartition(topic, n, 0) for n in found])
        while open_:
            assert time.monotonic() < deadline, f"{topic} could not be read to its end"
            for message in consumer.consume(500, 0.5):
                if message.error() is None:
                    row = message.offset(), message.value().decode()
                    found[message.partition()].append(row)
                elif message.error().name() == "_PARTITION_EOF":
                    open_.discard(message.partition())
    finally:
        consumer.close()
    return found


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int]:
    """By partition, of those that have any."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **QUIET})
    try:
        keys = [TopicPartition(topic, n) for n in range(partitions)]
        return {
            row.partition: row.offset for row in consumer.committed(keys, 10) if row.offset >= 0
        }
    finally:
        consumer.close()
