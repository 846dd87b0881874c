"""One kind of harm to three brokers under load, over and over, and what must hold after it.

With acks=all and two in sync nothing acknowledged is lost, nothing of an idempotent writer comes
twice, readers go forwards only, and the replicas end with the same bytes. While a majority is
there, clients make progress.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from fault.cluster_load import (
    ClusterLoad,
    assert_replicas_agree,
    create_replicated,
    read_leaders,
)
from support.faults.history import History
from support.faults.load import TOPIC

from kbroker.testing import Cluster, wait_until

PARTITIONS = 6
BROKERS = 3
PROGRESS_OPERATIONS = 100
# A broker is replaced after its session, and its followers leave the ISR after the lag.
SETTINGS = {"zookeeper.session.timeout.ms": 6000, "replica.lag.time.max.ms": 3000}
GOES_ON_S = 30.0

Harm = Callable[[Cluster, random.Random], None]


def mend(cluster: Cluster) -> None:
    """All brokers run, reach each other, and have all replicas in sync."""
    cluster.heal()
    cluster.start()
    cluster.wait_in_sync(TOPIC, BROKERS)


def examine(
    cluster: Cluster, harm: Harm, times: int, seed: int, history: History, led_by: int | None = None
) -> None:
    """Raises AssertionError. led_by: the first leader of all partitions; None: each leads some."""
    chance = random.Random(seed)
    cluster.heal()
    cluster.start()
    create_replicated(cluster, PARTITIONS, led_by=led_by)
    done: list[int] = []
    with ClusterLoad(cluster, history, PARTITIONS, seed).begin():
        wait_until(lambda: all(one.acked for one in history.writers.values()), 30, "all write")
        for _ in range(times):
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


def goes_on(history: History, timeout: float = GOES_ON_S) -> None:
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

    wait_until(all_write, timeout, "every writer goes on in every partition")
