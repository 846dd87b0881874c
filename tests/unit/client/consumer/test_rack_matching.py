"""Racks in the assignments of classic groups: near where that costs no balance (KIP-881)."""

from __future__ import annotations

import random

import pytest

from kbroker.client.consumer.assignors import ASSIGNORS
from kbroker.client.consumer.rack_matching import Racks
from kbroker.client.consumer.subscriptions import (
    MemberSubscription,
    encode_generation,
    encode_sticky,
)

pytestmark = pytest.mark.unit

STICKY = ["sticky", "cooperative-sticky"]


def members(**racks: str | None) -> dict[str, MemberSubscription]:
    """All of topics a and b."""
    return {name: MemberSubscription(("a", "b"), rack=rack) for name, rack in racks.items()}


def places(**topics: str) -> dict[tuple[str, int], frozenset[str]]:
    """a="x y xy": the racks of the replicas of a-0, a-1 and a-2, one letter each."""
    return {
        (topic, number): frozenset(racks.strip("-"))
        for topic, text in topics.items()
        for number, racks in enumerate(text.split())
    }


def counts(racks: dict[tuple[str, int], frozenset[str]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for topic, _ in racks:
        found[topic] = found.get(topic, 0) + 1
    return found


def assigned(name, told, racks) -> dict[str, str]:
    found = ASSIGNORS[name]().assign(counts(racks), told, racks)
    return {who: " ".join(f"{t}{n}" for t, n in keys) for who, keys in found.items()}


@pytest.mark.parametrize(
    ("racks", "of_members", "help_"),
    [
        ("x y", ("x", "y"), True),
        ("x y", ("x", None), True),
        ("x y", (None, None), False),
        ("x y", ("z", None), False),
        ("xy xy", ("x", "y"), False),  # everything is everywhere
        ("x -", ("x", "y"), True),  # of one replica the rack is not known
        ("- -", ("x", "y"), False),
    ],
)
def test_racks_count_only_where_they_make_a_difference(racks, of_members, help_):
    told = members(**dict(zip("mn", of_members, strict=True)))
    found = places(a=racks)
    assert Racks(told, found).help(told, found) == help_


@pytest.mark.parametrize(
    ("racks", "expected"),
    [
        ({"a": "y x y x"}, {"m": "a1 a3", "n": "a0 a2"}),
        # More replicas in a rack than its member may have: the others get the rest.
        ({"a": "x x x y"}, {"m": "a0 a1", "n": "a2 a3"}),
        ({"a": "x x x"}, {"m": "a0 a1", "n": "a2"}),
        # Both topics together, so that partitions of one number meet.
        ({"a": "y x y x", "b": "y x y x"}, {"m": "a1 a3 b1 b3", "n": "a0 a2 b0 b2"}),
        ({"a": "y x", "b": "x y"}, {"m": "a0 b0", "n": "a1 b1"}),
        # Topics of different sizes each by itself.
        ({"a": "y x", "b": "y y x x"}, {"m": "a1 b2 b3", "n": "a0 b0 b1"}),
        ({"a": "xy xy xy xy"}, {"m": "a0 a1", "n": "a2 a3"}),
    ],
    ids=str,
)
def test_ranges_are_near(racks, expected):
    assert assigned("range", members(m="x", n="y"), places(**racks)) == expected


def test_member_without_a_rack_fits_everywhere_in_ranges():
    found = assigned("range", members(m=None, n="y"), places(a="y x y x"))
    assert found == {"m": "a0 a1", "n": "a2 a3"}


@pytest.mark.parametrize("name", STICKY)
@pytest.mark.parametrize(
    ("racks", "expected"),
    [
        ({"a": "y x y x"}, {"m": "a1 a3", "n": "a0 a2"}),
        ({"a": "x x x y"}, {"m": "a0 a1", "n": "a2 a3"}),
        ({"a": "y x y"}, {"m": "a1", "n": "a0 a2"}),
        ({"a": "y y y y x"}, {"m": "a3 a4", "n": "a0 a1 a2"}),
        ({"a": "y y y y"}, {"m": "a0 a1", "n": "a2 a3"}),  # everything is everywhere
    ],
    ids=str,
)
def test_sticky_ones_are_near(name, racks, expected):
    found = assigned(name, members(m="x", n="y"), places(**racks))
    assert {who: " ".join(sorted(keys.split())) for who, keys in found.items()} == expected


@pytest.mark.parametrize("name", STICKY)
def test_partition_moves_to_a_member_nearby_and_stays_where_nobody_is(name):
    racks = places(a="x z y z")
    told = members(m="x", n="y")
    had = {"m": (("a", 1), ("a", 2)), "n": (("a", 0), ("a", 3))}
    told = {
        who: told[who]._replace(
            owned=had[who],
            generation=5,
            user_data=encode_sticky(had[who], 5) if name == "sticky" else encode_generation(5),
        )
        for who in told
    }
    found = assigned(name, told, racks)
    after = {who: set(keys.split()) for who, keys in found.items()}
    if name == "sticky":
        assert after == {"m": {"a0", "a1"}, "n": {"a2", "a3"}}
    else:
        assert after == {"m": {"a1"}, "n": {"a3"}}  # what moves is given up first


@pytest.mark.parametrize("name", [*STICKY, "range"])
@pytest.mark.parametrize("seed", range(6))
def test_balance_is_as_without_racks_and_assignments_come_to_an_end(name, seed):
    """Whatever the racks: each partition once, the same sizes, not farther, no moves for ever."""
    chosen = random.Random(seed)
    same = seed % 2 == 0
    topics = {topic: chosen.randint(1, 9) for topic in "abcd"}
    racks = {
        (topic, n): frozenset(chosen.sample("xyz", chosen.randint(0, 2)))
        for topic, count in topics.items()
        for n in range(count)
    }
    told = {
        f"m{n}": MemberSubscription(
            tuple("abcd") if same else tuple(chosen.sample("abcd", chosen.randint(1, 4))),
            rack=chosen.choice(["x", "y", "z", None]),
        )
        for n in range(5)
    }
    assignor = ASSIGNORS[name]()
    plain = assignor.assign(topics, told)
    found = assignor.assign(topics, told, racks)

    def keys_of(one):
        return sorted(key for keys in one.values() for key in keys)

    assert keys_of(found) == keys_of(plain)
    if name == "range":
        for topic in topics:
            sizes = [
                sorted(sum(key[0] == topic for key in keys) for keys in one.values())
                for one in (found, plain)
            ]
            assert sizes[0] == sizes[1]
    elif same:
        sizes = [sorted(map(len, one.values())) for one in (found, plain)]
        assert sizes[0] == sizes[1]
        known = Racks(told, racks)
        far = [
            sum(known.is_far(who, key) for who, keys in one.items() for key in keys)
            for one in (found, plain)
        ]
        assert far[0] <= far[1]
    if name == "range":
        return
    seen = [found]
    for generation in range(1, 6):
        had = seen[-1]
        again = {
            who: told[who]._replace(
                owned=tuple(had[who]),
                generation=generation,
                user_data=encode_sticky(had[who], generation)
                if name == "sticky"
                else encode_generation(generation),
            )
            for who in told
        }
        seen.append(assignor.assign(topics, again, racks))
    assert keys_of(seen[-1]) == keys_of(plain)
    assert {who: set(keys) for who, keys in seen[-1].items()} == {
        who: set(keys) for who, keys in seen[-2].items()
    }
