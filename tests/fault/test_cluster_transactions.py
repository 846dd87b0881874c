"""Transactions on three brokers whose processes are killed at random.

Promise: a transaction whose commit was acknowledged is read whole from all partitions, once; of one
whose abort was acknowledged nothing is read; and one of which nobody knows is read whole or not at
all.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.faults.transactions import (
    PARTITIONS,
    PATIENCE_S,
    Transactions,
    check,
    read_committed,
    running,
    write_last,
)
from support.running.pace import hold
from support.running.seeds import seeded

from kbroker.testing import Cluster, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(400)]

PRODUCERS = 4
KILLS = 6
SETTINGS = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
}


def kill_one(cluster: Cluster, chance: random.Random) -> None:
    broker = cluster.brokers[chance.randrange(3)]
    what = chance.choice(("tree", "broker", "io", "controller", "network"))
    if what == "tree":
        broker.kill_all()
        hold(chance.uniform(0, 8))
        broker.start()
    elif what == "broker":
        broker.stop()
        broker.start()
    else:
        broker.kill(what, 0)


def test_transactions_are_whole_whatever_is_killed(tmp_path: Path) -> None:
    chance, ending = seeded(), threading.Event()
    seed = chance.getrandbits(32)
    with Cluster(3, SETTINGS, directory=tmp_path) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        (created,) = admin.create_topics([NewTopic("t", PARTITIONS, 3)]).values()
        created.result(PATIENCE_S)
        producers = [
            Transactions(cluster.bootstrap, f"p{number}", seed, ending)
            for number in range(PRODUCERS)
        ]
        with running(producers, ending):
            for _ in range(KILLS):
                hold(chance.uniform(1, 4))
                kill_one(cluster, chance)
            cluster.wait_ready()
            before = [one.count for one in producers]
            wait_until(
                lambda: all(one.count > b for one, b in zip(producers, before, strict=True)),
                PATIENCE_S,
                "all producers go on",
            )
        write_last(cluster.bootstrap, seed, ending)
        check(producers, read_committed(cluster.bootstrap))
    assert sum(len(one.committed) for one in producers) > PRODUCERS
