"""kbroker.testing.Cluster with real brokers: what a user's test suite relies on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic
from support.brokers.zookeeper import skip_without_zookeeper
from support.clients.wire_client import WireClient
from support.running.grids import some_of

from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.testing import Cluster, ProcessEnded, processes, wait_until
from kbroker.testing.metadata import membership
from kbroker.testing.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
STARTERS = {
    "server": """
import time
from kbroker.testing import zookeeper
print(zookeeper.shared()._process.pid, flush=True)
time.sleep(600)
""",
    "cluster": """
import time
from kbroker.testing import Cluster, zookeeper
with Cluster(1) as cluster:
    print(zookeeper.shared()._process.pid, cluster.brokers[0].pid, flush=True)
    time.sleep(600)
""",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    skip_without_zookeeper()
    with Cluster(3, cuttable=True, each={1: {"num.io.threads": 1}}) as started:
        yield started


@pytest.mark.kbroker_cluster_config(brokers=2, num_io_threads=1, num_network_threads=1)
def test_fixture_gives_a_cluster_that_takes_records(
    request: pytest.FixtureRequest,
) -> None:
    skip_without_zookeeper()
    cluster = request.getfixturevalue("kbroker_cluster")
    assert len(cluster.brokers) == 2
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    admin.create_topics([NewTopic("t", 2, 1)])
    admin.close()
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
    for partition in (0, 1):
        producer.send("t", b"x", partition=partition).get(30)
    producer.close()
    consumer = KafkaConsumer(
        "t", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", group_id="g"
    )
    seen = []
    wait_until(lambda: seen.extend(consumer.poll(timeout_ms=500)) or len(seen) == 2, 30)
    consumer.close()


def test_settings_are_the_clusters_or_a_brokers_own(cluster: Cluster) -> None:
    io_workers = [sum(title.startswith("io-") for title in one.pids) for one in cluster.brokers]

    assert io_workers == [2, 1, 2]


def test_killed_broker_is_missed_and_comes_back_on_its_port(cluster: Cluster) -> None:
    killed = (cluster.controller + 1) % 3
    before = cluster.bootstrap

    cluster.kill(killed)

    cluster.wait_ready()
    rest = cluster.controller
    assert membership(address_of(cluster, rest)).brokers == {0, 1, 2} - {killed}
    cluster.restart(killed)
    assert membership(address_of(cluster, rest)).brokers == {0, 1, 2}
    assert cluster.bootstrap == before


@pytest.mark.slow
def test_controller_that_is_cut_from_zookeeper_is_replaced_until_healed(cluster: Cluster) -> None:
    first = cluster.controller
    others = [address_of(cluster, number) for number in range(3) if number != first]

    cluster.cut(first, from_="zookeeper")

    def replaced() -> bool:
        said = [membership(one) for one in others]
        return all(one.controller != first and first not in one.brokers for one in said)

    wait_until(replaced, 60, "others have noticed")
    cluster.heal(first)
    cluster.wait_ready()
    assert cluster.controller != first


def test_broker_that_is_cut_off_learns_of_topics_when_healed(cluster: Cluster) -> None:
    controller = cluster.controller
    alone = (controller + 1) % 3
    cluster.cut(alone, from_=[controller])
    admin = KafkaAdminClient(bootstrap_servers=cluster.brokers[controller].bootstrap)
    admin.create_topics([NewTopic("behind-a-cut", 1, 1)])
    admin.close()

    other = 3 - controller - alone
    topic = "behind-a-cut"
    wait_until(lambda: is_known(cluster, other, topic), 30, "the broker that is not cut off knows")
    assert not is_known(cluster, alone, topic)
    cluster.heal()
    wait_until(lambda: is_known(cluster, alone, topic), 30, "it is told")


def test_one_way_cut_lets_the_other_direction_pass(cluster: Cluster) -> None:
    """A broker that reaches the controller, and is not reached by it, learns of nothing; it stays
    registered, as ZooKeeper hears both.
    """
    controller = cluster.controller
    deaf = (controller + 1) % 3
    cluster.cut(controller, to=deaf)
    admin = KafkaAdminClient(bootstrap_servers=cluster.brokers[controller].bootstrap)
    admin.create_topics([NewTopic("one-way", 1, 1)])
    admin.close()

    other = 3 - controller - deaf
    wait_until(lambda: is_known(cluster, other, "one-way"), 30, "the third broker knows it")
    assert not is_known(cluster, deaf, "one-way")
    assert membership(address_of(cluster, controller)).brokers == {0, 1, 2}
    cluster.heal(deaf)
    wait_until(lambda: is_known(cluster, deaf, "one-way"), 30, "it is told")


@pytest.mark.slow
def test_session_of_a_broker_ends_that_does_not_hear_zookeeper(cluster: Cluster) -> None:
    """Or that ZooKeeper does not hear, which other tests of cuts show."""
    first = cluster.controller
    others = [address_of(cluster, number) for number in range(3) if number != first]
    cluster.cut("zookeeper", to=first)

    wait_until(lambda: all(first not in membership(one).brokers for one in others), 60, "it ends")

    cluster.heal()
    cluster.wait_ready()
    assert cluster.controller != first


def address_of(cluster: Cluster, broker: int) -> str:
    return cluster.bootstrap.split(",")[broker]


def is_known(cluster: Cluster, broker: int, topic: str) -> bool:
    """What this broker says; clients ask any."""
    host, port = address_of(cluster, broker).split(":")
    with WireClient((host, int(port))) as client:
        said = client.call(MetadataRequest(topics=None), 8)
    return topic in [known.name for known in said.topics]


def test_cut_needs_proxies_and_brokers_that_exist(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be cut from '3'"):
        cluster.cut(0, from_=3)
    with pytest.raises(ValueError, match="cannot be cut from '0'"):
        cluster.cut(0, from_=0)
    with pytest.raises(ValueError, match="cannot be cut from 'zookeeper'"):
        cluster.cut("zookeeper", to="zookeeper")
    with pytest.raises(ValueError, match="no broker '3'"):
        cluster.cut(3, to=0)
    with pytest.raises(ValueError, match="either from_ others"):
        cluster.cut(0, 1, to=2)
    plain = Cluster(1, directory=tmp_path)
    with pytest.raises(ValueError, match="cuttable=True"):
        plain.cut(0, from_="zookeeper")
    plain.close()


def test_encrypted_cluster_has_no_proxies() -> None:
    """They read who sends what: a cut would never take effect."""
    with pytest.raises(ValueError, match="cuttable cluster read what brokers send"):
        Cluster(cuttable=True, between="SASL_SSL")


def test_zookeeper_that_ends_at_start_is_not_waited_for(tmp_path: Path) -> None:
    skip_without_zookeeper()
    with pytest.raises(ProcessEnded, match="ZooKeeper ended"):
        ZooKeeperServer(tmp_path, {"clientPort": "none"}).start()


@pytest.mark.parametrize("what", some_of(STARTERS, ["server"]))
def test_nothing_outlives_a_killed_process_that_had_started_a_cluster(
    tmp_path: Path, what: str
) -> None:
    """Or the ZooKeeper of one; tests of brokers' templates show it of a broker alone."""
    skip_without_zookeeper()
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTERS[what]],
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
    )
    assert starter.stdout is not None
    pids = [int(word) for word in starter.stdout.readline().split()]
    assert pids and all(map(processes.exists, pids))

    starter.send_signal(signal.SIGKILL)
    starter.communicate()

    wait_until(lambda: not any(map(processes.exists, pids)), 30, "they end")
