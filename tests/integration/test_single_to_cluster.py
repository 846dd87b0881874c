"""A single broker becomes the first of a cluster (docs/migration.md); its clients go on."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kazoo.client import KazooClient
from support.brokers.zookeeper import ZooKeeperServer
from support.clients.wire_client import WireClient

from kbroker.cli.adopt import main as adopt
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

TOPIC, PARTITIONS = "moved", 2
GROUP, OLD_GROUP = "readers", "readers-of-0.8"
TRANSACTIONAL_ID = "transfers"
SETTINGS = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "group.initial.rebalance.delay.ms": 0,
}
SETTING = {"retention.ms": "1234567890"}


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def nodes(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    client = KazooClient(f"{zookeeper.connect}/cluster")
    client.start()
    yield client
    client.stop()
    client.close()


class Clients:
    """They live while the broker becomes another."""

    def __init__(self, bootstrap: str) -> None:
        self.sent: list[str] = []
        self.read: list[str] = []
        self.producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self.transactional = transactional(bootstrap)
        self.transactional.init_transactions(30)
        self.consumer = Consumer({
            "bootstrap.servers": bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest",
            "isolation.level": "read_committed", "enable.auto.commit": False,
        })  # fmt: skip
        self.consumer.subscribe([TOPIC])

    def produce(self, count: int) -> None:
        for _ in range(count):
            self._send(self.producer, self._next())
        assert self.producer.flush(60) == 0

    def transact(self, *, commit: bool) -> None:
        self.transactional.begin_transaction()
        value = self._next() if commit else "aborted"
        for number in range(PARTITIONS):
            self.transactional.produce(TOPIC, f"{value}-{number}", partition=number)
        if commit:
            self.transactional.commit_transaction(60)
            self.sent[-1:] = [f"{value}-{number}" for number in range(PARTITIONS)]
        else:
            self.transactional.abort_transaction(60)

    def _next(self) -> str:
        self.sent.append(f"v{len(self.sent)}")
        return self.sent[-1]

    def _send(self, producer: Producer, value: str) -> None:
        def delivered(error: Any, _: Any) -> None:
            assert error is None, error

        producer.produce(TOPIC, value, on_delivery=delivered)

    def consume(self) -> None:
        """Read and commit everything that was sent."""

        def has_all() -> bool:
            for message in self.consumer.consume(100, 0.2):
                assert message.error() is None, message.error()
                self.read.append(message.value().decode())
            return len(self.read) >= len(self.sent)

        wait_until(has_all, 60, "the consumer goes on")
        self.consumer.commit(asynchronous=False)
        assert sorted(self.read) == sorted(self.sent), "once each, and nothing that was aborted"


def transactional(bootstrap: str) -> Producer:
    settings = {"bootstrap.servers": bootstrap, "transactional.id": TRANSACTIONAL_ID}
    return Producer(settings)


def wire(broker: Broker) -> WireClient:
    return WireClient((broker.host, broker.port))


def commit_in_store(broker: Broker, offset: int) -> None:
    """OffsetCommit 0, whose offsets are in the metadata store."""
    request = OffsetCommitRequest
    part = request.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = request.OffsetCommitRequestTopic(name=TOPIC, partitions=[part])
    with wire(broker) as client:
        response = client.call(request(group_id=OLD_GROUP, topics=[topic]), 0)
    assert response.topics[0].partitions[0].error_code == 0


def committed_in_store(broker: Broker) -> int:
    request = OffsetFetchRequest
    topic = request.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
    with wire(broker) as client:
        response = client.call(request(group_id=OLD_GROUP, topics=[topic]), 0)
    return int(response.topics[0].partitions[0].committed_offset)


def message_max(admin: AdminClient) -> str:
    resource = ConfigResource(ResourceType.BROKER, "1")
    (found,) = admin.describe_configs([resource]).values()
    return str(found.result(30)["message.max.bytes"].value)


@pytest.mark.slow
def test_topics_settings_groups_and_transactions_come_along(
    zookeeper: ZooKeeperServer, nodes: KazooClient, tmp_path: Path, capsys: Any
) -> None:
    connect = f"{zookeeper.connect}/cluster"
    with Broker(SETTINGS, directory=tmp_path / "first", broker_id=1) as first:
        admin = AdminClient({"bootstrap.servers": first.bootstrap})
        (made,) = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=SETTING)]).values()
        made.result(30)
        entry = ConfigEntry(
            "message.max.bytes", "2000000", incremental_operation=AlterConfigOpType.SET
        )
        own = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        (changed,) = admin.incremental_alter_configs([own]).values()
        changed.result(30)
        clients = Clients(first.bootstrap)
        clients.produce(100)
        clients.transact(commit=True)
        clients.transact(commit=False)
        clients.consume()
        commit_in_store(first, 7)
        assert first.stop() == 0

        data = first.config["log.dirs"]
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # a user would see it
            command = ["--log-dirs", data, "--back-to", "kafka-2.7", "--zookeeper", connect]
            assert adopt(command) == 0
        said = capsys.readouterr().out
        assert f"zookeeper.connect={connect}" in said
        first.config["zookeeper.connect"] = connect
        first.start()

        clients.produce(100)
        clients.transact(commit=False)
        clients.transact(commit=True)
        clients.consume()
        assert committed_in_store(first) == 7
        assert message_max(admin) == "2000000"
        config = json.loads(nodes.get(f"/config/topics/{TOPIC}")[0])["config"]
        assert config == SETTING
        second = Broker(
            SETTINGS, directory=tmp_path / "second", broker_id=2, zookeeper_connect=connect
        )
        with second:
            replicate(nodes, [1, 2])
            clients.produce(100)
            clients.consume()
        clients.consumer.close()


def replicate(nodes: KazooClient, replicas: list[int]) -> None:
    """Have every partition on these brokers, as kafka-reassign-partitions does."""
    wanted = [
        {"topic": TOPIC, "partition": number, "replicas": replicas} for number in range(PARTITIONS)
    ]
    document = {"version": 1, "partitions": wanted}
    nodes.create("/admin/reassign_partitions", json.dumps(document).encode())

    def all_in_sync() -> bool:
        states = (f"/brokers/topics/{TOPIC}/partitions/{n}/state" for n in range(PARTITIONS))
        return all(set(json.loads(nodes.get(path)[0])["isr"]) == set(replicas) for path in states)

    wait_until(all_in_sync, 60, "the second broker has replicas")
