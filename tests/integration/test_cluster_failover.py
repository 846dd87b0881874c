"""Brokers whose processes are all killed at once, in sessions that last much longer than anybody
waits here: what happens then, happens before their sessions have ended.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from support.running.grids import some_of
from support.running.pace import hold

from kbroker.metastore.kept_session import FILE_NAME
from kbroker.testing import Cluster, processes, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

TOPIC, PARTITIONS = "led", 6
WITHIN_S = 20
# ZooKeeper's longest, with its default ticks.
SETTINGS = {"zookeeper.session.timeout.ms": 40_000, "auto.leader.rebalance.enable": "false"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, SETTINGS) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        topic = NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])[TOPIC].result(30)
        running.wait_in_sync(TOPIC)
        yield running


@pytest.fixture(scope="module")
def store(cluster: Cluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper_connect)
    client.start()
    yield client
    client.stop()
    client.close()


def epoch_of(store: KazooClient, number: int) -> int | None:
    found = store.exists(f"/brokers/ids/{number}")
    return None if found is None else int(found.czxid)


def write_everywhere(cluster: Cluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    failures = []
    for partition in range(PARTITIONS):
        producer.produce(
            TOPIC, b"x", partition=partition, on_delivery=lambda error, _: failures.append(error)
        )
    assert producer.flush(WITHIN_S) == 0
    assert failures == [None] * PARTITIONS


def is_replaced(cluster: Cluster, victim: int) -> bool:
    found = cluster.partitions(TOPIC).values()
    assert all(state.leader not in (victim, -1) for state in found), found
    assert all(victim not in state.in_sync for state in found), found
    return True


@pytest.mark.parametrize("role", some_of(["broker", "controller"], ["controller"]))
def test_broker_is_replaced_and_comes_back_while_its_session_lasts(
    cluster: Cluster, store: KazooClient, role: str
) -> None:
    controller = cluster.controller
    victim = controller if role == "controller" else (controller + 1) % 3
    epoch = epoch_of(store, victim)
    kept = cluster.brokers[victim].data_dir / FILE_NAME
    assert kept.stat().st_mode & 0o777 == 0o600

    cluster.kill_at_once(victim)

    wait_until(lambda: is_replaced(cluster, victim), WITHIN_S, "others lead")
    write_everywhere(cluster)
    assert epoch_of(store, victim) == epoch, "its session has not ended"
    lines = "".join(one.log_text for one in cluster.brokers)
    assert f"broker {victim} is gone (its connections ended" in lines

    cluster.brokers[victim].start()

    wait_until(lambda: epoch_of(store, victim) not in (epoch, None), WITHIN_S, "it registers")
    cluster.wait_ready(WITHIN_S)
    cluster.wait_in_sync(TOPIC)
    assert "of the last run, which was killed" in cluster.brokers[victim].log_text


def test_broker_that_stands_still_is_waited_for(cluster: Cluster, store: KazooClient) -> None:
    victim = (cluster.controller + 1) % 3
    broker = cluster.brokers[victim]
    epoch, lines = epoch_of(store, victim), [len(one.log_text) for one in cluster.brokers]
    before = cluster.partitions(TOPIC)
    pids = [broker.pid, *processes.child_pids(broker.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    hold(4.0)
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)
    cluster.wait_ready(WITHIN_S)
    cluster.wait_in_sync(TOPIC)
    assert epoch_of(store, victim) == epoch
    after = cluster.partitions(TOPIC)
    assert [one.leader for one in after.values()] == [one.leader for one in before.values()]
    said = "".join(one.log_text[size:] for one, size in zip(cluster.brokers, lines, strict=True))
    assert "is gone" not in said
