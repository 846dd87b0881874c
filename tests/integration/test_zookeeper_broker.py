"""A broker whose metadata is in a real ZooKeeper."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from support.brokers.zookeeper import ZooKeeperServer, path_of_its_own, shared
from support.network.cable import Cable
from support.running.grids import some_of

from kbroker.testing import Broker, BrokerFailed, wait_until

pytestmark = pytest.mark.integration


class Nodes:
    """The nodes in ZooKeeper below a path."""

    def __init__(self, connect: str) -> None:
        self.connect = connect
        self.client = KazooClient(connect)
        self.client.start()

    def json(self, path: str) -> Any:
        try:
            return json.loads(self.client.get(path)[0])
        except NoNodeError:
            return None

    def created_id(self, path: str) -> int:
        found = self.client.exists(path)
        return 0 if found is None else int(found.czxid)


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """The nodes of a cluster that does not exist yet."""
    nodes = Nodes(path_of_its_own())
    yield nodes
    nodes.client.stop()
    nodes.client.close()


def broker(nodes: Nodes, **settings: object) -> Broker:
    return Broker(zookeeper_connect=nodes.connect, **settings)


def produce(broker: Broker, topic: str, value: bytes) -> None:
    # An id would belong to a block allocated by ZooKeeper.
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=False)
    producer.send(topic, value).get(60)
    producer.close()


def values(broker: Broker, topic: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest"
    )
    found: list[bytes] = []

    def is_complete() -> bool:
        for records in consumer.poll(200).values():
            found.extend(record.value for record in records)
        return len(found) >= count

    wait_until(is_complete, 30)
    consumer.close()
    return found


def test_broker_is_registered_until_it_stops_and_its_topics_stay(nodes: Nodes) -> None:
    with broker(nodes, broker_rack="r1") as one:
        host, _, port = one.bootstrap.rpartition(":")
        document = nodes.json("/brokers/ids/0")
        assert document.pop("timestamp").isdigit()
        assert document.pop("kbroker")["suspect"] is False
        assert document == {
            "version": 5,
            "host": host,
            "port": int(port),
            "jmx_port": -1,
            "endpoints": [f"PLAINTEXT://{one.bootstrap}"],
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
            "rack": "r1",
            "features": {},
        }
        produce(one, "t", b"1")
        one.stop()
        assert nodes.json("/brokers/ids/0") is None
        assert nodes.json("/controller") is None
        one.start()
        produce(one, "t", b"2")
        assert values(one, "t", 2) == [b"1", b"2"]
        assert nodes.json("/controller_epoch") == 2


def test_older_protocol_registers_as_older_kafkas_do(nodes: Nodes) -> None:
    with broker(nodes, inter_broker_protocol_version="2.6"):
        document = nodes.json("/brokers/ids/0")
        assert document["version"] == 4
        assert "features" not in document


def test_controller_process_that_dies_is_continued_in_the_same_session_and_registration(
    nodes: Nodes,
) -> None:
    with broker(nodes) as one:
        produce(one, "t", b"1")
        broker_epoch = nodes.created_id("/brokers/ids/0")
        one.kill("controller", 0)
        wait_until(lambda: nodes.json("/controller_epoch") == 2, 30)
        produce(one, "u", b"2")
        assert nodes.created_id("/brokers/ids/0") == broker_epoch
        sessions = re.findall("connected, session (0x[0-9a-f]+)", one.log_text)
        assert len(sessions) == 2 and len(set(sessions)) == 1


class Away(NamedTuple):
    """A ZooKeeper, what takes it away, and what brings it back."""

    connect: str
    begin: Callable[[], object]
    end: Callable[[], object]


@pytest.fixture(params=some_of(["cut off", "killed"], ["cut off"]))
def away(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Away]:
    if request.param == "killed":
        with ZooKeeperServer(tmp_path) as own:
            yield Away(own.connect, own.kill, own.start)
    else:
        with Cable(shared().port) as cable:
            path = path_of_its_own().partition("/")[2]
            yield Away(f"{cable.address}/{path}", cable.cut, cable.mend)


def test_service_continues_while_zookeeper_is_away(away: Away) -> None:
    with Broker(zookeeper_connect=away.connect, zookeeper_session_timeout_ms=10_000) as one:
        produce(one, "t", b"1")
        away.begin()
        wait_until(lambda: "connection to ZooKeeper" in one.log_text, 30)
        produce(one, "t", b"2")
        away.end()
        wait_until(lambda: one.log_text.count(": connected, session 0x") == 2, 30)
        produce(one, "new", b"3")
        assert values(one, "t", 2) == [b"1", b"2"]


@pytest.mark.slow
def test_start_that_waits_for_zookeeper_says_so(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=5\ncluster.id=abc\n")
    waiting = Broker(
        zookeeper_connect="127.0.0.1:1/k",
        zookeeper_session_timeout_ms=6000,
        log_dirs=str(tmp_path),
        broker_id=5,
        start_timeout=9,
    )
    with pytest.raises(BrokerFailed, match=r"still no connection to ZooKeeper 127\.0\.0\.1:1/k"):
        waiting.start()
    waiting.close()
