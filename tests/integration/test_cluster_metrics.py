"""/metrics, /health and /waiting of a broker on ZooKeeper, as far as its cluster is concerned."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from kazoo.client import KazooClient
from support.brokers.all_processes import wait_until_all_serve
from support.clients.wire_client import WireClient

from kbroker.testing import Broker, wait_until
from kbroker.testing.cluster import Cluster
from kbroker.testing.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.integration


ELECTIONS = "kafka_controller_controllerstats_leaderelectionrateandtimems"


def get(broker: Broker, path: str) -> str:
    with urllib.request.urlopen(f"{broker.metrics_url}/{path}", timeout=10) as response:
        return str(response.read().decode())


def health(broker: Broker) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(broker, "health"))
    return found


def metric(broker: Broker, name: str) -> int:
    """The sum over its processes; 0 is not in the text."""
    lines = [line for line in get(broker, "metrics").splitlines() if line.startswith(f"{name}{{")]
    return sum(int(float(line.rpartition(" ")[2])) for line in lines)


def values(broker: Broker, name: str) -> list[float]:
    """Of all its series."""
    lines = get(broker, "metrics").splitlines()
    return [float(line.split()[-1]) for line in lines if line.split("{")[0].split()[0] == name]


def beans(broker: Broker, pattern: str) -> list[dict[str, Any]]:
    """The MBeans whose names match."""
    found = json.loads(get(broker, f"jmx?qry={urllib.parse.quote(pattern)}"))
    return list(found["beans"])


def lag_of(broker: Broker, partition: str) -> int | None:
    """Behind broker 0, which leads it; None while it is not copied."""
    topic, number = partition.split("-")
    name = "kafka.server:type=FetcherLagMetrics,name=ConsumerLag"
    name += f",clientId=ReplicaFetcherThread-0-0,topic={topic},partition={number}"
    found = {row["name"]: row["Value"] for row in beans(broker, name)}
    return found.get(name)


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
        latency = "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms"
        assert values(broker, f"{latency}_count")[0] >= 10  # to register, and to be elected
        times = values(broker, latency)
        assert len(times) == 6 and 0 < times[0] <= times[-1] < 60_000
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

        wait_until_all_serve(broker)
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


@pytest.mark.slow
def test_loss_of_brokers_is_seen_in_the_metrics_and_over_when_they_are_back() -> None:
    with Cluster(3, num_io_threads=1) as cluster:
        kept, *lost = cluster.brokers
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        admin.create_topics(
            [
                NewTopic(
                    "t",
                    replica_assignments={0: [0, 1, 2]},
                    topic_configs={"min.insync.replicas": 2},
                ),
                NewTopic("alone", replica_assignments={0: [2]}),
            ]
        )
        admin.close()

        def found() -> dict[str, int]:
            names = ("under_replicated", "under_min_isr", "offline")
            return {name: metric(kept, f"kbroker_{name}_partitions") for name in names}

        def is_so(**wanted: int) -> None:
            def holds() -> bool:
                assert found() == wanted, f"{found()}"
                return True

            wait_until(holds, 60, f"{wanted}")

        for number, _ in enumerate(lost, 1):
            cluster.kill(number)
        wait_until(lambda: metric(kept, "kbroker_active_controller") == 1, 60, "it is elected")
        is_so(under_replicated=1, under_min_isr=1, offline=1)
        wait_until(lambda: metric(kept, "kbroker_cluster_brokers") == 1, 60, "it is alone")
        # "alone" has no leader.
        wait_until(lambda: metric(kept, "kbroker_leader_elections_total") == 1, 60, "one election")
        (stats,) = beans(kept, "kafka.controller:*LeaderElectionRateAndTimeMs")
        assert stats["Count"] >= 1 and 0 < stats["Mean"] < 60_000
        assert values(kept, f"{ELECTIONS}_count") == [stats["Count"]]
        assert len(values(kept, ELECTIONS)) == 6

        cluster.start()
        is_so(under_replicated=0, under_min_isr=0, offline=0)
        # Each process publishes its metrics in its own time.
        wait_until(lambda: metric(kept, "kbroker_cluster_brokers") == 3, 60, "all are known")
        wait_until(lambda: metric(kept, "kbroker_isr_expands_total") >= 1, 60, "the ISR grew")
        for broker in lost:
            wait_until(
                lambda b=broker: metric(b, "kbroker_follower_max_lag") == 0, 60, "it has caught up"
            )
            wait_until(lambda b=broker: lag_of(b, "t-0") == 0, 60, "its lag is told")
            assert values(broker, "kafka_server_fetcherlagmetrics_consumerlag") == [0]
        assert not beans(kept, "kafka.server:type=FetcherLagMetrics*")  # it leads
