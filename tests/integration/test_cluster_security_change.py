"""A cluster whose brokers speak PLAINTEXT to each other changes to SASL_SSL while a producer goes
on, in the steps of docs/security.md.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import NewTopic
from support.clients.writing import Writing
from support.security.secured_peers import SecuredPeers, write_user

from kbroker.testing import Broker, Cluster, wait_until
from kbroker.testing.ports import LOCALHOST, HeldPort

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

MECHANISM = "SCRAM-SHA-256"
TOPIC, PARTITIONS = "rolling", 3


def restart(cluster: Cluster, broker: Broker, writing: Writing, **settings: str) -> None:
    """With other settings; the producer notices nothing."""
    assert broker.stop() == 0
    broker.config |= settings
    broker.start()
    cluster.wait_ready()
    cluster.wait_in_sync(TOPIC)
    writing.wait_for_more(5)


def test_producer_goes_on_while_brokers_change_their_listener(tmp_path: Path) -> None:
    peers = SecuredPeers(tmp_path)
    ports = [HeldPort() for _ in range(3)]
    with Cluster(3) as cluster:
        with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin:
            wanted = NewTopic(TOPIC, PARTITIONS, 3, topic_configs={"min.insync.replicas": "2"})
            admin.create_topics([wanted])
        cluster.wait_in_sync(TOPIC)
        with Writing(cluster.bootstrap, TOPIC, PARTITIONS) as writing:
            writing.wait_for_more(5)
            # 1: the users of the brokers, 2: the listener, on each broker,
            write_user(cluster.zookeeper_connect, MECHANISM)
            added = peers.settings("SASL_SSL", MECHANISM)
            between = added.pop("security.inter.broker.protocol")
            for broker, port in zip(cluster.brokers, ports, strict=True):
                listeners = f"{broker.config['listeners']},SASL_SSL://{LOCALHOST}:{port.number}"
                restart(cluster, broker, writing, **added, listeners=listeners)
            # 3: and when all have it, that brokers use it.
            for broker in cluster.brokers:
                restart(cluster, broker, writing, **{"security.inter.broker.protocol": between})
        acknowledged = writing.acknowledged
        assert read(cluster, len(acknowledged)) == acknowledged
    for port in ports:
        port.release()


def read(cluster: Cluster, wanted: int) -> list[str]:
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
    with closing(consumer):
        consumer.assign([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
        found: list[str] = []

        def read_all() -> bool:
            for records in consumer.poll(timeout_ms=500).values():
                found.extend(record.value.decode() for record in records)
            return len(found) >= wanted

        wait_until(read_all, 60, f"{wanted} records are read")
        return sorted(found)
