"""aiokafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import (
    AIOKafkaAdminClient,
    NewPartitions,
    NewTopic,
    RecordsToDelete,
)
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from support.drivers import BEGINNING, WAIT_S, ClientError, Message, Stored, numbers
from support.drivers.access import Access, access_to

T = TypeVar("T")
ACKS = {"0": 0, "1": 1, "all": "all"}


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(asyncio.wait_for(work, 3 * WAIT_S))
    except KafkaError as raised:
        raise ClientError(getattr(raised, "errno", -1) or -1, repr(raised)) from raised


class Aio:
    """aiokafka, with one event loop per call."""

    name = "aiokafka"
    null_headers = header_sets = timestamps = True

    def __init__(self, where: str | Access) -> None:
        self._access = access_to(where)

    def close(self) -> None:
        pass

    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        **config: Any,
    ) -> list[int]:
        async def work() -> list[int]:
            producer = AIOKafkaProducer(
                **self._access.aiokafka(),
                acks=ACKS[acks],
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                linger_ms=5,
                **config,
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        topic,
                        value=message.value,
                        key=message.key,
                        headers=list(message.headers),
                        partition=partition,
                        timestamp_ms=message.timestamp_ms,
                    )
                    for message in messages
                ]
                await producer.flush()
                done = [await future for future in sent]
            finally:
                await producer.stop()
            return [] if acks == "0" else [record.offset for record in done]

        return _run(work())

    @asynccontextmanager
    async def _consumer(self, **config: Any) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(**self._access.aiokafka(), enable_auto_commit=False, **config)
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()

    def fetch(
        self,
        topic: str,
        count: int,
        *,
        partition: int | range = 0,
        start: int | str = BEGINNING,
        committed: bool = False,
        timeout_s: float = WAIT_S,
        **config: Any,
    ) -> list[Stored]:
        isolation = "read_committed" if committed else "read_uncommitted"
        where = [TopicPartition(topic, n) for n in numbers(partition)]

        async def work() -> list[Stored]:
            found: list[Stored] = []
            deadline = time.monotonic() + timeout_s
            async with self._consumer(isolation_level=isolation, **config) as consumer:
                consumer.assign(where)
                if start == BEGINNING:
                    await consumer.seek_to_beginning(*where)
                elif start == "end":
                    await consumer.seek_to_end(*where)
                else:
                    for one in where:
                        consumer.seek(one, int(start))
                while len(found) < count and time.monotonic() < deadline:
                    got = await consumer.getmany(timeout_ms=100, max_records=count - len(found))
                    for records in got.values():
                        found += map(_stored, records)
            return found

        return _run(work())

    def offset(self, topic: str, which: str | int, partition: int = 0) -> int:
        where = TopicPartition(topic, partition)

        async def work() -> int:
            async with self._consumer() as consumer:
                if which == "earliest":
                    return int((await consumer.beginning_offsets([where]))[where])
                if which == "latest":
                    return int((await consumer.end_offsets([where]))[where])
                found = (await consumer.offsets_for_times({where: int(which)}))[where]
                return -1 if found is None else int(found.offset)

        return _run(work())

    # -- administration

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(**self._access.aiokafka())
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        async def work() -> None:
            async with self._admin() as admin:
                new = NewTopic(
                    topic, partitions, self._access.replicas, topic_configs=dict(config or {})
                )
                response = await admin.create_topics([new])
                _check(response.topic_errors)

        _run(work())

    def delete_topic(self, topic: str) -> None:
        async def work() -> None:
            async with self._admin() as admin:
                response = await admin.delete_topics([topic])
                _check(response.topic_error_codes)

        _run(work())

    def create_partitions(self, topic: str, total: int) -> None:
        async def work() -> None:
            async with self._admin() as admin:
                await admin.create_partitions({topic: NewPartitions(total)})

        _run(work())

    def partitions(self, topic: str) -> int:
        async def work() -> int:
            async with self._admin() as admin:
                (found,) = await admin.describe_topics([topic])
                _check([(topic, found["error_code"])])
                return len(found["partitions"])

        return _run(work())

    def topic_config(self, topic: str) -> dict[str, str | None]:
        return self._configs(ConfigResource(ConfigResourceType.TOPIC, topic))

    def broker_config(self, broker_id: int) -> dict[str, str | None]:
        return self._configs(ConfigResource(ConfigResourceType.BROKER, str(broker_id)))

    def _configs(self, resource: ConfigResource) -> dict[str, str | None]:
        async def work() -> dict[str, str | None]:
            async with self._admin() as admin:
                (response,) = await admin.describe_configs([resource])
                ((code, text, _, _, entries),) = response.resources
                if code:
                    raise ClientError(code, text)
                return {entry[0]: entry[1] for entry in entries}

        return _run(work())

    def alter_topic_config(self, topic: str, name: str, value: str) -> None:
        async def work() -> None:
            async with self._admin() as admin:
                change = ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})
                (response,) = await admin.alter_configs([change])
                for code, text, *_ in response.resources:
                    if code:
                        raise ClientError(code, text)

        _run(work())

    def delete_records(self, topic: str, before: int) -> int:
        where = TopicPartition(topic, 0)

        async def work() -> int:
            async with self._admin() as admin:
                response = await admin.delete_records({where: RecordsToDelete(before)})
                return int(response[where])

        return _run(work())

    def cluster(self) -> dict[str, Any]:
        async def work() -> dict[str, Any]:
            async with self._admin() as admin:
                return await admin.describe_cluster()

        found = _run(work())
        return {
            "id": found["cluster_id"],
            "controller": found["controller_id"],
            "brokers": {
                node["node_id"]: f"{node['host']}:{node['port']}" for node in found["brokers"]
            },
        }


def _check(results: Sequence[tuple[Any, ...]]) -> None:
    """Raise the first error of ``(topic, code, ...)`` rows."""
    for topic, code, *_ in results:
        if code:
            raise ClientError(code, str(topic))


def _stored(record: Any) -> Stored:
    return Stored(
        record.offset,
        record.value,
        record.key,
        tuple(record.headers),
        record.timestamp,
        record.partition,
    )
