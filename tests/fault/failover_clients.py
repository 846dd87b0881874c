"""The clients of ``failover_load``: confluent-kafka, our own, and Java's in a process of theirs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from support.drivers.java import JVM_OPTIONS, SOURCES, classes_of, libraries
from support.running.pace import hold

from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.client.errors import ClientError

TOPIC, COMMITTED, IN_TRANSACTIONS = "failover", "failover-committed", "failover-transactions"
PARTITIONS = 6
GROUPS = 3
PACE_S = 0.05
QUIET = {"log_level": 0, "error_cb": lambda _: None}
JAVA = "4.3.0"

Work = Callable[[], None]


class Load(Protocol):
    """Where clients say what they have done."""

    bootstrap: str
    directory: Path
    problems: list[str]
    at_stop: list[Work]

    @property
    def is_stopping(self) -> bool: ...

    def succeeded(
        self, client: str, what: str, where: int, value: bytes = b"", at_s: float | None = None
    ) -> None:
        """what: produce, consume, commit or transaction. where: a partition, or which group. at_s:
        on the monotonic clock; None: now.
        """


class Confluent:
    """confluent-kafka."""

    name = "confluent"

    def __init__(self, load: Load) -> None:
        self._load = load

    def works(self) -> list[Work]:
        commits = [lambda number=number: self._commit(number) for number in range(GROUPS)]
        return [self._produce, self._read, self._transact, *commits]

    def _settings(self, **more: Any) -> dict[str, Any]:
        named = {name.replace("_", "."): value for name, value in more.items()}
        return {"bootstrap.servers": self._load.bootstrap, **named, **QUIET}

    def _produce(self) -> None:
        load = self._load
        producer = Producer(self._settings(enable_idempotence=True, linger_ms=0))
        number = 0

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                load.succeeded(self.name, "produce", message.partition(), message.value())
            else:
                load.problems.append(f"{self.name} produce: {error}")

        while not load.is_stopping:
            for partition in range(PARTITIONS):
                value = f"{self.name} {number}".encode()
                producer.produce(TOPIC, value, partition=partition, on_delivery=delivered)
                number += 1
            producer.poll(PACE_S)
            hold(PACE_S)
        if producer.flush(60):
            load.problems.append(f"{self.name} produce: not everything was delivered")

    def _consumer(self, group: str) -> Consumer:
        settings = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
        return Consumer({**self._settings(group_id=group), **settings})

    def _read(self) -> None:
        consumer = self._consumer("reader")
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        while not self._load.is_stopping:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._load.succeeded(self.name, "consume", message.partition())
        consumer.close()

    def _commit(self, number: int) -> None:
        consumer = self._consumer(f"group-{number}")
        offset = 0
        while not self._load.is_stopping:
            offset += 1
            with suppress(KafkaException):
                place = TopicPartition(COMMITTED, 0, offset)
                (done,) = consumer.commit(offsets=[place], asynchronous=False)
                if done.error is None:
                    self._load.succeeded(self.name, "commit", number)
            hold(PACE_S)
        consumer.close()

    def _transact(self) -> None:
        producer = Producer(
            self._settings(transactional_id="failover", transaction_timeout_ms=60_000, linger_ms=0)
        )
        self._until_done(producer.init_transactions)
        number = 0
        while not self._load.is_stopping:
            value = f"{self.name} transaction {number}".encode()
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
            self._load.succeeded(self.name, "transaction", 0, value)
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


class Own:
    """Our client."""

    name = "own"

    def __init__(self, load: Load) -> None:
        self._load = load

    def works(self) -> list[Work]:
        commits = [lambda number=number: self._commit(number) for number in range(GROUPS)]
        return [self._produce, self._read, self._transact, *commits]

    def _produce(self) -> None:
        load = self._load
        producer = KafkaProducer(
            bootstrap_servers=load.bootstrap, acks="all", enable_idempotence=True
        )
        number = 0

        def send(partition: int, value: bytes) -> None:
            def delivered(_: Any, error: Any) -> None:
                if error is None:
                    load.succeeded(self.name, "produce", partition, value)
                else:
                    load.problems.append(f"{self.name} produce: {error!r}")

            producer.send(TOPIC, value, partition=partition, callback=delivered)

        while not load.is_stopping:
            for partition in range(PARTITIONS):
                send(partition, f"{self.name} {number}".encode())
                number += 1
            hold(PACE_S)
        producer.flush(60)
        producer.close()

    def _read(self) -> None:
        consumer = KafkaConsumer(
            bootstrap_servers=self._load.bootstrap, auto_offset_reset="earliest"
        )
        consumer.assign([(TOPIC, number) for number in range(PARTITIONS)])
        while not self._load.is_stopping:
            for record in consumer.poll(0.1):
                self._load.succeeded(self.name, "consume", record.partition)
        consumer.close()

    def _commit(self, number: int) -> None:
        consumer = KafkaConsumer(
            bootstrap_servers=self._load.bootstrap,
            group_id=f"own-group-{number}",
            enable_auto_commit=False,
        )
        offset = 0
        while not self._load.is_stopping:
            offset += 1
            with suppress(ClientError):
                consumer.commit_sync({(COMMITTED, 0): offset})
                self._load.succeeded(self.name, "commit", number)
            hold(PACE_S)
        consumer.close()

    def _transact(self) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self._load.bootstrap, transactional_id="own-failover"
        )
        producer.init_transactions()
        number = 0
        while not self._load.is_stopping:
            value = f"{self.name} transaction {number}".encode()
            number += 1
            producer.begin_transaction()
            try:
                producer.send(IN_TRANSACTIONS, value, partition=number % PARTITIONS)
                producer.commit_transaction()
            except ClientError:
                producer.abort_transaction()
                continue
            self._load.succeeded(self.name, "transaction", 0, value)
            hold(PACE_S)
        producer.close()


class Java:
    """The Java client."""

    name = "java"

    def __init__(self, load: Load) -> None:
        self._load = load

    def works(self) -> list[Work]:
        return [self._run]

    def _run(self) -> None:
        """Read what FailoverClients.java prints, until it ends."""
        classes = classes_of(JAVA, "kafka-clients", sorted(SOURCES.glob("*.java")))
        path = f"{classes}:{libraries(JAVA)}/*"
        command = ["java", *JVM_OPTIONS, "-cp", path, "FailoverClients", self._load.bootstrap]
        command += [TOPIC, COMMITTED, IN_TRANSACTIONS]
        command += [str(number) for number in (PARTITIONS, GROUPS, round(1000 * PACE_S))]
        with (
            open(self._load.directory / "java.log", "wb") as log,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            ) as process,
        ):
            assert process.stdin is not None and process.stdout is not None
            self._load.at_stop.append(process.stdin.close)
            for line in process.stdout:
                self._take(line)

    def _take(self, line: bytes) -> None:
        what, *rest = line.split(maxsplit=3)
        if what == b"problem":
            self._load.problems.append(f"{self.name}: {line.decode().strip()}")
            return
        where, at_ns, *value = rest
        self._load.succeeded(
            self.name,
            what.decode(),
            int(where),
            value[0].rstrip() if value else b"",
            int(at_ns) / 1e9,
        )


CLIENTS: dict[str, Callable[[Load], Confluent | Own | Java]] = {
    client.name: client for client in (Confluent, Own, Java)
}
