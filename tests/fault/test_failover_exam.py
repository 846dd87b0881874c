"""How long each kind of client pauses when brokers are killed at once, by what the broker was.

The times are measured and shown, with the conditions and the machine's load; asserted is that
nothing that was acknowledged or committed is lost or doubled. Brokers 0 and 1 lead the topics,
broker 2 only follows. KBROKER_FAULT_SCALE: half as many kills of each kind; or

    PYTHONPATH=tests python tests/fault/test_failover_exam.py 10 --clients confluent,own,java

With ``--brokers`` they are those of Apache Kafka, of that release, with its default sessions.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from fault.failover_clients import CLIENTS, COMMITTED, IN_TRANSACTIONS, PARTITIONS, TOPIC
from fault.failover_load import FailoverLoad, doubled
from support.brokers.kafka_clusters import RELEASES, KafkaCluster
from support.drivers.java import java_missing
from support.running.pace import hold

from kbroker.testing import Cluster, wait_until
from kbroker.testing.zookeeper import ZooKeeperServer

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(0)]

FOLLOWER, LEADERS = 2, (0, 1)
KINDS = ("follower", "leader", "controller", "leading controller", "two in turn")
KBROKER = "kbroker"
SESSION_MS = 18_000  # the default of a broker that may have Kafka's beside it
LONG = {"maxSessionTimeout": "60000"}  # more than that of ZooKeepers that tests share
NEXT_S = 2.0  # how long after the first of two the second one is killed


class Away(NamedTuple):
    """For how many seconds one victim stays away, and two: longer than a session where only its
    end tells others, and where a broker does not start while its old one lasts.
    """

    one_s: float
    two_s: float


AWAY = {KBROKER: Away(8.0, 1.0), "2.7.2": Away(30.0, 30.0), "3.9.1": Away(20.0, 20.0)}
# The conditions, in seconds.
CONDITIONS = {
    "produce, led elsewhere": 1.0,
    "produce, led by it": 2.0,
    "consume, led elsewhere": 1.0,
    "consume, led by it": 2.0,
    "commit": 3.0,
    "transaction": 3.0,
    "back in sync": 2.0,
}

AnyCluster = Cluster | KafkaCluster


def create(cluster: AnyCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    config = {"min.insync.replicas": "2"}
    names = {TOPIC: PARTITIONS, COMMITTED: 1, IN_TRANSACTIONS: PARTITIONS}
    orders = [[*LEADERS, FOLLOWER], [*reversed(LEADERS), FOLLOWER]]
    new = [
        NewTopic(
            name,
            count,
            replica_assignment=[orders[number % 2] for number in range(count)],
            config=config,
        )
        for name, count in names.items()
    ]
    for future in admin.create_topics(new).values():
        future.result(30)
    for name in names:
        cluster.wait_in_sync(name)


def prefer(cluster: AnyCluster) -> None:
    """Have every broker lead its part again, also one that was killed before."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.elect_leaders(ElectionType.PREFERRED).result(30)

    def is_spread() -> bool:
        found = cluster.partitions(TOPIC).values()
        return all(state.leader == state.replicas[0] for state in found)

    wait_until(is_spread, 30, "the preferred replicas lead")


def possible(controller: int) -> dict[str, list[int]]:
    """The victims of each kind that there can be now."""
    is_led_by_controller = controller in LEADERS
    return {
        "follower": [FOLLOWER] if is_led_by_controller else [],
        "leader": [number for number in LEADERS if number != controller],
        "controller": [] if is_led_by_controller else [FOLLOWER],
        "leading controller": [controller] if is_led_by_controller else [],
        "two in turn": list(range(3)),
    }


def next_kind(left: dict[str, int], controller: int) -> str:
    """What is to be killed next: a kind that is left or, to have another controller, this one."""
    victims = possible(controller)
    wanted = [kind for kind in left if left[kind] > 0 and victims[kind]]
    if wanted:
        return max(wanted, key=lambda kind: left[kind])
    return "leading controller" if victims["leading controller"] else "controller"


def kill(
    kind: str, cluster: AnyCluster, load: FailoverLoad, chance: random.Random, away: Away
) -> dict[str, float]:
    """One kill and the return of its victims: the longest pauses, by the conditions' names."""
    found = possible(cluster.controller)[kind]
    victims = chance.sample(found, 2 if kind == "two in turn" else 1)
    leaders = {number: state.leader for number, state in cluster.partitions(TOPIC).items()}
    began = time.monotonic()
    cluster.kill_at_once(victims[0])
    if kind == "two in turn":
        hold(NEXT_S)
        cluster.kill_at_once(victims[1])
        hold(away.two_s)
    else:
        hold(away.one_s)
    until = started = time.monotonic()
    for number in victims:
        cluster.brokers[number].start()
    cluster.wait_ready()
    for topic in (TOPIC, COMMITTED, IN_TRANSACTIONS):
        cluster.wait_in_sync(topic)
    back = time.monotonic()
    if kind == "two in turn":  # nothing can be written before they are back
        until = back
    pauses = {"back in sync": back - started}
    for role, pause in load.successes.longest(began, until).items():
        client, what, where = role.split()
        name = f"{client} {what}"
        if what in ("produce", "consume"):
            name += ", led by it" if leaders[int(where)] in victims else ", led elsewhere"
        pauses[name] = max(pauses.get(name, 0.0), pause)
    hold(1.0)
    return pauses


