"""Twenty members of several clients come and go while producers write."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.drivers import Driver
from support.drivers.access import Access
from support.drivers.java import FIRST_TEST_TIMEOUT_S, java_missing
from support.drivers.members import Member, Partition, overlaps, while_owned
from support.running.pace import hold

from kbroker.testing import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(FIRST_TEST_TIMEOUT_S)]

MEMBERS = 20
PARTITIONS = 24
SHORT_S, LONG_S = 8.0, 120.0
RATE = 300
DRAIN_S = 60.0
# A librdkafka consumer closed between the two steps of its join leaves an id that nobody joins
# with, and the group waits for it until its session expires; Apache Kafka behaves the same.
SESSION_MS = 10_000
# Not kafka-python 3.0: it keeps its position in a partition that it owned two generations ago if
# the one in between ended before its assignment arrived, and reads again what others have
# committed.
CLASSIC = ["confluent-kafka"] * 6 + ["aiokafka"] * 3
SERVER_SIDE = ["confluent-kafka"] * 10
if not java_missing():
    CLASSIC.append("java 3.9.1")
    SERVER_SIDE += ["java 4.3.0"] * 2


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("KBROKER_FAULT_SEED") or random.SystemRandom().randrange(1 << 31))
    print(f"KBROKER_FAULT_SEED={chosen}")
    return chosen


class Writer:
    """Writes numbered values to all partitions until it is stopped."""

    def __init__(self, access: Access, topic: str) -> None:
        from confluent_kafka import Producer

        self.count = 0
        self._topic = topic
        settings = {"enable.idempotence": True, "linger.ms": 5}
        self._producer: Any = Producer({**access.librdkafka(), **settings})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stopping.wait(max(0.0, began + self.count / RATE - time.monotonic())):
            value = b"%d" % self.count
            self._producer.produce(self._topic, value, partition=self.count % PARTITIONS)
            self._producer.poll(0)
            self.count += 1

    def stop(self) -> int:
        """Stop the producers; returns the number of records."""
        self._stopping.set()
        self._thread.join(10)
        if self._producer is not None:
            assert self._producer.flush(20) == 0
            self._producer = None  # its threads would go on looking for the broker
        return self.count


@pytest.fixture
def writer(access: Access, create: Callable[..., None], topic: str) -> Iterator[Writer]:
    create(topic, PARTITIONS)
    running = Writer(access, topic)
    yield running
    running.stop()


def churn(
    join: Callable[..., Member], names: list[str], group: str, topic: str, **how: object
) -> Callable[[random.Random, float], tuple[list[Member], list[Member]]]:
    """Members join and leave for a while; returns those present at the end, and all."""

    def run(chance: random.Random, seconds: float) -> tuple[list[Member], list[Member]]:
        def one() -> Member:
            member = join(chance.choice(names), group, topic, session_ms=SESSION_MS, **how)
            everyone.append(member)
            return member

        everyone: list[Member] = []
        members = [one() for _ in range(MEMBERS)]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            leaving = chance.sample(members, chance.choice((1, 1, 2, 5)))
            closers = [threading.Thread(target=member.close) for member in leaving]
            for closer in closers:
                closer.start()
            members = [member for member in members if member not in leaving]
            members += [one() for _ in range(MEMBERS - len(members))]
            for closer in closers:
                closer.join(60)
            hold(chance.uniform(0.2, 1.5))
        return members, everyone

    return run


def check(writer: Writer, members: list[Member], everyone: list[Member], topic: str) -> None:
    """Every record went to exactly one member, in order; no partition had two owners at a time."""

    def settled() -> bool:
        owners = Counter(where for member in members for where in member.owned)
        assert set(owners.values()) == {1} and len(owners) == PARTITIONS, owners
        return True

    wait_until(settled, DRAIN_S, "all partitions have one owner")
    count = writer.stop()
    seen: dict[Partition, list[tuple[float, int, str]]] = defaultdict(list)

    def all_taken() -> bool:
        return sum(len(while_owned(member)) for member in everyone) >= count

    def missing() -> str:
        """Records that no member got while it owned the partition, and the events around them."""
        offsets: dict[Partition, set[int]] = defaultdict(set)
        for member in everyone:
            for record in while_owned(member):
                offsets[record.where].add(record.offset)
        for where, there in offsets.items():
            for offset in range(max(there)):
                if offset not in there:
                    return f"{where} {offset}: {story(where, offset, everyone)}"
        return "at the end of partitions"

    try:
        wait_until(all_taken, DRAIN_S, f"all {count} records are taken")
    except AssertionError as error:
        raise AssertionError(f"{error}; {missing()}") from None
    assert overlaps(everyone) == []
    for index, member in enumerate(everyone):
        for record in while_owned(member):
            name = f"{member.name} #{index}"
            seen[record.where].append((record.at, record.offset, name))
    for where, records in seen.items():
        for position, (_, offset, _) in enumerate(sorted(records)):
            if offset != position:
                raise AssertionError(f"{where}: {story(where, offset, everyone)}")
    assert sum(map(len, seen.values())) == count
    rebalances = sum(move.kind == "assigned" for member in everyone for move in member.moves)
    print(f"{count} records, {len(everyone)} members, {rebalances} assignments")


def story(where: Partition, offset: int, everyone: list[Member]) -> str:
    """The events of a partition around one of its records."""
    lines = []
    for index, member in enumerate(everyone):
        name = f"{member.name} #{index}"
        for record in member.taken:
            if record.where == where and abs(record.offset - offset) < 3:
                lines.append((record.at, f"{record.offset} to {name}"))
    first, last = min(lines)[0], max(lines)[0]
    for index, member in enumerate(everyone):
        for move in member.moves:
            if where in move.partitions and first - 3 < move.at < last + 3:
                lines.append((move.at, f"{move.kind}: {member.name} #{index}"))
    return "; ".join(f"{at:.3f} {text}" for at, text in sorted(lines))


MODES = [
    pytest.param(CLASSIC, {}, id="eager"),
    pytest.param(["confluent-kafka"], {"assignor": "cooperative-sticky"}, id="cooperative"),
    pytest.param(SERVER_SIDE, {"protocol": "consumer"}, id="consumer"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("names", "how"), MODES[2:])
def test_each_record_has_one_owner_while_members_come_and_go(
    names: list[str],
    how: dict[str, str],
    join: Callable[..., Member],
    driver_of: Callable[[str], Driver],
    writer: Writer,
    topic: str,
    group: str,
    seed: int,
) -> None:
    members, everyone = churn(join, names, group, topic, **how)(random.Random(seed), SHORT_S)
    check(writer, members, everyone, topic)


@pytest.mark.slow
@pytest.mark.parametrize(("names", "how"), MODES)
def test_each_record_has_one_owner_while_members_come_and_go_for_minutes(
    names: list[str],
    how: dict[str, str],
    join: Callable[..., Member],
    driver_of: Callable[[str], Driver],
    writer: Writer,
    topic: str,
    group: str,
    seed: int,
) -> None:
    members, everyone = churn(join, names, group, topic, **how)(random.Random(seed), LONG_S)
    check(writer, members, everyone, topic)
