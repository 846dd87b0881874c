"""Idempotent and transactional producers with full pipelines while io workers are killed.

A writer sends numbered values to every partition, several batches in flight. Afterwards each
partition has each number once and in order, under one producer id and one epoch, every transaction
is committed, and no writer was told of an error: nobody has noticed that a process died.
"""

from __future__ import annotations

import json
import random
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from support.clients.wire_client import WireClient
from support.drivers.franz import program
from support.drivers.java import JVM_OPTIONS, SOURCES, classes_of, libraries
from support.running.pace import hold

from kbroker.record.batch import RecordBatch, iterate_batches
from kbroker.testing import Broker, wait_until

TOPIC = "deaths"
PARTITIONS = 4
# Restarts at once, however often one was killed: the exam is about the consequences.
SETTINGS = {
    "worker.restart.backoff.ms": 1,
    "worker.restart.backoff.max.ms": 1,
    "log.retention.ms": -1,
}
RATE = 1500  # records a second and writer
OUTSTANDING_MAX = 500
TRANSACTION_RECORDS = 200
TIMEOUT_S = 60.0
PAUSE_S = (0.05, 0.5)
ABORT_MARKER = b"\0\0\0\0"  # WIRE: version 0, type 0


@dataclass
class Report:
    """A writer's results: ``errors`` are texts, of records or of the client as a whole."""

    name: str
    sent: int = 0
    acked: int = 0
    transactions: int = 0
    errors: list[str] = field(default_factory=list)
    # Whether each of its transactions has an epoch of its own (KIP-890, part 2).
    epoch_each: bool = False
    group: str = ""


class Writer(Protocol):
    """Writes until it is stopped; then it waits for all responses."""

    name: str

    @property
    def acked(self) -> int: ...

    def stop(self) -> Report: ...


