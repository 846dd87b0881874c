"""Transactional producers of every client behind one interface."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from support.drivers import WAIT_S, ClientError
from support.drivers.access import Access, access_to
from support.drivers.java import Java
from support.drivers.members import Member, Partition

PRODUCER_FENCED = 90
_ids = itertools.count()


class Transactional(Protocol):
    """A producer with a transactional id. Each call returns when it has completed, or raises
    ClientError.
    """

    name: str

    def init(self) -> None: ...

    def begin(self) -> None: ...

    def send(self, topic: str, values: Sequence[str], partition: int = 0) -> list[int]:
        """Send records; returns their offsets once all are acknowledged."""

    def send_offsets(
        self, offsets: Mapping[Partition, int], group: str, member: Member | None = None
    ) -> None:
        """Add offsets of a group to the transaction; with a member, on its behalf."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None:
        """Close without telling the coordinator of an open transaction."""


class ConfluentTransactions:
    """librdkafka's."""

    name = "confluent-kafka"

    def __init__(
        self, where: str | Access, transactional_id: str, timeout_ms: int, **config: Any
    ) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                **access_to(where).librdkafka(),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "log_level": 0,
                "error_cb": lambda error: None,  # or a fatal one is raised anywhere
                **config,
            }
        )

    @contextmanager
    def _reported(self) -> Iterator[None]:
        from confluent_kafka import KafkaException

        try:
            yield
        except (KafkaException, SystemError) as raised:
            # A fatal error interrupts a delivery callback, which Python reports as a SystemError.
            cause = raised.__cause__ if isinstance(raised, SystemError) else raised
            error = cause.args[0]  # type: ignore[union-attr]
            raise ClientError(error.code(), str(error)) from raised

    def init(self) -> None:
        with self._reported():
            self._producer.init_transactions(WAIT_S)

    def begin(self) -> None:
        with self._reported():
            self._producer.begin_transaction()

    def send(self, topic: str, values: Sequence[str], partition: int = 0) -> list[int]:
        done: list[tuple[Any, Any]] = []
        with self._reported():
            for value in values:
                self._producer.produce(
                    topic,
                    value.encode(),
                    partition=partition,
                    on_delivery=lambda error, record: done.append((error, record)),
                )
            left = self._producer.flush(WAIT_S)
        assert left == 0, f"{left} records without a report"
        for error, _ in done:
            if error is not None:
                raise ClientError(error.code(), str(error))
        return [record.offset() for _, record in done]

    def send_offsets(
        self,
        offsets: Mapping[Partition, int],
        group: str,
        member: Member | None = None,
        metadata: Any = None,
    ) -> None:
        """metadata: instead of a member, group metadata that a consumer returned earlier."""
        from confluent_kafka import Consumer, TopicPartition

        wanted = [TopicPartition(*where, offset) for where, offset in offsets.items()]
        alone = None
        if member is not None:
            metadata = member.group_metadata()  # type: ignore[attr-defined]
        elif metadata is None:  # of a group without members, which needs a consumer anyway
            nowhere = {"bootstrap.servers": "127.0.0.1:1", "group.id": group, "log_level": 0}
            alone = Consumer(nowhere)
            metadata = alone.consumer_group_metadata()
        try:
            with self._reported():
                self._producer.send_offsets_to_transaction(wanted, metadata, WAIT_S)
        finally:
            if alone is not None:
                alone.close()

    def commit(self) -> None:
        with self._reported():
            self._producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        with self._reported():
            self._producer.abort_transaction(WAIT_S)

    def close(self) -> None:
        self._producer.purge()
        del self._producer


class KafkaPythonTransactions:
    """kafka-python's."""

    name = "kafka-python"

    def __init__(
        self, where: str | Access, transactional_id: str, timeout_ms: int, **config: Any
    ) -> None:
        from kafka import KafkaProducer

        self._producer = KafkaProducer(
            **access_to(where).kafka_python(),
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            max_block_ms=int(WAIT_S * 1000),
            linger_ms=2,
            **config,
        )

    @contextmanager
    def _reported(self) -> Iterator[None]:
        from kafka.errors import KafkaError

        try:
            yield
        except KafkaError as raised:
            raise ClientError(_code(raised), repr(raised)) from raised

    def init(self) -> None:
        with self._reported():
            self._producer.init_transactions()

    def begin(self) -> None:
        with self._reported():
            self._producer.begin_transaction()

    def send(self, topic: str, values: Sequence[str], partition: int = 0) -> list[int]:
        with self._reported():
            sent = [
                self._producer.send(topic, value.encode(), partition=partition) for value in values
            ]
            self._producer.flush(WAIT_S)
            return [one.get(WAIT_S).offset for one in sent]

    def send_offsets(
        self, offsets: Mapping[Partition, int], group: str, member: Member | None = None
    ) -> None:
        from kafka import TopicPartition
        from kafka.structs import OffsetAndMetadata

        wanted = {
            TopicPartition(*where): OffsetAndMetadata(offset, "", -1)
            for where, offset in offsets.items()
        }
        metadata: Any = group
        if member is not None:
            metadata = member.group_metadata()  # type: ignore[attr-defined]
        with self._reported():
            self._producer.send_offsets_to_transaction(wanted, metadata)

    def commit(self) -> None:
        with self._reported():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with self._reported():
            self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=0)


