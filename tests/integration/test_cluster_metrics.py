"""/metrics, /health and /waiting of a broker on ZooKeeper, as far as its cluster is concerned."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from fault.wire_client import WireClient
from kazoo.client import KazooClient

from kbroker.testing import Broker, wait_until
from kbroker.testing.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.integration


def get(broker: Broker, path: str) -> str:
    with urllib.request.urlopen(f"{broker.metrics_url}/{path}", timeout=10) as response:
        return str(response.read().decode())


def health(broker: Broker) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(broker, "health"))
    return found


def metric(broker: Broker, name: str) -> int:
    """The controller process's value; 0 is not in the text."""
    wanted = f'{name}{{process="controller-0"}} '
    lines = [line for line in get(broker, "metrics").splitlines() if line.startswith(wanted)]
    return int(float(lines[0].rpartition(" ")[2])) if lines else 0


def reassign_to_a_broker_that_is_gone(broker: Broker, connect: str) -> None:
    with WireClient((broker.host, broker.port)) as client:
        client.create_topic("t")
    nodes = KazooClient(connect)
    nodes.start()
    wanted = [{"topic": "t", "partition": 0, "replicas": [1, 9]}]
    document = {"version": 1, "partitions": wanted}
    nodes.create("/admin/reassign_partitions", json.dumps(document).encode())
    nodes.stop()
    nodes.close()


def test_connection_to_zookeeper_is_told_and_does_not_make_a_broker_unhealthy(
    tmp_path: Path,
) -> None:
    with (
        ZooKeeperServer(tmp_path / "zookeeper") as zookeeper,
        Broker(broker_id=1, zookeeper_connect=zookeeper.connect) as broker,
    ):
        wait_until(lambda: metric(broker, "kbroker_active_controller") == 1, 30, "it is elected")
        assert metric(broker, "kbroker_cluster_brokers") == 1
        assert metric(broker, "kbroker_controller_elections_total") == 1
        assert metric(broker, "kbroker_zookeeper_disconnected") == 0
        assert health(broker)["zookeeper"] == "connected"

        assert json.loads(get(broker, "waiting")) == {"waiting": []}
        reassign_to_a_broker_that_is_gone(broker, zookeeper.connect)
        row = {
            "kind": "reassignment",
            "subject": "t-0",
            "waits_for": "broker 9 to be in sync; broker 9: not registered",
        }
        wait_until(
            lambda: json.loads(get(broker, "waiting")) == {"waiting": [row]}, 30, "it is listed"
        )

        zookeeper.stop()
        wait_until(lambda: metric(broker, "kbroker_zookeeper_disconnected") == 1, 30, "it is gone")
        found = health(broker)
        assert (found["status"], found["zookeeper"]) == ("ok", "disconnected")
        with pytest.raises(urllib.error.HTTPError) as refused:
            get(broker, "waiting")
        assert refused.value.code == 503
        assert b"metadata store cannot be reached" in refused.value.read()

        zookeeper.start()
        wait_until(lambda: health(broker)["zookeeper"] == "connected", 60, "it is back")
        assert metric(broker, "kbroker_zookeeper_disconnected") == 0
