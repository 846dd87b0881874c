"""One direction between two brokers, or a broker and ZooKeeper, is cut while clients write.

What arrives and gets no response is what both-way cuts never show: a leader that hears fetches and
whose responses are lost, a broker that ZooKeeper hears and that hears nothing of it. A majority is
there all the time, so every partition is written to during the cut, not only after it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from fault.cluster_exam import BROKERS, examine, goes_on
from support.faults.history import History
from support.faults.load import TOPIC
from support.running.pace import hold

from kbroker.testing import Cluster
from kbroker.testing.cluster import ZOOKEEPER

# Longer than a session lasts and a follower may lag, also counted from the last thing heard.
CUT_S = 12.0

Ends = Callable[[Cluster], tuple[int | str, int | str]]


def leader(cluster: Cluster) -> int:
    return cluster.partitions(TOPIC)[0].leader


def follower(cluster: Cluster) -> int:
    """One that is not the controller."""
    taken = (leader(cluster), cluster.controller)
    return next(number for number in range(BROKERS) if number not in taken)


# Sender and receiver of what does not arrive.
CUTS: dict[str, Ends] = {
    "leader-to-follower": lambda c: (leader(c), follower(c)),
    "follower-to-leader": lambda c: (follower(c), leader(c)),
    "controller-to-leader": lambda c: (c.controller, leader(c)),
    "controller-to-follower": lambda c: (c.controller, follower(c)),
    "leader-to-zookeeper": lambda c: (leader(c), ZOOKEEPER),
    "zookeeper-to-leader": lambda c: (ZOOKEEPER, leader(c)),
    "controller-to-zookeeper": lambda c: (c.controller, ZOOKEEPER),
    "zookeeper-to-controller": lambda c: (ZOOKEEPER, c.controller),
}


def examine_cut(cluster: Cluster, name: str, times: int, seed: int) -> None:
    """Raises AssertionError."""
    history = History()

    def cut(cluster: Cluster, _: random.Random) -> None:
        sender, receiver = CUTS[name](cluster)
        print(f"nothing passes from {sender} to {receiver}")
        cluster.cut(sender, to=receiver)
        hold(CUT_S)
        goes_on(history)
        cluster.heal()

    examine(cluster, cut, times, seed, history, led_by=(cluster.controller + 1) % BROKERS)
