"""Cuts between machines: brokers and ZooKeeper in network namespaces that drop packets.

Unlike behind proxies, TCP itself is cut: what is lost is repeated by its rules, connections do not
come about, and one that a side has given up is reset once the packets arrive again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path

import pytest
from fault.cluster_cuts import CUTS, examine_cut
from fault.cluster_exam import BROKERS, SETTINGS, Harm, examine
from fault.cluster_load import create_replicated
from fault.namespaces import Network
from support.brokers.zookeeper import skip_without_zookeeper
from support.faults.history import History
from support.faults.load import TOPIC
from support.running.pace import hold

from kbroker.testing import Broker, Cluster
from kbroker.testing.broker import COMMAND
from kbroker.testing.cluster import ZOOKEEPER, Others
from kbroker.testing.zookeeper import ZooKeeperServer

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(300)]

PORT = 9092  # on machines of their own


class ClusterOfMachines(Cluster):
    """A broker on each machine; ``cut`` drops packets."""

    def __init__(
        self, network: Network, zookeeper: ZooKeeperServer, directory: Path, brokers: int
    ) -> None:
        self._network = network
        connect = f"{zookeeper.connect}/machines"
        super().__init__(brokers, SETTINGS, zookeeper_connect=connect, directory=directory)

    def _addresses(self, number: int) -> dict[str, object]:
        address = self._network.addresses[str(number)]
        listeners = f"PLAINTEXT://{address}:{PORT}"
        return {"listeners": listeners, "zookeeper.connect": self.zookeeper_connect}

    def _create(self, number: int, settings: Mapping[str, object]) -> Broker:
        command = [*self._network.within(str(number)), *COMMAND]
        return Broker(settings, directory=self.directory / f"broker-{number}", command=command)

    def cut(
        self, broker: int | str, from_: Others | None = None, *, to: Others | None = None
    ) -> None:
        for other in self._others(str(broker), from_ if to is None else to):
            self._network.drop(str(broker), other)
            if to is None:
                self._network.drop(other, str(broker))

    def reject(self, broker: int, other: int) -> None:
        """What the first sends to the other is refused there."""
        self._network.reject(str(broker), str(other))

    def heal(self, broker: int | None = None) -> None:
        self._network.heal(None if broker is None else str(broker))


@contextmanager
def machines(directory: Path, brokers: int) -> Iterator[ClusterOfMachines]:
    """A cluster of so many brokers. directory: its logs are wanted after a failure."""
    skip_without_zookeeper()
    network = Network([*map(str, range(brokers)), ZOOKEEPER])
    try:
        zookeeper = ZooKeeperServer(
            directory / ZOOKEEPER,
            host=network.addresses[ZOOKEEPER],
            within=network.within(ZOOKEEPER),
        )
        with zookeeper, ClusterOfMachines(network, zookeeper, directory, brokers) as running:
            yield running
    finally:
        network.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfMachines]:
    with machines(tmp_path_factory.mktemp("machines"), BROKERS) as running:
        yield running


@pytest.mark.parametrize("name", CUTS)
def test_every_partition_is_written_to_while_packets_of_one_direction_are_dropped(
    name: str, cluster: Cluster, seed: int, scale: int
) -> None:
    examine_cut(cluster, name, scale, seed)


def cut_one_off(cluster: Cluster, chance: random.Random) -> None:
    """Clients still reach it."""
    alone = chance.randrange(BROKERS)
    cluster.cut(alone, from_=[*(n for n in range(BROKERS) if n != alone), ZOOKEEPER])
    hold(9.0)
    cluster.heal()


def cut_from_zookeeper(cluster: Cluster, chance: random.Random) -> None:
    cluster.cut(chance.randrange(BROKERS), from_=ZOOKEEPER)
    hold(9.0)
    cluster.heal()


@pytest.mark.parametrize("harm", [cut_one_off, cut_from_zookeeper])
def test_nothing_acknowledged_is_lost_when_packets_of_both_directions_are_dropped(
    harm: Harm, cluster: Cluster, seed: int, scale: int
) -> None:
    examine(cluster, harm, scale, seed, History())


def disturb(cluster: ClusterOfMachines, one: int, two: int, verdict: str, ways: str) -> list[str]:
    """Stop what the first sends to the second for 4 s, or what either sends to the other; what each
    broker said meanwhile. Asserts that everything is as before.
    """
    controller, before = cluster.controller, cluster.partitions(TOPIC)
    sizes = [len(broker.log_text) for broker in cluster.brokers]
    for sender, receiver in [(one, two), (two, one)][: 1 if ways == "one way" else 2]:
        if verdict == "refuses":
            cluster.reject(sender, receiver)
        else:
            cluster.cut(sender, to=receiver)
    # What is idle would not notice the firewall.
    for number in range(len([name for name in cluster.brokers[two].pids if "network" in name])):
        cluster.brokers[two].kill("network", number)
    hold(4.0)
    after = cluster.partitions(TOPIC)
    said = [b.log_text[size:] for b, size in zip(cluster.brokers, sizes, strict=True)]
    cluster.heal()
    assert {n: p.leader for n, p in after.items()} == {n: p.leader for n, p in before.items()}
    assert cluster.controller == controller
    assert not any("removing it before its session" in text for text in said)
    assert not any("have another elected" in text for text in said)
    cluster.wait_in_sync(TOPIC)
    return said


@pytest.mark.parametrize("ways", ["one way", "both ways"])
@pytest.mark.parametrize("refuses", ["the controller", "another broker"])
def test_no_leader_moves_while_a_firewall_refuses_between_two(
    ways: str, refuses: str, cluster: ClusterOfMachines
) -> None:
    """Connections end and new ones are refused, as if one of them had been killed; the third broker
    still hears from it.
    """
    create_replicated(cluster, 6)
    controller = cluster.controller
    other = (controller + 1) % BROKERS
    one, two = (other, controller) if refuses == "the controller" else (controller, other)
    said = disturb(cluster, one, two, "refuses", ways)
    if ways == "one way":  # otherwise not even the end of the connection arrives
        assert "still hears from it: its session decides" in said[one]


def test_no_leader_moves_while_packets_between_any_two_of_four_are_stopped(
    tmp_path: Path, seed: int, scale: int
) -> None:
    """Refused and dropped, in one direction and in both. Each pair of brokers, in each order; for a
    commit two of them.
    """
    chance = random.Random(seed)
    pairs = list(permutations(range(4), 2))
    chosen = chance.sample(pairs, 2) if scale == 1 else pairs
    with machines(tmp_path, 4) as four:
        create_replicated(four, 8)
        for verdict in ("refuses", "drops"):
            for ways in ("one way", "both ways"):
                for one, two in chosen:
                    disturb(four, one, two, verdict, ways)
