"""All processes of a broker stand still for less than a session, again and again: nobody takes it
for dead.

KBROKER_FAULT_SCALE: a dozen stalls for each.
"""

from __future__ import annotations

import os
import random
import signal
import time
from urllib.request import urlopen

import pytest
from fault.cluster_exam import PARTITIONS, goes_on
from fault.cluster_load import ClusterLoad, create_replicated, read_leaders
from support.faults.history import History
from support.faults.load import TOPIC
from support.running.pace import hold

from kbroker.testing import Broker, Cluster, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(0)]

STALL_S, APART_S = 4.0, 4.0
STALLS = 12
SESSION_MS = 18_000
GONE = ("kbroker_failover_removals_total", "kbroker_failover_depositions_total")


def stall(broker: Broker) -> None:
    pids = [broker.pid, *broker.pids.values()]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            os.kill(pid, number)
        hold(STALL_S if number == signal.SIGSTOP else 0.0)


def counted_as_gone(cluster: Cluster) -> float:
    """How many brokers and controllers were removed early."""
    total = 0.0
    for broker in cluster.brokers:
        with urlopen(f"{broker.metrics_url}/metrics", timeout=60) as response:
            lines = response.read().decode().splitlines()
        total += sum(float(line.split()[-1]) for line in lines if line.startswith(GONE))
    return total


def leaders(cluster: Cluster) -> dict[int, int]:
    return {number: state.leader for number, state in cluster.partitions(TOPIC).items()}


def test_brokers_that_stand_still_are_not_removed(seed: int, scale: int) -> None:
    chance, history = random.Random(seed), History()
    loads = []
    with Cluster(3, {"zookeeper.session.timeout.ms": SESSION_MS}) as cluster:
        create_replicated(cluster, PARTITIONS)
        before = leaders(cluster)
        with ClusterLoad(cluster, history, PARTITIONS, seed).begin():
            wait_until(lambda: all(one.acked for one in history.writers.values()), 60, "all write")
            began = time.monotonic()
            for _ in range(STALLS * scale):
                stall(chance.choice(cluster.brokers))
                hold(APART_S)
                loads.append(os.getloadavg()[0])
                assert leaders(cluster) == before
            goes_on(history)
        took = time.monotonic() - began
        acked = sum(len(writer.acked) for writer in history.writers.values())
        print(f"{len(loads)} stalls in {took:.0f} s, load {min(loads):.0f} to {max(loads):.0f}, "
              f"{acked} acknowledged")  # fmt: skip
        assert counted_as_gone(cluster) == 0
        assert history.check(read_leaders(cluster)) == []
