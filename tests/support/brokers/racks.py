"""A cluster of three brokers in a rack each, and the bytes that consumers read from each."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence

from confluent_kafka import Producer
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from kbroker.config.table.rules import RACK_AWARE_SELECTOR
from kbroker.testing import Broker, wait_until
from kbroker.testing.cluster import Cluster
from kbroker.testing.metadata import membership

RACKS = ("a", "b", "c")
LEADER, NEAR, OTHER = range(3)
PATIENCE_S = 60


def cluster_of_racks(**settings: object) -> Cluster:
    """Brokers that send consumers to replicas in their rack. Leaders stay where a test has them."""
    return Cluster(
        len(RACKS),
        {
            "replica.selector.class": RACK_AWARE_SELECTOR,
            "auto.leader.rebalance.enable": False,
            "num.network.threads": 1,  # one process that publishes counters
            **settings,
        },
        each={number: {"broker.rack": rack} for number, rack in enumerate(RACKS)},
    )


def create_topic(cluster: Cluster, name: str) -> None:
    """One partition, which LEADER leads; all brokers have a replica in sync."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    admin.create_topics([NewTopic(name, -1, -1, replica_assignments={0: [LEADER, NEAR, OTHER]})])
    admin.close()
    cluster.wait_in_sync(name, timeout=PATIENCE_S)


def produce(cluster: Cluster, topic: str, values: Sequence[bytes]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, value, partition=0)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0


def metric(broker: Broker, name: str) -> int:
    """The sum over all processes."""
    with urllib.request.urlopen(f"{broker.metrics_url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(name + "{"))


def bytes_to_consumers(broker: Broker) -> int:
    """Bytes of all responses except those to followers."""
    sent = metric(broker, "kbroker_response_bytes_total")
    return sent - metric(broker, "kbroker_follower_bytes_total")


def bytes_by_now(broker: Broker) -> int:
    """``bytes_to_consumers``, with all that has been sent until now: counters are published at
    times.
    """
    before = metric(broker, "kbroker_requests_total")

    def published() -> bool:
        membership(broker.bootstrap)
        return metric(broker, "kbroker_requests_total") > before

    wait_until(published, PATIENCE_S, "counters are published")
    return bytes_to_consumers(broker)


def fetches_redirected(broker: Broker) -> int:
    return metric(broker, "kbroker_fetches_redirected_total")