class AioTransactions:
    """aiokafka; its event loop runs in a thread."""

    name = "aiokafka"

    def __init__(
        self, where: str | Access, transactional_id: str, timeout_ms: int, **config: Any
    ) -> None:
        from aiokafka import AIOKafkaProducer

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def make() -> AIOKafkaProducer:
            return AIOKafkaProducer(
                **access_to(where).aiokafka(),
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                linger_ms=2,
                **config,
            )

        self._producer = self._run(make())

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        from aiokafka.errors import KafkaError

        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)
        except KafkaError as raised:
            raise ClientError(_code(raised), repr(raised)) from raised

    def init(self) -> None:
        self._run(self._producer.start())

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, values: Sequence[str], partition: int = 0) -> list[int]:
        async def work() -> list[int]:
            sent = [
                await self._producer.send(topic, value.encode(), partition=partition)
                for value in values
            ]
            return [(await one).offset for one in sent]

        offsets: list[int] = self._run(work())
        return offsets

    def send_offsets(
        self, offsets: Mapping[Partition, int], group: str, member: Member | None = None
    ) -> None:
        from aiokafka import TopicPartition

        wanted = {TopicPartition(*where): offset for where, offset in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(wanted, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        async def end() -> None:
            # ``stop`` would abort first; a producer that crashes does not.
            self._producer._sender.sender_task.cancel()
            await self._producer.client.close()
            self._producer._closed = True

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()


class JavaTransactions:
    """The Java producer, in the JVM of a driver."""

    def __init__(
        self,
        java: Java,
        where: str | Access,
        transactional_id: str,
        timeout_ms: int,
        **config: Any,
    ) -> None:
        self.name = java.name
        self._java = java
        self._id = f"producer-{next(_ids)}"
        settings = {
            **access_to(where).java(),
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "max.block.ms": int(WAIT_S * 1000),
            "linger.ms": 2,
            **config,
        }
        settings = {name: str(value) for name, value in settings.items()}
        self._call("open", config=settings)

    def _call(self, operation: str, **arguments: Any) -> Any:
        return self._java.call(f"transactions_{operation}", id=self._id, **arguments)

    def init(self) -> None:
        self._call("init")

    def begin(self) -> None:
        self._call("begin")

    def send(
        self, topic: str, values: Sequence[str], partition: int = 0, key: str | None = None
    ) -> list[int]:
        """key: of all the records."""
        offsets: list[int] = self._call(
            "send", topic=topic, partition=partition, values=[*values], key=key
        )
        return offsets

    def send_offsets(
        self, offsets: Mapping[Partition, int], group: str, member: Member | None = None
    ) -> None:
        rows = [(*where, offset) for where, offset in offsets.items()]
        on_behalf = {} if member is None else {"member": member.id}  # type: ignore[attr-defined]
        self._call("offsets", offsets=rows, group=group, **on_behalf)

    def commit(self) -> None:
        self._call("commit")

    def abort(self) -> None:
        self._call("abort")

    def loop(self, topic: str, partitions: int, groups: Sequence[str], **limits: int) -> Any:
        """Transactions back to back (TransactionLoop.java). limits: ``first``, ``count``,
        ``limit_ms``.
        """
        return self._call("loop", topic=topic, partitions=partitions, groups=[*groups], **limits)

    def close(self) -> None:
        self._call("close", wait_s=0)


def _code(raised: Any) -> int:
    """The code of an error or of its cause."""
    while raised is not None:
        if type(raised).__name__ == "ProducerFenced":  # aiokafka's own
            return PRODUCER_FENCED
        code = getattr(raised, "errno", None)
        if isinstance(code, int) and code > 0:
            return code
        raised = raised.__cause__
    return -1