def read(cluster: AnyCluster, topic: str) -> list[bytes]:
    """All committed values of a topic."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "all", "enable.auto.commit": False,
         "isolation.level": "read_committed", "enable.partition.eof": True, "log_level": 0}
    )  # fmt: skip
    left = set(cluster.partitions(topic))
    consumer.assign([TopicPartition(topic, number, 0) for number in left])
    values = []
    while left:
        message = consumer.poll(60)
        assert message is not None, f"{topic} cannot be read: {left}"
        error = message.error()
        if error is None:
            values.append(bytes(message.value() or b""))
        elif error.code() == KafkaError._PARTITION_EOF:
            left.discard(message.partition())
    consumer.close()
    return values


def table(pauses: dict[str, list[dict[str, float]]]) -> str:
    """The median and the longest of each, in seconds."""
    lines = [f"{'longest pause, s':34}" + "".join(f"{kind:>22}" for kind in pauses)]
    names = sorted({name for some in pauses.values() for one in some for name in one})
    for name in names:
        cells = []
        for some in pauses.values():
            found = sorted(one[name] for one in some if name in one)
            cells.append(f"{found[len(found) // 2]:.2f}, max {found[-1]:.2f}" if found else "-")
        first, _, rest = name.partition(" ")
        limit = CONDITIONS.get(rest if first in CLIENTS else name)
        shown = f"{name} (<= {limit:g})" if limit is not None else name
        lines.append(f"{shown:34}" + "".join(f"{cell:>22}" for cell in cells))
    return "\n".join(lines)


def harm(
    cluster: AnyCluster,
    load: FailoverLoad,
    kills: int,
    chance: random.Random,
    away: Away,
    pauses: dict[str, list[dict[str, float]]],
) -> None:
    """Kill, and note the pauses by kind."""
    for client in load.acked:
        for what in ("produce", "consume", "commit", "transaction"):
            role = f"{client} {what}"
            wait_until(lambda role=role: load.successes.count(role) > 20, 120, role)
    hold(2.0)
    left = dict.fromkeys(KINDS, kills)
    while any(count > 0 for count in left.values()):
        prefer(cluster)
        hold(1.0)
        kind = next_kind(left, cluster.controller)
        busy = os.getloadavg()[0]
        pauses[kind].append(kill(kind, cluster, load, chance, away))
        left[kind] -= 1
        shown = {name: round(pause, 2) for name, pause in sorted(pauses[kind][-1].items())}
        print(f"{kind}, at load {busy:.0f}:", shown, flush=True)


@contextmanager
def three(brokers: str) -> Iterator[AnyCluster]:
    """Three brokers, with the sessions that they have by default beside others of their kind."""
    with tempfile.TemporaryDirectory() as home, ZooKeeperServer(Path(home), LONG) as server:
        place = f"{server.connect}/failover"
        if brokers != KBROKER:
            with KafkaCluster(brokers, place) as cluster:
                yield cluster
            return
        settings: dict[str, Any] = {"zookeeper.session.timeout.ms": SESSION_MS}
        with Cluster(3, settings, zookeeper_connect=place) as cluster:
            yield cluster


def examine(kills: int, seed: int, clients: Sequence[str], brokers: str = KBROKER) -> None:
    """kills: of each kind. brokers: ``KBROKER``, or a release of Apache Kafka."""
    pauses: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with three(brokers) as cluster:
        create(cluster)
        load = FailoverLoad(cluster.bootstrap, clients, cluster.directory)
        try:
            harm(cluster, load, kills, random.Random(seed), AWAY[brokers], pauses)
        finally:
            load.stop()
        print(table(pauses), flush=True)
        assert load.problems == [], load.problems[:5]
        found = read(cluster, TOPIC)
        for name, acked in load.acked.items():
            assert acked, name
            assert set(acked) <= set(found), "records are lost"
        assert doubled(found) == []
        committed = read(cluster, IN_TRANSACTIONS)
        for values in load.committed.values():
            assert set(values) <= set(committed)
        assert doubled(committed) == []


def test_pauses_of_clients_when_brokers_are_killed(seed: int, scale: int) -> None:
    clients = [name for name in CLIENTS if name != "java" or not java_missing()]
    examine(2 * scale, seed, clients)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kills", type=int, help="of each kind")
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--brokers", choices=[KBROKER, *RELEASES], default=KBROKER)
    options = parser.parse_args()
    examine(options.kills, options.seed, options.clients.split(","), options.brokers)
