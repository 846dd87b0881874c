"""A broker that has registered, and that the controller has not reached yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.client import KafkaAdminClient
from kbroker.testing import Broker, wait_until
from kbroker.testing.cluster import Cluster
from kbroker.testing.metadata import membership

pytestmark = pytest.mark.integration

TOPIC, RECORDS = "t", 20
PATIENCE_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, cuttable=True) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 4, 2)])[TOPIC].result(PATIENCE_S)
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for number in range(RECORDS):
            producer.produce(TOPIC, b"v", partition=number % 4)
        assert producer.flush(PATIENCE_S) == 0
        reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "first"})
        reader.subscribe([TOPIC])
        reader.poll(1.0)
        reader.close()
        yield cluster


@pytest.fixture
def joining(cluster: Cluster) -> Iterator[Broker]:
    """A broker that the controller cannot reach yet; it does when ``cluster.heal`` is called."""
    number = 1 - cluster.controller
    cluster.brokers[number].stop()
    cluster.cut(number)
    cluster.brokers[number].start()
    yield cluster.brokers[number]
    cluster.heal()
    cluster.wait_ready()
    cluster.wait_in_sync(TOPIC)


def address_of(broker: Broker) -> str:
    return broker.config["listeners"].split(",")[0].partition("://")[2]


def test_it_names_no_empty_cluster(cluster: Cluster, joining: Broker) -> None:
    """It answers when it knows its brokers, or closes the connection."""
    began = time.monotonic()
    with pytest.raises(AssertionError, match="does not respond"):
        membership(address_of(joining))
    assert time.monotonic() - began > 1

    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.append(membership(address_of(joining))))
    asking.start()
    cluster.heal()
    asking.join(PATIENCE_S)

    assert [one.brokers for one in found] == [{0, 1}]


@pytest.mark.slow
def test_a_consumer_that_finds_the_cluster_by_it_reads_at_once(
    cluster: Cluster, joining: Broker
) -> None:
    """librdkafka, told of no broker in the middle of a join, asks nobody for five minutes."""
    settings = {
        "bootstrap.servers": address_of(joining),
        "group.id": "g",
        "auto.offset.reset": "earliest",
    }
    readers = [Consumer({**settings, "group.id": f"g-{number}"}) for number in range(8)]
    for reader in readers:
        reader.subscribe([TOPIC])
        reader.poll(0.1)
    wait_until(lambda: not readers[0].poll(0.1), PATIENCE_S)
    cluster.heal()

    for reader in readers:
        read: list[Any] = []

        def all_read(reader: Consumer = reader, read: list[Any] = read) -> bool:
            read += [one for one in reader.consume(RECORDS, 0.5) if not one.error()]
            return len(read) == RECORDS

        wait_until(all_read, PATIENCE_S, "all records are read")
        reader.close()


def test_our_admin_client_waits_for_it(cluster: Cluster, joining: Broker) -> None:
    """Topics and groups are not missing for a moment."""
    found: list[Any] = []

    def ask() -> None:
        with KafkaAdminClient(bootstrap_servers=address_of(joining)) as admin:
            found.append(len(admin.describe_cluster().brokers))
            found.append([one.name for one in admin.list_topics() if one.name == TOPIC])

    asking = threading.Thread(target=ask)
    asking.start()
    cluster.heal()
    asking.join(PATIENCE_S)

    assert found == [2, [TOPIC]]
