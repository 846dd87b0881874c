"""Our range assignor beside Java's, with racks (KIP-881): the same, to the partition."""

from __future__ import annotations

import random
import subprocess

from interop.beside import BESIDE, NEWEST
from support.drivers.java import JVM_OPTIONS, SOURCES, classes_of, libraries

from kbroker.client.consumer.assignors import RangeAssignor
from kbroker.client.consumer.rack_matching import PartitionRacks
from kbroker.client.consumer.subscriptions import MemberSubscription

pytestmark = BESIDE

CASES = 3000
Group = tuple[dict[str, int], PartitionRacks, dict[str, MemberSubscription]]


def group(seed: int) -> Group:
    """Partitions of topics, the racks of their replicas, and members."""
    chosen = random.Random(seed)
    topics = {topic: chosen.randint(1, 7) for topic in "abc"[: chosen.randint(1, 3)]}
    if chosen.random() < 0.5:
        topics = dict.fromkeys(topics, chosen.randint(1, 8))
    racks = {
        (topic, number): frozenset(chosen.sample("xyz", chosen.randint(0, 2)))
        for topic, count in topics.items()
        for number in range(count)
    }
    names = list(topics)
    members = {
        f"m{number}": MemberSubscription(
            tuple(names if seed % 2 else chosen.sample(names, chosen.randint(1, len(names)))),
            rack=chosen.choice(["x", "y", "z", None]),
        )
        for number in range(chosen.randint(1, 5))
    }
    return topics, racks, members


def line(given: Group) -> str:
    _, racks, members = given
    people = [f"{name}:{row.rack or ''}:{','.join(row.topics)}" for name, row in members.items()]
    places = [f"{topic}:{n}:{''.join(sorted(near))}" for (topic, n), near in racks.items()]
    return f"{';'.join(people)}|{';'.join(places)}"


def ours(given: Group) -> str:
    topics, racks, members = given
    found = RangeAssignor().assign(topics, members, racks)
    return " ".join(
        f"{name}={','.join(sorted(f'{topic}{n}' for topic, n in found[name]))}"
        for name in sorted(found)
    )


def test_ranges_are_javas() -> None:
    groups = [group(seed) for seed in range(CASES)]
    sources = [SOURCES / "assignors" / "Ranges.java"]
    classes = classes_of(NEWEST, "kafka-tools", sources)
    jars = libraries(NEWEST, "kafka-tools")
    command = ["java", *JVM_OPTIONS, "-cp", f"{classes}:{jars}/*", "Ranges"]
    given = "".join(f"{line(each)}\n" for each in groups)
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    differing = [
        (seed, theirs, ours(each))
        for seed, (each, theirs) in enumerate(zip(groups, done.stdout.splitlines(), strict=True))
        if theirs != ours(each)
    ]
    assert differing == []
