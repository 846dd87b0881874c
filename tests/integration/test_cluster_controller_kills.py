"""Controller processes in a cluster die: their brokers go on as if nothing had happened."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from kazoo.client import KazooClient
from support.clients.wire_client import WireClient
from test_rolling_restart import PARTITIONS, TOPIC, loaded

from kbroker.hosting.journal import FILE_NAME
from kbroker.testing import Broker, Cluster, wait_until

pytestmark = pytest.mark.integration


@contextmanager
def nodes(cluster: Cluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper_connect)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def states(store: KazooClient) -> list[dict[str, Any]]:
    paths = (f"/brokers/topics/{TOPIC}/partitions/{n}/state" for n in range(PARTITIONS))
    return [json.loads(store.get(path)[0]) for path in paths]


def broker_epoch(store: KazooClient, number: int) -> int:
    return int(store.exists(f"/brokers/ids/{number}").czxid)


def kill_process(broker: Broker) -> None:
    """Kill the controller process, and wait until the next one has its session."""
    count = broker.log_text.count(": connected, session 0x")
    broker.kill("controller", 0)
    wait_until(lambda: broker.log_text.count(": connected, session 0x") > count, 30)


@pytest.mark.slow
def test_partitions_keep_their_leaders_and_metadata_goes_on_arriving() -> None:
    with loaded("2.7") as (cluster, load), nodes(cluster) as store:
        before = states(store)
        others = [n for n in range(3) if n != cluster.controller]
        epochs = [broker_epoch(store, number) for number in others]
        for number in others:
            count = len(load.acknowledged)
            kill_process(cluster.brokers[number])
            wait_until(lambda count=count: len(load.acknowledged) > count + 50, 60, "it goes on")

        with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin:
            admin.create_topics([NewTopic("later", 6, 3)])
        for number in others:
            wait_until(lambda one=number: knows(cluster.brokers[one]), 30, "it is told the rest")
        assert states(store) == before
        assert [broker_epoch(store, number) for number in others] == epochs
        # An io worker that starts now gets the image from a process that was not told it itself.
        cluster.brokers[others[0]].kill("io", 0)
        cluster.wait_in_sync(TOPIC)
        assert [state["leader_epoch"] for state in states(store)] == [0] * PARTITIONS


def knows(broker: Broker) -> bool:
    host, _, port = broker.config["listeners"].rpartition("/")[2].rpartition(":")
    with WireClient((host, int(port))) as client:
        (topic,) = client.metadata("later").topics
    return sum(partition.leader_id >= 0 for partition in topic.partitions) == 6


@pytest.mark.slow
def test_process_that_lacks_the_journal_is_told_everything() -> None:
    with loaded("2.7") as (cluster, load), nodes(cluster) as store:
        number = next(n for n in range(3) if n != cluster.controller)
        broker, before = cluster.brokers[number], broker_epoch(store, number)
        (journal,) = broker.runtime_dir.glob(f"kbroker-*/{FILE_NAME}")
        journal.unlink()
        kill_process(broker)
        wait_until(lambda: broker_epoch(store, number) > before, 30, "it registers anew")
        cluster.wait_in_sync(TOPIC)
        count = len(load.acknowledged)
        wait_until(lambda: len(load.acknowledged) > count + 20, 60, "it goes on")
