"""Assignors on random groups: complete, balanced, sticky, independent of the order of input."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import product

import pytest
from support.running.in_one import in_one

from kbroker.coordinator.group import assignors
from kbroker.coordinator.group.assignors import Assignment, MemberSpec

pytestmark = pytest.mark.property

SEEDS = range(60)


class Group:
    """A random group that changes."""

    def __init__(self, seed: int, is_equal: bool) -> None:
        print(f"seed {seed}")
        self.random = random.Random(seed)
        self.is_equal = is_equal
        count = self.random.randint(1, 8)
        self.counts = {bytes([n]) * 16: self.random.randint(1, 12) for n in range(count)}
        self.topics: dict[str, frozenset[bytes]] = {}
        self.instances: dict[str, str | None] = {}
        self.assigned: Mapping[str, Assignment] = {}
        self.next = 0
        for _ in range(self.random.randint(1, 9)):
            self.join()

    def join(self) -> None:
        self.next += 1
        name = f"m{self.random.randint(0, 999)}-{self.next}"
        size = len(self.counts) if self.is_equal else self.random.randint(0, len(self.counts))
        self.topics[name] = frozenset(self.random.sample(sorted(self.counts), size))
        self.instances[name] = f"i{self.next}" if self.random.random() < 0.3 else None

    def change(self) -> None:
        what = self.random.choice(["join", "leave", "grow", "new topic"])
        if what == "join":
            self.join()
        elif what == "leave" and len(self.topics) > 1:
            del self.topics[self.random.choice(sorted(self.topics))]
        elif what == "grow":
            self.counts[self.random.choice(sorted(self.counts))] += self.random.randint(1, 5)
        else:
            topic = bytes([100 + self.random.randint(0, 50)]) * 16
            self.counts[topic] = self.random.randint(1, 12)
            for name in self.topics:
                if self.is_equal or self.random.random() < 0.5:
                    self.topics[name] |= {topic}

    def assign(self, assignor: str) -> Mapping[str, Assignment]:
        names = list(self.topics)
        self.random.shuffle(names)
        find = assignors.find(assignor)
        assert find is not None
        specs = {
            name: MemberSpec(self.topics[name], self.instances[name], self.assigned.get(name, {}))
            for name in names
        }
        result = find(specs, self.counts)
        again = find(dict(sorted(specs.items())), self.counts)
        assert again == result, "it depends on the order of its input"
        return result

    def check_complete(self, result: Mapping[str, Assignment]) -> None:
        owned = [(t, p) for a in result.values() for t, parts in a.items() for p in parts]
        wanted = {
            (topic, partition)
            for topic, count in self.counts.items()
            if any(topic in topics for topics in self.topics.values())
            for partition in range(count)
        }
        assert len(owned) == len(set(owned)), "two owners"
        assert set(owned) == wanted
        assert result.keys() == self.topics.keys()
        for name, assignment in result.items():
            assert assignment.keys() <= self.topics[name], "a topic it does not subscribe to"
            assert all(assignment.values()), "an empty topic"


def sizes(result: Mapping[str, Assignment]) -> dict[str, int]:
    return {name: sum(map(len, assignment.values())) for name, assignment in result.items()}


@in_one("seed is_equal", product(SEEDS, [True, False]))
def test_uniform_is_complete_balanced_and_keeps_what_it_can(seed: int, is_equal: bool) -> None:
    group = Group(seed, is_equal)
    for _ in range(6):
        result = group.assign("uniform")

        group.check_complete(result)
        loads = sizes(result)
        if is_equal:
            assert max(loads.values()) - min(loads.values()) <= 1
        else:
            for name, assignment in result.items():
                for topic in assignment:
                    for other, topics in group.topics.items():
                        if topic in topics:
                            assert loads[name] - loads[other] <= 1, (name, other)
        group.assigned = result
        assert group.assign("uniform") == result, "it moves partitions without a change"
        group.change()


@in_one("seed", SEEDS)
def test_uniform_moves_no_more_than_balance_asks_for(seed: int) -> None:
    """When a member joins, only it gains partitions; when one leaves, only it loses some."""
    group = Group(seed, is_equal=True)
    group.assigned = before = group.assign("uniform")

    group.join()
    group.assigned = after = group.assign("uniform")

    for name, assignment in before.items():
        for topic, partitions in after[name].items():
            assert partitions <= assignment.get(topic, frozenset()), "an old member gained"

    gone = group.random.choice(sorted(group.topics))
    del group.topics[gone]
    if group.topics:
        last = group.assign("uniform")
        for name in last:
            for topic, partitions in after[name].items():
                assert partitions <= last[name].get(topic, frozenset()), "one who stays lost"


@in_one("seed is_equal", product(SEEDS, [True, False]))
def test_range_gives_each_subscriber_one_stretch(seed: int, is_equal: bool) -> None:
    group = Group(seed, is_equal)
    for _ in range(4):
        result = group.assign("range")

        group.check_complete(result)
        order = assignors.in_order(
            {n: MemberSpec(t, group.instances[n], {}) for n, t in group.topics.items()}
        )
        for topic, count in group.counts.items():
            subscribers = [name for name in order if topic in group.topics[name]]
            expected = 0
            for place, name in enumerate(subscribers):
                partitions = sorted(result[name].get(topic, ()))
                share = count // len(subscribers) + (place < count % len(subscribers))
                assert partitions == list(range(expected, expected + share))
                expected += share
        group.assigned = result
        group.change()


@pytest.mark.parametrize("assignor", assignors.NAMES)
def test_large_group_is_assigned_in_time_for_each_of_its_joins(assignor: str) -> None:
    """300 members on 1,000 partitions; the bound is generous, a slow algorithm exceeds it by
    far.
    """
    import time

    find = assignors.find(assignor)
    assert find is not None
    topic = b"t" * 16
    specs = {f"m{n}": MemberSpec(frozenset({topic}), None, {}) for n in range(300)}
    fastest = min(_seconds(time.process_time, lambda: find(specs, {topic: 1000})) for _ in range(3))

    assert fastest < 0.1


def _seconds(clock: object, function: object) -> float:
    start = clock()  # type: ignore[operator]
    function()  # type: ignore[operator]
    return clock() - start  # type: ignore[operator,no-any-return]
