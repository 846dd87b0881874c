"""Nodes in ZooKeeper that nobody can read: each is ignored, an ERROR line names it, and brokers
serve, start and elect as if it were not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from kafka.errors import TopicAlreadyExistsError
from kazoo.client import KazooClient
from support.brokers.zookeeper import skip_without_zookeeper

from kbroker.metastore import paths
from kbroker.testing import Cluster, wait_until

pytestmark = pytest.mark.integration

PATIENCE_S = 60
GARBAGE = b'{"version": 1, "partitions": {"0": '
STRANGE_CONFIG = {"retention.ms": "for ever", "cleanup.policy": "burn", "segment.bytes": "1048576"}

# Node, data, and what an ERROR line has of it. Each topic has one partition, on broker 0.
DAMAGED: list[tuple[str, bytes, str]] = [
    (f"{paths.BROKER_IDS}/77", b"[]", f"{paths.BROKER_IDS}/77"),
    (f"{paths.BROKER_IDS}/78", b'{"host":"h","port":-1}', f"{paths.BROKER_IDS}/78"),
    (f"{paths.BROKER_IDS}/who", b"{}", f"{paths.BROKER_IDS}/who"),
    (f"{paths.BROKER_TOPICS}/garbage", GARBAGE, "garbage"),
    (f"{paths.BROKER_TOPICS}/no list", b'{"partitions":{}}', "no list"),
    (f"{paths.BROKER_TOPICS}/null", b'{"partitions":{"0":null}}', "null"),
    (paths.topic_config("configured"), GARBAGE, paths.topic_config("configured")),
    (paths.topic_config("strange"), json.dumps({"config": STRANGE_CONFIG}).encode(), "for ever"),
    (f"{paths.BROKER_CONFIGS}/1", b"\xff", f"{paths.BROKER_CONFIGS}/1"),
    (f"{paths.CONFIG_CHANGES}/config_change_", GARBAGE, f"{paths.CONFIG_CHANGES}/config_change_"),
    (f"{paths.CONFIG_CHANGES}/backup", b"", f"{paths.CONFIG_CHANGES}/backup"),
    (f"{paths.ISR_CHANGES}/isr_change_", GARBAGE, f"{paths.ISR_CHANGES}/isr_change_"),
    (f"{paths.LOG_DIR_EVENTS}/log_dir_event_", b"[1]", f"{paths.LOG_DIR_EVENTS}/log_dir_event_"),
    (paths.REASSIGN_PARTITIONS, GARBAGE, paths.REASSIGN_PARTITIONS),
    (paths.PREFERRED_ELECTION, b"[" * 100_000, paths.PREFERRED_ELECTION),
    (paths.FEATURES, b'{"features":[1]}', paths.FEATURES),
    (paths.CONTROLLER_EPOCH, b"many", paths.CONTROLLER_EPOCH),
    (paths.CONTROLLER, GARBAGE, f"{paths.CONTROLLER} cannot be read"),
    (paths.PRODUCER_ID_BLOCK, GARBAGE, paths.PRODUCER_ID_BLOCK),
]
SEQUENTIAL = ("config_change_", "isr_change_", "log_dir_event_")


@contextmanager
def store(cluster: Cluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper_connect)
    client.start(PATIENCE_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def put(client: KazooClient, path: str, data: bytes) -> None:
    if client.exists(path):
        client.set(path, data)
    else:
        client.create(path, data, makepath=True, sequence=path.endswith(SEQUENTIAL))


def create(cluster: Cluster, name: str, *replicas: int) -> None:
    """Create the topic; the client gives up at once while a controller is being elected."""

    def created() -> bool:
        with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin:
            topic = NewTopic(name, -1, -1, replica_assignments={0: list(replicas)})
            with suppress(TopicAlreadyExistsError):
                try:
                    admin.create_topics([topic])
                except RuntimeError as error:
                    raise AssertionError(error) from error
        return True

    wait_until(created, PATIENCE_S, f"{name} is created")


def write(cluster: Cluster, topic: str, **settings: Any) -> int:
    """The offset of a record that was acknowledged."""
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all", **settings)
    with closing(producer):
        return int(producer.send(topic, b"x", partition=0).get(PATIENCE_S).offset)


def errors(cluster: Cluster) -> str:
    lines = [line for broker in cluster.brokers for line in broker.log_text.splitlines()]
    return "\n".join(line for line in lines if " ERROR " in line)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    skip_without_zookeeper()
    with Cluster(2, min_insync_replicas=1) as started:
        yield started


@pytest.mark.slow
def test_damaged_node_of_each_kind_stops_nothing_and_is_named(cluster: Cluster) -> None:
    for topic in ("sound", "configured", "strange", "stateless"):
        create(cluster, topic, 0, 1)
        write(cluster, topic)
    with store(cluster) as client:
        for path, data, _ in DAMAGED:
            if path != paths.CONTROLLER:
                put(client, path, data)
        put(client, paths.partition_state("stateless", 0), b'{"leader":"who"}')
        put(client, paths.CONFIG_CHANGE, paths.encode_config_change(paths.topic_config("strange")))

    # The present controller goes on, another one is elected, and every broker starts with this.
    create(cluster, "later", 0, 1)
    write(cluster, "later")
    first = cluster.controller
    for number in (first, 1 - first):
        cluster.restart(number)
        for topic in ("sound", "configured", "strange", "later"):
            cluster.wait_in_sync(topic)
            write(cluster, topic)
    assert write(cluster, "sound") == 3

    with store(cluster) as client:
        before = client.exists(paths.CONTROLLER).czxid
        client.set(paths.CONTROLLER, GARBAGE)
        wait_until(lambda: is_later(client, before), PATIENCE_S, "a controller is elected")
    create(cluster, "last", 0, 1)
    write(cluster, "last")

    wait_until(lambda: not missing(cluster), PATIENCE_S, "every node is named")
    assert f"{paths.BROKER_TOPICS}/stateless/partitions/0/state" in errors(cluster)
    for broker in cluster.brokers:
        assert " exited with " not in broker.log_text


def is_later(client: KazooClient, czxid: int) -> bool:
    stat = client.exists(paths.CONTROLLER)
    return stat is not None and int(stat.czxid) > czxid


def missing(cluster: Cluster) -> list[str]:
    told = errors(cluster)
    return [path for path, _, named in DAMAGED if named not in told]
