"""kafka-python 3."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource
from kafka.errors import KafkaError
from support.drivers import BEGINNING, WAIT_S, ClientError, Message, Stored, numbers
from support.drivers.access import Access, access_to

UNKNOWN_TOPIC_OR_PARTITION = 3
ACKS = {"0": 0, "1": 1, "all": "all"}


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except KafkaError as raised:
        raise ClientError(getattr(raised, "errno", -1) or -1, repr(raised)) from raised


class KafkaPython:
    """kafka-python; ``api_version`` configures the broker version it assumes."""

    null_headers = False
    header_sets = timestamps = True

    def __init__(self, where: str | Access, api_version: tuple[int, ...] | None = None) -> None:
        version = ".".join(map(str, api_version or ()))
        self.name = f"kafka-python {version}".strip()
        self._replicas = access_to(where).replicas
        self._config = access_to(where).kafka_python()
        if api_version is not None:
            self._config["api_version"] = api_version

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
        producer = KafkaProducer(
            **self._config,
            acks=ACKS[acks],
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            linger_ms=5,
            **config,
        )
        try:
            with _reported():
                sent = [
                    producer.send(
                        topic,
                        value=message.value,
                        key=message.key,
                        headers=list(message.headers),
                        partition=partition,
                        timestamp_ms=message.timestamp_ms,
                    )
                    for message in messages
                ]
                producer.flush(WAIT_S)
                offsets = [future.get(WAIT_S).offset for future in sent]
        finally:
            producer.close(timeout=WAIT_S)
        return [] if acks == "0" else offsets

    @contextmanager
    def _consumer(self, **config: Any) -> Iterator[KafkaConsumer]:
        consumer = KafkaConsumer(**self._config, enable_auto_commit=False, **config)
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
        where = [TopicPartition(topic, n) for n in numbers(partition)]
        isolation = "read_committed" if committed else "read_uncommitted"
        with self._consumer(isolation_level=isolation, **config) as consumer:
            consumer.assign(where)
            if start == BEGINNING:
                consumer.seek_to_beginning(*where)
            elif start == "end":
                consumer.seek_to_end(*where)
            else:
                for one in where:
                    consumer.seek(one, int(start))
            while len(found) < count and time.monotonic() < deadline:
                for records in consumer.poll(100, max_records=count - len(found)).values():
                    found += map(_stored, records)
        return found

    def offset(self, topic: str, which: str | int, partition: int = 0) -> int:
        where = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            if which == "earliest":
                return int(consumer.beginning_offsets([where])[where])
            if which == "latest":
                return int(consumer.end_offsets([where])[where])
            found = consumer.offsets_for_times({where: int(which)})[where]
            return -1 if found is None else int(found.offset)

    # -- administration

    @contextmanager
    def _admin(self) -> Iterator[KafkaAdminClient]:
        admin = KafkaAdminClient(**self._config)
        try:
            with _reported():
                yield admin
        finally:
            admin.close()

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        new = {
            "num_partitions": partitions,
            "replication_factor": self._replicas,
            "configs": dict(config or {}),
        }
        with self._admin() as admin:
            admin.create_topics({topic: new})

    def delete_topic(self, topic: str) -> None:
        with self._admin() as admin:
            admin.delete_topics([topic])

    def create_partitions(self, topic: str, total: int) -> None:
        with self._admin() as admin:
            admin.create_partitions({topic: total})

    def partitions(self, topic: str) -> int:
        with self._admin() as admin:
            (found,) = admin.describe_topics([topic])
        if found["error_code"]:
            raise ClientError(found["error_code"], f"{topic}")
        return len(found["partitions"])

    def topic_config(self, topic: str) -> dict[str, str | None]:
        return self._configs("topic", topic)

    def broker_config(self, broker_id: int) -> dict[str, str | None]:
        return self._configs("broker", str(broker_id))

    def _configs(self, kind: str, name: str) -> dict[str, str | None]:
        with self._admin() as admin:
            found = admin.describe_configs([ConfigResource(kind, name)], config_filter="all")
        return {key: entry["value"] for key, entry in found[kind][name].items()}

    def alter_topic_config(self, topic: str, name: str, value: str) -> None:
        with self._admin() as admin:
            done = admin.alter_configs([ConfigResource("topic", topic, {name: value})])
        result = done["topic"][topic]
        if result != "OK":
            raise ClientError(-1, result)

    def delete_records(self, topic: str, before: int) -> int:
        where = TopicPartition(topic, 0)
        with self._admin() as admin:
            return int(admin.delete_records({where: before})[where]["low_watermark"])

    def cluster(self) -> dict[str, Any]:
        with self._admin() as admin:
            found = admin.describe_cluster()
        return {
            "id": found["cluster_id"],
            "controller": found["controller_id"],
            "brokers": {
                node.get("broker_id", node.get("node_id")): f"{node['host']}:{node['port']}"
                for node in found["brokers"]
            },
        }


def _stored(record: Any) -> Stored:
    headers = tuple((name, value) for name, value in record.headers)
    return Stored(
        record.offset, record.value, record.key, headers, record.timestamp, record.partition
    )
