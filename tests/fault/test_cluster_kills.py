"""Three brokers under load with acks=all and two in sync: kills, stops and cuts lose nothing."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator

import pytest
from fault.cluster_exam import BROKERS, SETTINGS, Harm, examine
from support.faults.history import History
from support.running.pace import hold

from kbroker.testing import Cluster, wait_until
from kbroker.testing.zookeeper import shared

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")  # its logs are wanted after a failure
    with Cluster(BROKERS, SETTINGS, cuttable=True, directory=directory) as running:
        yield running


def kill_process(kind: str) -> Harm:
    def harm(cluster: Cluster, chance: random.Random) -> None:
        chance.choice(cluster.brokers).kill(kind, 0)
        hold(1.0)

    return harm


def kill_tree(cluster: Cluster, chance: random.Random) -> None:
    number = chance.randrange(BROKERS)
    cluster.kill(number)
    hold(1.0)
    cluster.start()


def kill_supervisor(cluster: Cluster, chance: random.Random) -> None:
    broker = chance.choice(cluster.brokers)
    os.kill(broker.pid, signal.SIGKILL)
    wait_until(lambda: not broker.running, 30, "the broker ends with its supervisor")
    cluster.start()


def stop_in_order(cluster: Cluster, chance: random.Random) -> None:
    cluster.restart(chance.randrange(BROKERS))


def stop_process(cluster: Cluster, chance: random.Random) -> None:
    """An io worker stands still for longer than a follower may lag."""
    broker = chance.choice(cluster.brokers)
    broker.kill("io", 0, signal.SIGSTOP)
    hold(4.0)
    broker.kill("io", 0, signal.SIGCONT)


def cut_one_link(cluster: Cluster, chance: random.Random) -> None:
    """Two brokers do not reach each other; both reach the third and ZooKeeper."""
    one, other = chance.sample(range(BROKERS), 2)
    cluster.cut(one, from_=other)
    hold(5.0)
    cluster.heal()


def cut_from_all(cluster: Cluster, chance: random.Random) -> None:
    """Clients still reach a broker that reaches neither the others nor ZooKeeper."""
    one = chance.randrange(BROKERS)
    cluster.cut(one, from_=[*(set(range(BROKERS)) - {one})])
    cluster.cut(one, from_="zookeeper")
    hold(9.0)
    cluster.heal()


def cut_from_zookeeper(cluster: Cluster, chance: random.Random) -> None:
    cluster.cut(chance.randrange(BROKERS), from_="zookeeper")
    hold(8.0)
    cluster.heal()


def stop_zookeeper(cluster: Cluster, chance: random.Random) -> None:
    """ZooKeeper stands still for longer than a session lasts."""
    server = shared()
    server.hold()
    hold(8.0)
    server.release()


HARM: dict[str, tuple[Harm, int]] = {
    "io-worker": (kill_process("io"), 3),
    "network": (kill_process("network"), 3),
    "controller": (kill_process("controller"), 3),
    "tree": (kill_tree, 2),
    "supervisor": (kill_supervisor, 2),
    "orderly-stop": (stop_in_order, 2),
    "io-worker-stands-still": (stop_process, 1),
    "one-link": (cut_one_link, 1),
    "all-links": (cut_from_all, 1),
    "link-to-zookeeper": (cut_from_zookeeper, 1),
    "zookeeper-stands-still": (stop_zookeeper, 1),
}


# What every run of the tests does; `tools/exam.py cluster` does all.
ALWAYS = ("tree",)


@pytest.mark.parametrize(
    "name", [n if n in ALWAYS else pytest.param(n, marks=pytest.mark.slow) for n in HARM]
)
def test_nothing_acknowledged_is_lost(name: str, cluster: Cluster, seed: int, scale: int) -> None:
    harm, times = HARM[name]
    examine(cluster, harm, times * scale, seed, History())