class LibrdkafkaWriter:
    """librdkafka, in a thread. group: offsets of it are committed in its transactions."""

    def __init__(
        self,
        broker: Broker,
        name: str,
        *,
        transactional: bool = False,
        group: str = "",
        **settings: Any,
    ) -> None:
        self.name = name
        self._report = Report(name, group=group)
        self._transactional = transactional
        self._settings = {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 0,
            "batch.num.messages": 20,
            "max.in.flight.requests.per.connection": 5,
            "log_level": 2,
            "error_cb": lambda error: None if error.retriable() else self._note(str(error)),
            **({"transactional.id": name} if transactional else {}),
            **settings,
        }
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def acked(self) -> int:
        return self._report.acked

    def _note(self, text: str) -> None:
        # Errors of connections are not errors of a record, and it continues on its own.
        if "_TRANSPORT" not in text and "_ALL_BROKERS_DOWN" not in text:
            self._report.errors.append(text)

    def _run(self) -> None:
        try:
            self._write()
        except Exception as error:
            self._report.errors.append(str(error))

    def _write(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(self._settings)
        report = self._report

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                report.acked += 1
            else:
                report.errors.append(str(error))

        if self._transactional:
            producer.init_transactions(TIMEOUT_S)
        number = 0
        while not self._stopping.is_set():
            if self._transactional:
                producer.begin_transaction()
            rounds = TRANSACTION_RECORDS // PARTITIONS if self._transactional else 10
            for _ in range(rounds):
                for partition in range(PARTITIONS):
                    value = b"%s|%d|%d|" % (self.name.encode(), partition, number)
                    producer.produce(
                        TOPIC, value.ljust(100, b"x"), partition=partition, on_delivery=delivered
                    )
                    report.sent += 1
                number += 1
            producer.poll(rounds * PARTITIONS / RATE)
            if self._transactional:
                self._commit(producer, number)
            while len(producer) > OUTSTANDING_MAX and not self._stopping.is_set():
                producer.poll(0.01)
        left = producer.flush(TIMEOUT_S)
        if left:
            report.errors.append(f"{left} records without a response")

    def _commit(self, producer: Any, number: int) -> None:
        from confluent_kafka import TopicPartition

        if self._report.group:
            # As a consumer that is no longer a member, or never was.
            metadata = group_metadata(self._settings["bootstrap.servers"], self._report.group)
            offsets = [TopicPartition(TOPIC, 0, number)]
            producer.send_offsets_to_transaction(offsets, metadata, TIMEOUT_S)
        producer.commit_transaction(TIMEOUT_S)
        self._report.transactions += 1

    def stop(self) -> Report:
        self._stopping.set()
        self._thread.join(2 * TIMEOUT_S)
        assert not self._thread.is_alive(), f"{self.name} hangs"
        return self._report


class ProcessWriter:
    """A program that writes until its standard input ends, and prints a JSON object of its progress
    periodically.
    """

    def __init__(self, name: str, command: Sequence[str], error_path: Path, **report: Any) -> None:
        self.name = name
        self.acked = 0
        self._more = report
        self._errors = error_path
        self._last: dict[str, Any] = {}
        with open(error_path, "wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._last = json.loads(line)
            self.acked = self._last["acked"]

    def stop(self) -> Report:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(2 * TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._thread.join(5)
            self._process.stdout.close()
        with open(self._errors, encoding="utf-8", errors="replace") as errors:
            assert self._process.returncode == 0, errors.read()[-4000:]
        return Report(self.name, **self._last, **self._more)


def arguments_of(broker: Broker, name: str, transactional: bool) -> list[str]:
    """The common arguments of both programs."""
    records = TRANSACTION_RECORDS if transactional else 0
    numbers = map(str, (PARTITIONS, RATE, OUTSTANDING_MAX, records))
    return [broker.bootstrap, TOPIC, name, *numbers]


def java_writer(
    broker: Broker, name: str, version: str, *, transactional: bool = False, group: str = ""
) -> ProcessWriter:
    """Apache Kafka's Java producer."""
    classes = classes_of(version, "kafka-clients", sorted(SOURCES.glob("*.java")))
    path = f"{classes}:{libraries(version)}/*"
    command = ["java", *JVM_OPTIONS, "-cp", path, "PipelineWriter"]
    command += [*arguments_of(broker, name, transactional), group]
    return ProcessWriter(
        name,
        command,
        broker.directory / f"{name}.err",
        epoch_each=transactional and version.startswith("4"),
        group=group,
    )


def go_writer(
    broker: Broker, name: str, *, transactional: bool = False, group: str = ""
) -> ProcessWriter:
    """franz-go."""
    command = [str(program("pipeline_writer")), *arguments_of(broker, name, transactional), group]
    path = broker.directory / f"{name}.err"
    return ProcessWriter(name, command, path, epoch_each=transactional, group=group)


def group_metadata(bootstrap: str, group: str) -> Any:
    """The metadata for committing to a group without being a member."""
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 2})
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()


@dataclass
class Found:
    """The records of all writers in the log."""

    records: int = 0
    duplicates: int = 0
    disorder: int = 0
    missing: int = 0
    bumps: int = 0
    aborts: int = 0
    transactions: int = 0

    @property
    def problems(self) -> int:
        return self.duplicates + self.disorder + self.missing + self.bumps + self.aborts


def look(broker: Broker, reports: Sequence[Report]) -> Found:
    """Compare the log with the records sent by writers."""
    found = Found(transactions=sum(report.transactions for report in reports))
    for partition in range(PARTITIONS):
        last: dict[str, int] = {}
        seen: dict[str, set[int]] = {}
        epochs: dict[str, set[tuple[int, int]]] = {}
        for batch in batches_of(broker, partition):
            if batch.is_control:
                found.aborts += bytes(batch.records()[0].key or b"") == ABORT_MARKER
                continue
            identity = batch.header.producer_id, batch.header.producer_epoch
            for record in batch.records():
                name, _, text, _ = bytes(record.value or b"").split(b"|", 3)
                writer, number = name.decode(), int(text)
                found.records += 1
                numbers = seen.setdefault(writer, set())
                epochs.setdefault(writer, set()).add(identity)
                if number in numbers:
                    found.duplicates += 1
                elif number < last.get(writer, -1):
                    found.disorder += 1
                numbers.add(number)
                last[writer] = number
        for report in reports:
            found.missing += report.sent // PARTITIONS - len(seen.get(report.name, ()))
            expected = max(1, report.transactions) if report.epoch_each else 1
            found.bumps += len(epochs.get(report.name, ())) - expected
    return found


def batches_of(broker: Broker, partition: int) -> Iterator[RecordBatch]:
    """All batches of a partition."""
    offset = 0
    with WireClient((broker.host, broker.port)) as client:
        while True:
            response = client.fetch(TOPIC, partition, offset, max_wait_ms=0)
            assert response.error_code == 0, response.error_code
            if not response.records:
                return
            for batch in iterate_batches(bytes(response.records), partial_tail=True):
                yield batch
                offset = batch.next_offset


def committed(broker: Broker, group: str) -> int:
    """The group's offset in partition 0."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        return int(consumer.committed([TopicPartition(TOPIC, 0)], TIMEOUT_S)[0].offset)
    finally:
        consumer.close()


@contextmanager
def killing(
    broker: Broker, writers: Sequence[Writer], kills: int, seed: int
) -> Iterator[list[Report]]:
    """Kill io workers, one at a time, each when all clients write again; the reports at the end."""
    began = time.monotonic()
    chance = random.Random(seed)
    io_workers = int(broker.config["num.io.threads"])
    reports: list[Report] = []
    try:
        go_on(writers)
        for _ in range(kills):
            hold(chance.uniform(*PAUSE_S))
            index = chance.randrange(io_workers)
            pid = broker.kill("io", index)
            title = f"io-{index}"
            wait_until(lambda t=title, p=pid: broker.pids.get(t, p) != p, 30, f"new {title}")
            go_on(writers)
    except AssertionError:
        print(broker.log_text[-4000:])
        raise
    finally:
        reports += [writer.stop() for writer in writers]
    print(f"{kills} kills in {time.monotonic() - began:.0f} s")
    yield reports


def go_on(writers: Sequence[Writer]) -> None:
    """Each writer gets an acknowledgement from now on."""
    for writer in writers:
        before = writer.acked
        wait_until(lambda w=writer, b=before: w.acked > b, TIMEOUT_S, f"{writer.name} goes on")


def assert_unnoticed(broker: Broker, reports: Sequence[Report]) -> Found:
    """No writer got an error, and the log is as if no process had died."""
    found = look(broker, reports)
    errors = [text for report in reports for text in report.errors]
    sent = sum(report.sent for report in reports)
    print(f"{sent} records sent, {len(errors)} errors, {found}")
    assert not errors, (len(errors), errors[:5])
    assert found.problems == 0, found
    assert found.records == sent == sum(report.acked for report in reports)
    for report in reports:
        if report.group:
            assert committed(broker, report.group) == report.sent // PARTITIONS
    return found
