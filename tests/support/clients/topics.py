"""Topics created, filled and read by librdkafka, to test other readers and writers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from support.clients.markers import await_markers

from kbroker.client.connections.cluster import Cluster

# Only against hanging.
WAIT_S = 60.0


class Record(NamedTuple):
    """headers: None if there are none. timestamp: ms, None to let the client choose."""

    key: bytes | None
    value: bytes | None
    partition: int = 0
    headers: list[tuple[str, bytes | None]] | None = None
    timestamp: int | None = None
    offset: int = -1


def create_topic(
    bootstrap: str, name: str, partitions: int = 1, config: dict[str, str] | None = None
) -> None:
    """Its retention is unlimited, whatever the timestamps of its records."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {"retention.ms": "-1", **(config or {})}
    made = admin.create_topics([NewTopic(name, partitions, 1, config=settings)])
    made[name].result(WAIT_S)


def delete_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # a future needs its client alive
    admin.delete_topics([name])[name].result(WAIT_S)


def add_partitions(bootstrap: str, name: str, total: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(name, total)])[name].result(WAIT_S)


def delete_records(bootstrap: str, topic: str, partition: int, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    at = TopicPartition(topic, partition, before)
    admin.delete_records([at])[at].result(WAIT_S)


def producer(bootstrap: str, **settings: Any) -> Producer:
    """Its transactions stay open until they are ended, however slow the machine is."""
    if "transactional_id" in settings:
        settings = {"transaction_timeout_ms": 900_000, **settings}
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **named})


def send(made: Producer, topic: str, records: Iterable[Record]) -> None:
    """Send without waiting."""
    for one in records:
        more: dict[str, Any] = {}
        if one.timestamp is not None:
            more["timestamp"] = one.timestamp
        if one.headers is not None:
            more["headers"] = one.headers
        while True:
            try:
                made.produce(topic, key=one.key, value=one.value, partition=one.partition, **more)
                break
            except BufferError:
                made.poll(0.05)


def fill(bootstrap: str, topic: str, records: Iterable[Record], **settings: Any) -> None:
    """Write records, and wait for their acknowledgements."""
    made = producer(bootstrap, **settings)
    send(made, topic, records)
    assert made.flush(WAIT_S) == 0


def read_topic(
    bootstrap: str,
    topic: str,
    *,
    isolation: str = "read_uncommitted",
    stays_open: bool = False,
) -> list[Record]:
    """All records, by partition and offset.

    stays_open: a transaction is open, and is not waited for by a reader of committed records.
    """
    if isolation == "read_committed" and not stays_open:
        with Cluster(bootstrap) as cluster:
            await_markers(cluster, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader-of-tests",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    try:
        known = consumer.list_topics(topic, WAIT_S).topics[topic].partitions
        places = []
        for partition in known:
            low, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), WAIT_S)
            places.append(TopicPartition(topic, partition, low))
        consumer.assign(places)
        found, left = [], set(known)
        while left:
            message = consumer.poll(WAIT_S)
            assert message is not None, f"no answer, still without end: {left}"
            if message.error():
                assert message.error().name() == "_PARTITION_EOF", message.error()
                left.discard(message.partition())
                continue
            found.append(_record(message))
        return sorted(found, key=lambda one: (one.partition, one.offset))
    finally:
        consumer.close()


def _record(message: Any) -> Record:
    return Record(
        message.key(),
        message.value(),
        message.partition(),
        message.headers(),
        message.timestamp()[1],
        message.offset(),
    )
