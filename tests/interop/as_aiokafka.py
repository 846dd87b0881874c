"""Our asyncio clients under the names of aiokafka, as far as FastStream uses these.

What a program must know that changes from one to the other is in this file, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from itertools import groupby
from types import SimpleNamespace
from typing import Any

from aiokafka.errors import ConsumerStoppedError, KafkaError

from kbroker.client import KafkaAdminClient, TopicPartition
from kbroker.client.admin.topics import NewTopic
from kbroker.client.aio import AsyncKafkaConsumer, AsyncKafkaProducer
from kbroker.client.errors import ClientClosed, ClientError

# How long one question for records waits; another one follows.
_POLL_S = 5.0
# What aiokafka calls otherwise, or what has no counterpart because it is of no use here.
_NAMES = {"max_batch_size": "batch_size"}
_LEFT_OUT = {
    "api_version", "loop", "ssl_context", "sasl_oauth_token_provider", "consumer_timeout_ms",
    "partitioner", "key_serializer", "value_serializer", "sasl_plain_username",
    "sasl_plain_password", "sasl_kerberos_service_name", "sasl_kerberos_domain_name",
    "sasl_mechanism", "transaction_timeout_ms", "partition_assignment_strategy",
}  # fmt: skip


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        _NAMES.get(name, name): value
        for name, value in given.items()
        if name not in _LEFT_OUT and value is not None and type(value) is not object
    }


class Consumer:
    """For ``aiokafka.AIOKafkaConsumer``."""

    def __init__(self, *topics: str, group_id: str | None = None, **settings: Any) -> None:
        if group_id is not None:
            settings["group_id"] = group_id
        self._ours = AsyncKafkaConsumer(_settings(settings))
        self._group_id = group_id
        self._subscription = SimpleNamespace(topics=set(topics))
        self._coordinator = SimpleNamespace(member_id="")
        # aiokafka takes these without an await: they are done before the next call that has one.
        self._due: list[Any] = []
        if topics:
            self.subscribe(topics=list(topics))

    def subscribe(self, topics: Any = (), pattern: str | None = None, listener: Any = None) -> None:
        self._subscription.topics = set(topics or ())
        self._due.append(
            lambda: self._ours.subscribe(
                list(topics) if topics else None, pattern=pattern, listener=listener
            )
        )

    def assign(self, partitions: Any) -> None:
        self._due.append(lambda: self._ours.assign([tuple(one) for one in partitions]))

    def seek(self, partition: Any, offset: int) -> None:
        self._due.append(lambda: self._ours.seek(tuple(partition), offset))

    async def start(self) -> None:
        await self._settle()

    async def _settle(self) -> None:
        while self._due:
            await self._due.pop(0)()

    async def getmany(
        self, *partitions: Any, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Any]]:
        assert not partitions, "FastStream does not choose"
        await self._settle()
        try:
            found = await self._ours.poll(timeout_ms / 1000, max_records)
        except ClientClosed as error:
            raise ConsumerStoppedError from error
        except ClientError as error:
            raise KafkaError(str(error)) from error
        return {
            TopicPartition(*key): list(some)
            for key, some in groupby(found, lambda one: (one.topic, one.partition))
        }

    async def getone(self) -> Any:
        while True:
            for some in (await self.getmany(timeout_ms=_POLL_S * 1000, max_records=1)).values():
                return some[0]

    async def __aiter__(self) -> AsyncIterator[Any]:
        while True:
            yield await self.getone()

    async def commit(self, offsets: Any = None) -> None:
        await self._settle()
        await self._ours.commit(offsets)

    async def stop(self) -> None:
        await self._ours.close()


class Batch:
    """For ``aiokafka.producer.message_accumulator.BatchBuilder``."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, Any, Any, Any]] = []

    def append(
        self, *, key: Any = None, value: Any = None, timestamp: Any = None, headers: Any = ()
    ) -> Any:
        self.rows.append((value, key, list(headers), timestamp))
        return object()  # None: there is no room


class Producer:
    """For ``aiokafka.AIOKafkaProducer``."""

    def __init__(self, **settings: Any) -> None:
        self._given = settings
        self._ours: AsyncKafkaProducer | None = None
        self._closed = False
        self.client = SimpleNamespace(bootstrap=self._is_there)

    async def start(self) -> None:
        self._ours = AsyncKafkaProducer(_settings(self._given))

    async def _is_there(self) -> None:
        pass

    async def send(self, topic: str, value: Any = None, **rest: Any) -> asyncio.Future[Any]:
        assert self._ours is not None
        return await self._ours.send(topic, value, **rest)

    def create_batch(self) -> Batch:
        return Batch()

    async def send_batch(self, batch: Batch, topic: str, *, partition: int | None) -> Any:
        assert self._ours is not None
        sent = [
            await self._ours.send(topic, value, key, headers, partition, timestamp)
            for value, key, headers, timestamp in batch.rows
        ]
        return asyncio.gather(*sent)

    async def flush(self) -> None:
        assert self._ours is not None
        await self._ours.flush()

    async def stop(self) -> None:
        self._closed = True
        if self._ours is not None:
            await self._ours.close()


class Admin:
    """For ``aiokafka.admin.AIOKafkaAdminClient``."""

    def __init__(self, *, bootstrap_servers: Any, **_: Any) -> None:
        self._ours = KafkaAdminClient(bootstrap_servers=bootstrap_servers)

    async def start(self) -> None:
        pass

    async def create_topics(self, topics: Any) -> Any:
        wanted = [NewTopic(one.name, one.num_partitions, one.replication_factor) for one in topics]
        found = await asyncio.to_thread(self._ours.create_topics, wanted)
        rows = []
        for name, error in found.items():
            code = getattr(error, "code", 0)
            rows.append({"topic": name, "error_code": int(code), "error_message": str(error)})
        return SimpleNamespace(to_object=lambda: {"topic_errors": rows})

    async def close(self) -> None:
        await asyncio.to_thread(self._ours.close)
