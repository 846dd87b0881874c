"""confluent-kafka, with the current librdkafka."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import IsolationLevel as Isolation
from confluent_kafka import Message as Delivered
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from support.drivers import BEGINNING, WAIT_S, ClientError, Message, Stored, numbers
from support.drivers.access import Access, access_to

UNKNOWN_TOPIC_OR_PARTITION = 3


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except KafkaException as raised:
        error: KafkaError = raised.args[0]
        raise ClientError(error.code(), str(error)) from raised


class Confluent:
    """confluent-kafka; ``config`` is for every client."""

    null_headers = header_sets = timestamps = True

    def __init__(
        self,
        where: str | Access,
        name: str = "confluent-kafka",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self._replicas = access_to(where).replicas
        self._config = {**access_to(where).librdkafka(), **(config or {})}
        self._admin = AdminClient(self._config)

    def close(self) -> None:
        del self._admin  # its thread would go on looking for the broker

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
        producer = Producer(
            {
                **self._config,
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": idempotent,
                "linger.ms": 5,
                **config,
            }
        )
        delivered: list[tuple[KafkaError | None, Delivered]] = []
        with _reported():
            for message in messages:
                timestamp = {"timestamp": message.timestamp_ms} if message.timestamp_ms else {}
                producer.produce(
                    topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers) or None,
                    partition=partition,
                    on_delivery=lambda error, record: delivered.append((error, record)),
                    **timestamp,
                )
                producer.poll(0)
        assert producer.flush(WAIT_S) == 0, "not everything was delivered"
        for error, _ in delivered:
            if error is not None:
                raise ClientError(error.code(), str(error))
        if acks == "0":
            return []
        return [record.offset() for _, record in delivered]

    @contextmanager
    def _consumer(self, **config: Any) -> Iterator[Consumer]:
        consumer = Consumer(
            {
                **self._config,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": False,
                **config,
            }
        )
        try:
            with _reported():
                yield consumer
        finally:
            consumer.close()

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
        found: list[Stored] = []
        deadline = time.monotonic() + timeout_s
        isolation = "read_committed" if committed else "read_uncommitted"
        position = -2 if start == BEGINNING else -1 if start == "end" else int(start)
        with self._consumer(**{"isolation.level": isolation, **config}) as consumer:
            consumer.assign([TopicPartition(topic, n, position) for n in numbers(partition)])
            while len(found) < count and time.monotonic() < deadline:
                for record in consumer.consume(count - len(found), 0.1):
                    if record.error():
                        raise ClientError(record.error().code(), str(record.error()))
                    found.append(_stored(record))
        return found

    def offset(self, topic: str, which: str | int, partition: int = 0) -> int:
        if which == "earliest":
            spec = OffsetSpec.earliest()
        elif which == "latest":
            spec = OffsetSpec.latest()
        elif which == "max_timestamp":
            spec = OffsetSpec.max_timestamp()
        else:
            spec = OffsetSpec.for_timestamp(int(which))
        with _reported():
            asked = self._admin.list_offsets(
                {TopicPartition(topic, partition): spec}, isolation_level=Isolation.READ_UNCOMMITTED
            )
            (response,) = asked.values()
            offset: int = response.result(WAIT_S).offset
        return offset

    # -- administration

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        replicas: int | None = None,
    ) -> None:
        new = NewTopic(topic, partitions, replicas or self._replicas, config=dict(config or {}))
        with _reported():
            self._admin.create_topics([new])[topic].result(WAIT_S)

    def delete_topic(self, topic: str) -> None:
        with _reported():
            self._admin.delete_topics([topic])[topic].result(WAIT_S)

    def create_partitions(self, topic: str, total: int) -> None:
        with _reported():
            self._admin.create_partitions([NewPartitions(topic, total)])[topic].result(WAIT_S)

    def partitions(self, topic: str) -> int:
        with _reported():
            known = self._admin.list_topics(timeout=WAIT_S).topics.get(topic)
        if known is None:
            raise ClientError(UNKNOWN_TOPIC_OR_PARTITION, f"{topic} is not in the metadata")
        return len(known.partitions)

    def topic_config(self, topic: str) -> dict[str, str | None]:
        return self._configs(ConfigResource(ResourceType.TOPIC, topic))

    def broker_config(self, broker_id: int) -> dict[str, str | None]:
        return self._configs(ConfigResource(ResourceType.BROKER, str(broker_id)))

    def _configs(self, resource: ConfigResource) -> dict[str, str | None]:
        with _reported():
            entries = self._admin.describe_configs([resource])[resource].result(WAIT_S)
        return {name: entry.value for name, entry in entries.items()}

    def alter_topic_config(self, topic: str, name: str, value: str) -> None:
        change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
        with _reported():
            self._admin.incremental_alter_configs([resource])[resource].result(WAIT_S)

    def delete_records(self, topic: str, before: int) -> int:
        wanted = TopicPartition(topic, 0, before)
        with _reported():
            (response,) = self._admin.delete_records([wanted]).values()
            low: int = response.result(WAIT_S).low_watermark
        return low

    def cluster(self) -> dict[str, Any]:
        with _reported():
            found = self._admin.describe_cluster().result(WAIT_S)
        return {
            "id": found.cluster_id,
            "controller": found.controller.id,
            "brokers": {node.id: f"{node.host}:{node.port}" for node in found.nodes},
        }


def _stored(record: Delivered) -> Stored:
    return Stored(
        record.offset(),
        record.value(),
        record.key(),
        tuple(record.headers() or ()),
        record.timestamp()[1],
        record.partition(),
    )
