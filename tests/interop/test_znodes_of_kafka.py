"""The nodes in ZooKeeper are those of Apache Kafka 2.7, key by key, after the same history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic
from kazoo.client import KazooClient
from support.brokers.kafka_servers import Kafka27
from support.brokers.zookeeper import ZooKeeperServer

from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.interop

# Kafka only: nodes that kbroker does not need yet.
KAFKAS_OWN = ("/feature", "/kafka-acl", "/delegation_token")
KBROKERS_OWN = ("/config/groups", "/config/client-metrics")


def make_history(bootstrap: str) -> None:
    """A topic with a setting, a broker setting, and a producer with an id."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic("t", 2, 1, topic_configs={"retention.ms": "1000000"})])
    settings = {"log.retention.ms": "5000000"}
    admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, "0", settings)])
    admin.close()
    producer = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, acks="all")
    producer.send("t", b"x").get(60)
    producer.close()


def shape(value: Any) -> Any:
    """A document without the parts that differ between runs."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value).__name__


def nodes(connect: str) -> dict[str, tuple[str, Any]]:
    """By path: whether the node is ephemeral, and the structure of its document."""
    client = KazooClient(connect)
    client.start()
    found: dict[str, tuple[str, Any]] = {}

    def look(path: str) -> None:
        data, stat = client.get(path or "/")
        document = json.loads(data) if data else None
        found[path] = "ephemeral" if stat.ephemeralOwner else "persistent", shape(document)
        for name in client.get_children(path or "/"):
            look(f"{path}/{name}")

    look("")
    client.stop()
    client.close()
    return {path: node for path, node in found.items() if not path.startswith("/config/changes/")}


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


def without_own(found: dict[str, Any], own: tuple[str, ...]) -> dict[str, Any]:
    return {path: node for path, node in found.items() if path and not path.startswith(own)}


@pytest.mark.slow
def test_documents_have_the_keys_of_kafkas(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    place = f"{zookeeper.connect}/kafka"
    with Kafka27(tmp_path / "kafka", place) as kafka:
        make_history(kafka.bootstrap)
        wait_until(lambda: "/brokers/topics/t/partitions/1/state" in nodes(place))
        theirs = without_own(nodes(place), KAFKAS_OWN)
    with Broker(zookeeper_connect=f"{zookeeper.connect}/kbroker") as broker:
        make_history(broker.bootstrap)
        ours = without_own(nodes(f"{zookeeper.connect}/kbroker"), KBROKERS_OWN)
    registration = ours["/brokers/ids/0"][1]
    assert set(registration.pop("kbroker")) == {"version", "features", "suspect"}
    assert ours == theirs
