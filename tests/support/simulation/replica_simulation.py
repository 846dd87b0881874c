"""Three brokers with logs, for one seed: whatever befalls them, what was acknowledged is kept.

``simulated_replicas`` names what is checked after each step. When the faults end, every replica
comes back in sync, with the records of its leader.
"""

from __future__ import annotations

from collections.abc import Mapping
from unittest.mock import patch

from support.simulation.cluster_simulation import befall, is_settled
from support.simulation.simulated_cluster import Broker, ignore_rejected
from support.simulation.simulated_power import lose_disk, lose_power
from support.simulation.simulated_replicas import ReplicatedCluster

from kbroker.cluster.control_requests import PartitionKey
from kbroker.ipc.calls import CreateTopics, DeleteTopics, TopicToCreate, TopicToDelete
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.metastore.simulated import Faults
from kbroker.workers.io import in_sync

CLIENT = Address(ProcessKind.NETWORK, 0)
STEPS = 6


def simulate(seed: int) -> ReplicatedCluster:
    cluster = ReplicatedCluster(seed, Faults(loss_per_request=0.01))
    with patch.object(in_sync, "now_ms", lambda: cluster.now_ms):
        cluster.run_until(lambda: cluster.term_began() is not None)
        create(cluster, "a")
        for _ in range(STEPS):
            go_on(cluster)
        cluster.faults, cluster.responses_lost = Faults(), 0.0
        cluster.dies_removing = 0.0
        cluster.settle(lambda: is_settled(cluster) and not cluster.unfinished(), 600_000)
    assert cluster.failures() == []
    return cluster


def go_on(cluster: ReplicatedCluster) -> None:
    """Some records and one random event."""
    for _ in range(cluster.random.randint(0, 10)):
        pause(cluster, 300)
        cluster.produce()
    kind = cluster.random.random()
    if kind < 0.4:
        befall(cluster)
    elif kind < 0.47:
        lose_power(cluster, cluster.random.randrange(len(cluster.brokers)))
    elif kind < 0.52:
        number = cluster.random.randrange(len(cluster.brokers))
        lose_disk(cluster, number, older=cluster.random.random() < 0.5)
    elif kind < 0.6:
        create(cluster, cluster.random.choice("abc"))
    elif kind < 0.65:
        delete(cluster, cluster.random.choice("bc"))
    elif kind < 0.85:
        move(cluster, cluster.random.choice("aaaab"))
    pause(cluster, 3_000)


def pause(cluster: ReplicatedCluster, most_ms: int) -> None:
    waited = cluster.sleep(cluster.random.randint(0, most_ms))
    cluster.run_until(lambda: waited.done)


def create(cluster: ReplicatedCluster, name: str) -> None:
    broker = cluster.term_began()
    if broker is not None and broker.topics is not None:
        topics = [TopicToCreate(name, 2, cluster.random.choice((2, 3, 3)))]
        ignore_rejected(broker, broker.topics.create_topics(CLIENT, CreateTopics(topics)))


def delete(cluster: ReplicatedCluster, name: str) -> None:
    broker = cluster.term_began()
    if broker is not None and broker.topics is not None:
        wanted = DeleteTopics([TopicToDelete(name)])
        ignore_rejected(broker, broker.topics.delete_topics(CLIENT, wanted))


def move(cluster: ReplicatedCluster, name: str) -> None:
    """Partitions get other replicas, never fewer than must be in sync; or that is cancelled."""
    broker = cluster.term_began()
    if broker is not None and broker.background is not None:
        cluster.moved.add(name)
        targets: list[list[int] | None] = [None, [0, 1], [1, 2], [2, 0], [2, 1, 0]]
        wanted = {(name, number): cluster.random.choice(targets) for number in range(2)}
        ignore_rejected(broker, alter(broker, wanted))


async def alter(broker: Broker, wanted: Mapping[PartitionKey, list[int] | None]) -> None:
    assert broker.background is not None
    await broker.background.reassigning.alter(wanted)
