"""/metrics and /health of a broker on ZooKeeper, as far as its cluster is concerned."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

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

        zookeeper.stop()
        wait_until(lambda: metric(broker, "kbroker_zookeeper_disconnected") == 1, 30, "it is gone")
        found = health(broker)
        assert (found["status"], found["zookeeper"]) == ("ok", "disconnected")

        zookeeper.start()
        wait_until(lambda: health(broker)["zookeeper"] == "connected", 60, "it is back")
        assert metric(broker, "kbroker_zookeeper_disconnected") == 0
