"""Three brokers under load with acks=all and two in sync: kills, stops and cuts lose nothing.

Each test does one kind of harm, over and over, and then checks the history: nothing acknowledged is
lost, nothing of an idempotent writer comes twice, readers go forwards only, and the replicas end
with the same bytes. While a majority is there, clients make progress.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from fault.cluster_load import (
    ClusterLoad,
    assert_replicas_agree,
    create_replicated,
    read_leaders,
)
from fault.history import History
from fault.load import TOPIC
from support.pace import hold

from kbroker.testing import Cluster, wait_until
from kbroker.testing.zookeeper import shared

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

PARTITIONS = 6
BROKERS = 3
PROGRESS_OPERATIONS = 100
# A broker is replaced after its session, and its followers leave the ISR after the lag.
SETTINGS = {"zookeeper.session.timeout.ms": 6000, "replica.lag.time.max.ms": 3000}
GOES_ON_S = 30.0

Harm = Callable[[Cluster, random.Random], None]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")  # its logs are wanted after a failure
    with Cluster(BROKERS, SETTINGS, cuttable=True, directory=directory) as running:
        yield running


def mend(cluster: Cluster) -> None:
    """All brokers run, reach each other, and have all replicas in sync."""
    cluster.heal()
    cluster.start()
    cluster.wait_in_sync(TOPIC, BROKERS)


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
ALWAYS = ("controller", "tree")


@pytest.mark.parametrize(
    "name", [n if n in ALWAYS else pytest.param(n, marks=pytest.mark.slow) for n in HARM]
)
def test_nothing_acknowledged_is_lost(name: str, cluster: Cluster, seed: int, scale: int) -> None:
    harm, times = HARM[name]
    chance, history = random.Random(seed), History()
    cluster.heal()
    cluster.start()
    create_replicated(cluster, PARTITIONS)
    done: list[int] = []
    with ClusterLoad(cluster, history, PARTITIONS, seed).begin():
        wait_until(lambda: all(one.acked for one in history.writers.values()), 30, "all write")
        for _ in range(times * scale):
            began = time.monotonic()
            harm(cluster, chance)
            done.append(history.operations(began, time.monotonic()))
            goes_on(history)
        mend(cluster)
        goes_on(history)
    problems = history.check(read_leaders(cluster))
    leaders = {number: one.leader for number, one in cluster.partitions(TOPIC).items()}
    assert not problems, f"{len(problems)} problems ({leaders}): " + "\n".join(problems[:10])
    assert_replicas_agree(cluster, PARTITIONS)
    assert max(done) >= PROGRESS_OPERATIONS, f"{done} operations while there was harm"


def goes_on(history: History) -> None:
    """Every writer gets an acknowledgement of every partition from now on."""
    before = time.monotonic()

    def all_write() -> bool:
        late = {
            (writer.name, partition)
            for writer in history.writers.values()
            for partition in range(PARTITIONS)
            if not any(at > before for at, where, *_ in writer.acked[-200:] if where == partition)
        }
        assert not late, f"no acknowledgement of {sorted(late)}"
        return True

    wait_until(all_write, GOES_ON_S, "every writer goes on in every partition")
