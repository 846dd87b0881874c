"""librdkafka's idempotent producer, with several requests under way, while leaders change often.

What it has sent behind a batch that was refused must be refused, too: with
OUT_OF_ORDER_SEQUENCE_NUMBER it begins a new epoch and repeats batches that may be in the log.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.client.admin.partitions import elect_leaders
from kbroker.client.admin.reassignments import alter_reassignments
from kbroker.client.connections.cluster import Cluster as Client
from kbroker.testing import Cluster, wait_until

pytestmark = pytest.mark.interop

PARTITIONS = 4
CHANGES = 12
PATIENCE_S = 90


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3, num_io_threads=1) as started:
        yield started


class Sender:
    """Produces numbers to all partitions until it is stopped, and counts what is acknowledged."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.topic = topic
        self.acknowledged = Counter[int]()
        self.errors: list[KafkaError] = []
        self.epochs: set[int] = set()
        self.producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "max.in.flight.requests.per.connection": 5,
                "batch.num.messages": 10,
                "linger.ms": 1,
                "retry.backoff.ms": 1,
                "retry.backoff.max.ms": 20,
                "statistics.interval.ms": 100,
                "stats_cb": self.take_statistics,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def take_statistics(self, text: str) -> None:
        self.epochs.add(json.loads(text)["eos"]["producer_epoch"])

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.acknowledged[int(message.value() or b"")] += 1

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            for _ in range(8):
                text = str(number).encode()
                partition = number % PARTITIONS
                try:
                    self.producer.produce(
                        self.topic, text, partition=partition, on_delivery=self._told
                    )
                except BufferError:
                    break  # its queue is full: wait for acknowledgements
                number += 1
            self.producer.poll(0.002)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self.producer.flush(PATIENCE_S) == 0


def read(cluster: Cluster, topic: str, count: int) -> list[tuple[int, int]]:
    """(partition, number) of at least so many records, in the order of their partitions."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "none"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[tuple[int, int]] = []

    def is_read() -> bool:
        while batch := consumer.consume(1000, 1.0):
            for message in batch:
                assert message.error() is None, message.error()
                found.append((message.partition() or 0, int(message.value() or b"")))
        return len(found) >= count

    try:
        wait_until(is_read, PATIENCE_S, f"{count} records are read")
    finally:
        consumer.close()
    return found


def check(cluster: Cluster, sender: Sender) -> None:
    """Everything is acknowledged and there once, in order, in the first epoch."""
    assert not sender.errors
    assert sender.epochs <= {-1, 0}, "it began a new epoch"
    found = read(cluster, "t", len(sender.acknowledged))
    assert Counter(number for _, number in found) == sender.acknowledged
    for partition in range(PARTITIONS):
        numbers = [number for where, number in found if where == partition]
        assert numbers == sorted(numbers)


@pytest.mark.slow
def test_leaders_change_without_a_new_epoch_or_a_record_twice(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (created,) = admin.create_topics([NewTopic("t", PARTITIONS, 3)]).values()
    created.result(PATIENCE_S)
    cluster.wait_in_sync("t", timeout=PATIENCE_S)
    keys = [("t", number) for number in range(PARTITIONS)]
    sender = Sender(cluster, "t")
    try:
        with Client(cluster.bootstrap) as client:
            for change in range(CHANGES):
                nodes = [(change + at) % 3 for at in range(3)]
                assert set(alter_reassignments(client, dict.fromkeys(keys, nodes)).values()) == {
                    None
                }
                elect_leaders(client, keys)
                wait_until(
                    lambda leader=nodes[0]: all(
                        one.leader == leader for one in cluster.partitions("t").values()
                    ),
                    PATIENCE_S,
                    f"broker {nodes[0]} leads",
                )
    finally:
        sender.stop()

    check(cluster, sender)
