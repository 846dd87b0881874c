"""Clients that write and read during faults, and record everything in a ``History``."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from support.clients.wire_client import EARLIEST, WireClient, batch_of
from support.faults.history import (
    History,
    LoggedRecord,
    ReaderLog,
    WriterLog,
    logged,
    value_of,
)
from support.faults.producer_record import ProducerRecord

from kbroker.errors import ErrorCode
from kbroker.record.batch import iterate_batches
from kbroker.testing import Broker, wait_until

TOPIC = "fault"
REQUEST_TIMEOUT_S = 10.0  # no request of a raw client may take longer, whatever is broken
# Between requests. A load that leaves no CPU to other tests shows no more; exams have theirs alone.
PAUSE_S = 0.02 if os.environ.get("KBROKER_FAULT_SCALE", "1") == "1" else 0.003
CLIENT_TIMEOUT_MS = 20_000


class Load:
    """Threads that run until ``stop``; a thread that failed or hangs fails the test there."""

    def __init__(self, broker: Broker, history: History, partitions: int, seed: int) -> None:
        self.broker, self.history, self.partitions = broker, history, partitions
        self.address = (broker.host, broker.port)
        self.bootstrap = broker.bootstrap
        self._random = random.Random(seed)
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self, name: str, work: Callable[..., None], *arguments: Any) -> None:
        """Run ``work`` in a thread."""

        def guarded() -> None:
            try:
                work(*arguments)
            except BaseException as error:
                self._errors.append(error)

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self, timeout: float = 2 * CLIENT_TIMEOUT_MS / 1000) -> None:
        """Stop all and wait. Raises AssertionError if one hangs, or else the first error."""
        self._stopping.set()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        hanging = [thread.name for thread in self._threads if thread.is_alive()]
        assert not hanging, f"{hanging} did not end within {timeout} s"
        if self._errors:
            raise self._errors[0]

    @property
    def errors(self) -> list[BaseException]:
        """The errors with which threads have failed."""
        return list(self._errors)

    @property
    def running(self) -> bool:
        return not self._stopping.is_set()

    # -- raw clients

    def raw_writer(self, partition: int, *, idempotent: bool = False) -> None:
        """One request in flight. Idempotent: the same batch is repeated until it is
        acknowledged.
        """
        name = f"raw{partition}{'i' if idempotent else ''}"
        log = self.history.writer(name, TOPIC, exact=True)
        writer = RawWriter(self, log, partition, self._random.randrange(1 << 30))
        self.start(name, writer.run_idempotent if idempotent else writer.run)

    def raw_reader(self, partition: int) -> None:
        """Long-polling fetches, from the start on."""
        name = f"fetch{partition}"
        log = self.history.reader(name, TOPIC)
        self.start(name, self._read, log, partition)

    def _read(self, log: ReaderLog, partition: int) -> None:
        offset = 0
        client: WireClient | None = None
        while self.running:
            try:
                client = client or WireClient(self.address, REQUEST_TIMEOUT_S)
                response = client.fetch(TOPIC, partition, offset, max_wait_ms=200)
            except TimeoutError as error:
                raise AssertionError(f"{log.name} hangs") from error
            except OSError:
                client = close(client)
                time.sleep(0.01)
                continue
            if response.error_code:
                code = ErrorCode(response.error_code)
                assert code.retriable, f"{log.name} at {offset}: {code.name}"
                time.sleep(0.01)
                continue
            for batch in iterate_batches(bytes(response.records or b""), partial_tail=True):
                for record in batch.records():
                    if record.offset >= offset:
                        log.poll(partition, record.offset, record.value)
                offset = batch.next_offset
        close(client)

    # -- librdkafka

    def librdkafka_writer(self, name: str, rate: int = 200, **settings: Any) -> None:
        """Writes to all partitions; settings with underscores for dots.

        What an idempotent one says of itself is in a file beside the broker's log.
        """
        options = {key.replace("_", "."): value for key, value in settings.items()}
        exact = bool(options.get("enable.idempotence"))
        log = self.history.writer(name, TOPIC, exact=exact)
        if not exact:
            self.start(name, self._write_librdkafka, log, rate, options)
            return
        record = ProducerRecord(self.broker.log_path.with_name(f"{name}.log"), log.epochs)
        self.start(name, self._write_recorded, log, rate, options, record)

    def _write_recorded(
        self, log: WriterLog, rate: int, options: dict[str, Any], record: ProducerRecord
    ) -> None:
        with closing(record):
            self._write_librdkafka(log, rate, {**record.settings, **options})

    def _write_librdkafka(self, log: WriterLog, rate: int, options: dict[str, Any]) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "linger.ms": 2,
                "message.timeout.ms": CLIENT_TIMEOUT_MS,
                "socket.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "log_level": 2,
                **options,
            }
        )

        def delivered(error: Any, message: Any) -> None:
            partition, number = message.partition(), int(message.key())
            if error is not None:
                log.fail(partition, number, str(error))
            else:
                # Of a duplicate that the broker knows only as one, the offset is unknown.
                offset = message.offset()
                log.ack(partition, number, -1 if offset is None else offset)

        number = 0
        started_at = time.monotonic()
        while self.running:
            partition = number % self.partitions
            value = value_of(log.name, partition, number)
            log.sent.append((partition, number))
            producer.produce(
                TOPIC, value, b"%d" % number, partition=partition, on_delivery=delivered
            )
            number += 1
            producer.poll(0)
            while (left := started_at + number / rate - time.monotonic()) > 0:
                producer.poll(left)  # which lines of its log end early, too
        left = producer.flush(CLIENT_TIMEOUT_MS / 1000 + 5)
        assert left == 0, f"{log.name}: {left} records without a delivery report"
        assert len(log.acked) + len(log.failed) == len(log.sent), log.name

    def librdkafka_reader(self, name: str) -> None:
        """Reads every partition from the start on."""
        log = self.history.reader(name, TOPIC)
        self.start(name, self._read_librdkafka, log)

    def _read_librdkafka(self, log: ReaderLog) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 200,
                "log_level": 2,
            }
        )
        consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(self.partitions)])
        try:
            while self.running:
                message = consumer.poll(0.1)
                if message is None:
                    continue
                if message.error() is not None:
                    assert message.error().name() != "_AUTO_OFFSET_RESET", message.error()
                    continue
                log.poll(message.partition(), message.offset(), message.value())
        finally:
            consumer.close()


class RawWriter:
    """Writes small batches to one partition over one connection, one request at a time."""

    def __init__(self, load: Load, log: WriterLog, partition: int, seed: int) -> None:
        self._load, self._log, self._partition = load, log, partition
        self._random = random.Random(seed)
        self._client: WireClient | None = None
        self._number = 0

    def run(self) -> None:
        """Never retries."""
        while self._load.running:
            numbers, values = self._next_records()
            code, offset, why = self._ask(batch_of(values), self._random.choice((1, -1)))
            if code == 0:
                for delta, number in enumerate(numbers):
                    self._log.ack(self._partition, number, offset + delta)
            else:
                for number in numbers:
                    self._log.fail(self._partition, number, why)
            time.sleep(PAUSE_S if code == 0 else 0.01)
        close(self._client)

    def run_idempotent(self) -> None:
        """Retries a batch with its sequence numbers until the broker has it."""
        producer_id, producer_epoch = self._ask_for_producer_id()
        sequence = 0
        while self._load.running:
            numbers, values = self._next_records()
            data = batch_of(
                values,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=sequence,
            )
            if not self._repeat(data, numbers):
                return
            sequence += len(numbers)
            time.sleep(PAUSE_S)
        close(self._client)

    def _repeat(self, data: bytes, numbers: list[int]) -> bool:
        give_up_at = time.monotonic() + CLIENT_TIMEOUT_MS / 1000
        while True:
            code, offset, why = self._ask(data, -1)
            if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                for delta, number in enumerate(numbers):
                    self._log.ack(self._partition, number, offset + delta if offset >= 0 else -1)
                return True
            assert code == -1 or ErrorCode(code).retriable, f"{self._log.name}: {why}"
            if time.monotonic() > give_up_at or not self._load.running:
                for number in numbers:
                    self._log.fail(self._partition, number, why)
                return False
            time.sleep(0.01)

    def _next_records(self) -> tuple[list[int], list[bytes]]:
        numbers = list(range(self._number, self._number + self._random.choice((1, 1, 2, 5))))
        self._number = numbers[-1] + 1
        self._log.sent += [(self._partition, number) for number in numbers]
        size = self._random.choice((40, 100, 2000))
        return numbers, [value_of(self._log.name, self._partition, n, size) for n in numbers]

    def _ask(self, data: bytes, acks: int) -> tuple[int, int, str]:
        """(error code or -1 for a broken connection, base offset, why)."""
        began = time.monotonic()
        try:
            self._client = self._client or WireClient(self._load.address, REQUEST_TIMEOUT_S)
            response = self._client.produce(TOPIC, {self._partition: data}, acks)[self._partition]
        except TimeoutError as error:
            raise AssertionError(f"{self._log.name}: a request hangs") from error
        except OSError as error:
            self._client = close(self._client)
            return -1, -1, str(error)
        finally:
            self._log.longest_s = max(self._log.longest_s, time.monotonic() - began)
        name = ErrorCode(response.error_code).name
        return response.error_code, response.base_offset, f"{name} {response.error_message}"

    def _ask_for_producer_id(self) -> tuple[int, int]:
        def ask() -> tuple[int, int] | None:
            try:
                with WireClient(self._load.address, REQUEST_TIMEOUT_S) as client:
                    return client.init_producer_id()
            except OSError:
                return None

        found = wait_until(ask, CLIENT_TIMEOUT_MS / 1000, "a producer id")
        assert found is not None
        return found


def close(client: WireClient | None) -> None:
    """Close the connection, if there is one; returns None, to be assigned."""
    if client is not None:
        client.close()


def read_log(
    broker: Broker, partitions: int, topic: str = TOPIC, timeout: float = 15.0
) -> dict[tuple[str, int], list[LoggedRecord]]:
    """All records of a topic, read once all partitions are served again."""

    def read(partition: int) -> tuple[list[LoggedRecord]] | None:
        try:
            with WireClient((broker.host, broker.port)) as client:
                return (read_partition(client, topic, partition),)
        except OSError:
            return None

    log = {}
    for partition in range(partitions):
        found = wait_until(lambda p=partition: read(p), timeout, f"{topic}-{partition} is read")
        log[topic, partition] = found[0]
    return log


def read_partition(client: WireClient, topic: str, partition: int) -> list[LoggedRecord]:
    """All records of a partition; raises as ``WireClient.read_all``."""
    start = client.offset(topic, partition, EARLIEST)
    return logged(client.read_batches(topic, partition, start), start)


def assert_consistent(broker: Broker, history: History, partitions: int) -> None:
    """The current log agrees with everything that clients were told."""
    problems = history.check(read_log(broker, partitions))
    assert not problems, f"{len(problems)} problems, the first: " + "\n".join(problems[:10])
