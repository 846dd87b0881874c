"""Three brokers with controller and hosting on one store, with seeds (``cluster_simulation``).

KBROKER_SIMULATION_SEEDS says how many; CI runs 200 (.ci/run), and ``tools/exam.py simulation
--seeds`` as many as one likes.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest
from support.running.seeds import in_chunks
from support.simulation.cluster_simulation import CLIENT, NAMES, is_settled, leave, stored
from support.simulation.replica_simulation import alter
from support.simulation.seed_runs import cheaply, repeat_command, run_cluster
from support.simulation.simulated_cluster import Broker, SimulatedCluster, ignore_rejected

from kbroker.cluster.control_requests import PartitionKey
from kbroker.ipc.calls import CreatePartitions, CreateTopics, TopicToCreate, TopicToEnlarge
from kbroker.metastore.simulated import Faults

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("seeds", in_chunks("KBROKER_SIMULATION_SEEDS", 100), ids=str)
def test_brokers_agree_whatever_befalls_them(seeds: range) -> None:
    leaders = 0
    with cheaply():
        for seed in seeds:
            print(repeat_command("cluster", seed))
            leaders += run_cluster(seed)
    assert leaders > len(seeds), "nothing happened"


def test_broker_that_shuts_down_stops_even_if_its_controller_process_was_restarted() -> None:
    """Of the simulation: a broker that was told to follow nobody would otherwise stay so."""
    cluster, candidacy = with_topics()
    with patch.object(cluster.random, "choice", lambda _: cluster.brokers[candidacy.number - 1]):
        ignore_rejected(candidacy, leave(cluster, candidacy))
    number = (candidacy.number - 1) % len(cluster.brokers)
    leaving = cluster.brokers[number]
    cluster.restart_process(number)
    assert cluster.brokers[number].slots is leaving.slots
    cluster.settle(lambda: cluster.brokers[number].slots is not leaving.slots, within_ms=10_000)
    cluster.settle(lambda: is_settled(cluster), within_ms=60_000)
    assert cluster.failures() == []


def test_replica_is_set_aside_if_its_controller_dies_before_its_broker_hears_of_the_removal() -> (
    None
):
    """Of the simulation: without that, its broker would have it until the end."""
    cluster, candidacy = with_topics()
    key, removed = (NAMES[0], 0), (candidacy.number + 1) % 3
    replicas = [number for number in range(3) if number != removed]
    cluster.dies_removing = 1.0
    ignore_rejected(candidacy, alter(candidacy, {key: replicas}))
    cluster.run_until(lambda: cluster.brokers[candidacy.number] is not candidacy)
    cluster.dies_removing = 0.0
    assert cluster.brokers[removed].hosting.replicas.replica(key) is not None

    cluster.settle(lambda: is_settled(cluster), within_ms=120_000)

    assert cluster.brokers[removed].hosting.replicas.replica(key) is None
    assert (cluster.removals, cluster.set_aside) == (1, 1)
    assert cluster.failures() == []


def test_image_without_replicas_is_all_that_the_next_process_has_to_know() -> None:
    """Of the simulation: without a journal, a controller process that is elected publishes one."""
    cluster, candidacy = with_topics()
    number = candidacy.number
    candidacy.file.remove()
    cluster.restart_process(number)
    cluster.run_until(lambda: cluster.brokers[number].is_told)
    assert not list(cluster.brokers[number].hosting.replicas)
    cluster.restart_process(number)
    cluster.settle(lambda: is_settled(cluster), within_ms=60_000)
    assert list(cluster.brokers[number].hosting.replicas)
    assert cluster.failures() == []


def with_topics() -> tuple[SimulatedCluster, Broker]:
    """A cluster in which nothing is lost, with topics that all brokers have; and its controller."""
    cluster = SimulatedCluster(1, Faults(), responses_lost=0.0)
    cluster.run_until(lambda: cluster.term_began() is not None)
    candidacy = cluster.term_began()
    assert candidacy is not None and candidacy.topics is not None
    topics = CreateTopics([TopicToCreate(name, 3, 3) for name in NAMES])
    ignore_rejected(candidacy, candidacy.topics.create_topics(CLIENT, topics))
    cluster.run_until(lambda: is_settled(cluster) and bool(stored(cluster)))
    return cluster, candidacy


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 20), marks=pytest.mark.slow)])
def test_restarted_controller_process_costs_no_election(seeds: range) -> None:
    """It goes on with its session, its registration and what it was told, whatever is under way."""
    for seed in seeds:
        cluster = SimulatedCluster(seed, Faults(), responses_lost=0.0)
        cluster.run_until(lambda cluster=cluster: cluster.term_began() is not None)
        candidacy = cluster.term_began()
        assert candidacy is not None and candidacy.topics is not None
        topics = CreateTopics([TopicToCreate(name, 3, 2) for name in NAMES])
        ignore_rejected(candidacy, candidacy.topics.create_topics(CLIENT, topics))
        cluster.run_until(lambda cluster=cluster: is_settled(cluster) and bool(stored(cluster)))
        before = states(cluster)
        for number in range(3):
            if number != candidacy.number:
                more = CreatePartitions([TopicToEnlarge(NAMES[number], 5)])
                ignore_rejected(candidacy, candidacy.topics.create_partitions(CLIENT, more))
                waited = cluster.sleep(cluster.random.randint(0, 60))
                cluster.run_until(lambda waited=waited: waited.done)
                cluster.restart_process(number)
        cluster.run_until(lambda cluster=cluster: is_settled(cluster) and enlarged(cluster) == 2)

        after = states(cluster)
        assert {key: after[key] for key in before} == before
        assert all(epoch == 0 for _, epoch, _ in after.values())
        assert cluster.failures() == []


def states(cluster: SimulatedCluster) -> dict[PartitionKey, tuple[int, int, int]]:
    """Leader, leader epoch and partition epoch of each."""
    return {
        (name, number): (one.leader, one.leader_epoch, one.partition_epoch)
        for name, topic in stored(cluster).items()
        for number, one in enumerate(topic.partitions())
    }


def enlarged(cluster: SimulatedCluster) -> int:
    return sum(len(list(topic.partitions())) == 5 for topic in stored(cluster).values())
