"""How long each kind of client pauses when brokers are killed at once, by what the broker was.

The times are measured and shown, with the conditions; asserted is that nothing that was
acknowledged or committed is lost or doubled. KBROKER_FAULT_SCALE: half as many kills of each kind;
or their number is the last argument of

    python tests/fault/test_failover_exam.py 10
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from fault.failover_load import (
    COMMITTED,
    IN_TRANSACTIONS,
    PARTITIONS,
    TOPIC,
    FailoverLoad,
    doubled,
)
from support.running.pace import hold

from kbroker.testing import Cluster, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(0)]

KINDS = ("broker", "controller", "two")
# How long after a kill its pauses are looked for, and how long its victims stay away.
AWAY_S = 8.0
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


def create(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    config = {"min.insync.replicas": "2"}
    names = {TOPIC: PARTITIONS, COMMITTED: 1, IN_TRANSACTIONS: PARTITIONS}
    new = [NewTopic(name, count, 3, config=config) for name, count in names.items()]
    for future in admin.create_topics(new).values():
        future.result(30)
    for name in names:
        cluster.wait_in_sync(name)


def prefer(cluster: Cluster) -> None:
    """Have every broker lead its part again, also one that was killed before."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.elect_leaders(ElectionType.PREFERRED).result(30)

    def is_spread() -> bool:
        found = cluster.partitions(TOPIC).values()
        return all(state.leader == state.replicas[0] for state in found)

    wait_until(is_spread, 30, "the preferred replicas lead")


def victims_of(kind: str, cluster: Cluster, chance: random.Random) -> list[int]:
    controller = cluster.controller
    others = [number for number in range(3) if number != controller]
    if kind == "controller":
        return [controller]
    return [chance.choice(others)] if kind == "broker" else chance.sample(range(3), 2)


def kill(
    kind: str, cluster: Cluster, load: FailoverLoad, chance: random.Random
) -> dict[str, float]:
    """One kill and the return of its victims: the longest pauses, by the conditions' names."""
    victims = victims_of(kind, cluster, chance)
    leaders = {number: state.leader for number, state in cluster.partitions(TOPIC).items()}
    began = time.monotonic()
    cluster.kill_at_once(*victims)
    # With two of three gone, nothing can be written before they are back.
    hold(AWAY_S if kind != "two" else 1.0)
    until = started = time.monotonic()
    for number in victims:
        cluster.brokers[number].start()
    cluster.wait_ready()
    for topic in (TOPIC, COMMITTED, IN_TRANSACTIONS):
        cluster.wait_in_sync(topic)
    back = time.monotonic()
    if kind == "two":
        until = back
    pauses = {"back in sync": back - started}
    for what, pause in load.successes.longest(began, until).items():
        words = what.split()
        name = what
        if "group" in words:
            continue
        if words[0] in ("confluent", "own", "consume"):
            where = "led by it" if leaders[int(words[-1])] in victims else "led elsewhere"
            name = f"{' '.join(words[:-1])}, {where}"
        pauses[name] = max(pauses.get(name, 0.0), pause)
    hold(1.0)
    return pauses


def read(cluster: Cluster, topic: str) -> list[bytes]:
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
        key = name.replace("confluent ", "").replace("own ", "")
        limit = CONDITIONS.get(key)
        shown = f"{name} (<= {limit:g})" if limit is not None else name
        lines.append(f"{shown:34}" + "".join(f"{cell:>22}" for cell in cells))
    return "\n".join(lines)


def examine(kills: int, seed: int, kinds: Sequence[str] = KINDS) -> None:
    chance = random.Random(seed)
    pauses: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    settings: dict[str, Any] = {"zookeeper.session.timeout.ms": 18_000}
    with Cluster(3, settings) as cluster:
        create(cluster)
        load = FailoverLoad(cluster.bootstrap)
        wait_until(lambda: len(load.committed) > 20, 60, "transactions are committed")
        hold(2.0)
        for number in range(kills * len(kinds)):
            prefer(cluster)
            hold(1.0)
            kind = kinds[number % len(kinds)]
            pauses[kind].append(kill(kind, cluster, load, chance))
            print(f"{number + 1} {kind}:", pauses[kind][-1], flush=True)
        load.stop()
        print(table(pauses), flush=True)
        assert load.problems == [], load.problems[:5]
        found = read(cluster, TOPIC)
        for name, acked in load.acked.items():
            assert acked, name
            assert set(acked) <= set(found), "records are lost"
        assert doubled(found) == []
        committed = read(cluster, IN_TRANSACTIONS)
        assert set(load.committed) <= set(committed)
        assert doubled(committed) == []


def test_pauses_of_clients_when_brokers_are_killed(seed: int, scale: int) -> None:
    examine(2 * scale, seed)


if __name__ == "__main__":
    import sys

    examine(int(sys.argv[-1]), 1)
