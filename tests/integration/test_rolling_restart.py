"""Brokers of a cluster are restarted or killed, one after the other, while a producer goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from support.running.grids import some_of

from kbroker.testing import Cluster, wait_until

pytestmark = pytest.mark.integration

TOPIC, PARTITIONS = "rolling", 6


class Load:
    """Sends numbers in order, waits for each, and notes what it took."""

    def __init__(self, bootstrap: list[str]) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, linger_ms=0
        )
        self.acknowledged: list[int] = []
        self.longest_s = 0.0
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                sent = self._producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
                sent.get(timeout=60)
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.acknowledged.append(number)
                number += 1
                self._stop.wait(0.01)  # more records would show no more
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.close()


def read(cluster: Cluster, count: int) -> list[int]:
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
    with closing(consumer):
        consumer.assign([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
        found: list[int] = []

        def read_all() -> bool:
            for records in consumer.poll(timeout_ms=500).values():
                found.extend(int(record.value) for record in records)
            return len(found) >= count

        wait_until(read_all, 60, f"{count} records are read")
        return sorted(found)


@contextmanager
def loaded(protocol: str, brokers: int = 3) -> Iterator[tuple[Cluster, Load]]:
    """Brokers with the topic, and a producer; afterwards each record is there once."""
    with Cluster(brokers=brokers, inter_broker_protocol_version=protocol) as cluster:
        with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin:
            settings = {"min.insync.replicas": str(brokers - 1)}
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, brokers, topic_configs=settings)])
        cluster.wait_in_sync(TOPIC)
        with Load(cluster.bootstrap) as load:
            wait_until(lambda: load.acknowledged or load.error, 60, "it produces")
            yield cluster, load
        assert load.error is None
        print(f"{len(load.acknowledged)} records; the longest wait took {load.longest_s:.3f} s")
        assert read(cluster, len(load.acknowledged)) == load.acknowledged


@pytest.mark.parametrize(
    ("protocol", "brokers"), some_of([("2.7", 2), ("2.7", 3), ("2.6", 3)], [("2.7", 2)])
)
def test_producer_notices_nothing_of_brokers_that_are_restarted_in_order(
    protocol: str, brokers: int
) -> None:
    """By AlterIsr, and where leaders write their in-sync replicas themselves."""
    with loaded(protocol, brokers) as (cluster, load):
        for broker in cluster.brokers:
            before = len(load.acknowledged)
            assert broker.stop() == 0
            assert "controlled shutdown succeeded" in broker.log_text
            wait_until(lambda before=before: len(load.acknowledged) > before, 60, "it goes on")
            broker.start()
            cluster.wait_in_sync(TOPIC)


@pytest.mark.slow
def test_others_lead_at_once_when_a_supervisor_is_killed() -> None:
    """Its controller process ends the session: nobody waits for the 6 s after which it expires."""
    with loaded("2.7") as (cluster, load):
        for broker in cluster.brokers:
            before = len(load.acknowledged)
            broker.kill_all()
            wait_until(lambda before=before: len(load.acknowledged) > before + 20, 60, "it goes on")
            broker.start()
            cluster.wait_in_sync(TOPIC)
        assert load.longest_s < 5
