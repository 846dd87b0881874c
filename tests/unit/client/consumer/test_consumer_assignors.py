"""Assignors: Java's assignments, balance, few moves; and Java's bytes."""

from __future__ import annotations

import random

import pytest

from kbroker.client.consumer.assignors import (
    ASSIGNORS,
    CooperativeStickyAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    assignors_of,
)
from kbroker.client.consumer.subscriptions import (
    Assignment,
    MemberSubscription,
    decode_assignment,
    decode_generation,
    decode_sticky,
    decode_subscription,
    encode_assignment,
    encode_generation,
    encode_sticky,
    encode_subscription,
)

pytestmark = pytest.mark.unit


def members(**topics: str) -> dict[str, MemberSubscription]:
    return {name: MemberSubscription(tuple(given.split())) for name, given in topics.items()}


def numbers(assigned) -> dict[str, str]:
    return {
        name: " ".join(f"{topic}{partition}" for topic, partition in keys)
        for name, keys in assigned.items()
    }


def test_range_cuts_each_topic():
    # The example of RangeAssignor's documentation.
    found = RangeAssignor().assign({"a": 3, "b": 3}, members(c0="a b", c1="a b"))
    assert numbers(found) == {"c0": "a0 a1 b0 b1", "c1": "a2 b2"}
    found = RangeAssignor().assign({"a": 2}, members(c0="a b", c1="b", c2="a"))
    assert numbers(found) == {"c0": "a0", "c1": "", "c2": "a1"}


def test_round_robin_deals_all_partitions_out():
    # The examples of RoundRobinAssignor's documentation.
    found = RoundRobinAssignor().assign({"a": 3, "b": 3}, members(c0="a b", c1="a b"))
    assert numbers(found) == {"c0": "a0 a2 b1", "c1": "a1 b0 b2"}
    found = RoundRobinAssignor().assign(
        {"a": 1, "b": 2, "c": 3}, members(c0="a", c1="a b", c2="a b c")
    )
    assert numbers(found) == {"c0": "a0", "c1": "b0", "c2": "b1 c0 c1 c2"}


def test_static_members_come_first_and_in_the_order_of_their_ids():
    found = RangeAssignor().assign(
        {"a": 3},
        {
            "x": MemberSubscription(("a",), instance="2"),
            "y": MemberSubscription(("a",), instance="1"),
            "a": MemberSubscription(("a",)),
        },
    )
    assert numbers(found) == {"y": "a0", "x": "a1", "a": "a2"}


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
@pytest.mark.parametrize("seed", range(4))
def test_sticky_assignments_are_balanced_and_partitions_stay(name, seed):
    chosen = random.Random(seed)
    same = seed % 2 == 0
    counts = {topic: chosen.randint(0, 7) for topic in "abcd"}
    assignor = ASSIGNORS[name]()
    topics = {
        f"m{n}": tuple("abcd") if same else tuple(chosen.sample("abcd", chosen.randint(1, 4)))
        for n in range(5)
    }
    owned: dict[str, list] = {}
    for generation in range(1, 12):
        told = {}
        for member, wanted in topics.items():
            had = tuple(owned.get(member, ()))
            data = encode_sticky(had, generation) if name == "sticky" else None
            if name != "sticky":
                data = encode_generation(generation)
            told[member] = MemberSubscription(wanted, data, had, generation)
        found = assignor.assign(counts, told)

        everything = [key for keys in found.values() for key in keys]
        assert len(everything) == len(set(everything))
        for member, keys in found.items():
            assert all(topic in topics[member] for topic, _ in keys)
        if name == "cooperative-sticky":
            others = {key for member in owned for key in owned[member]}
            for member, keys in found.items():
                # What somebody has goes to nobody else in this rebalance.
                assert not set(keys) & (others - set(owned.get(member, ())))
        if set(everything) == {
            (topic, n)
            for topic, count in counts.items()
            for n in range(count)
            if any(topic in wanted for wanted in topics.values())
        }:
            sizes = [len(keys) for keys in found.values()]
            if same:
                assert max(sizes) - min(sizes) <= 1
            again = assignor.assign(
                counts,
                {
                    member: told[member]._replace(
                        owned=tuple(found[member]),
                        user_data=encode_sticky(found[member], generation)
                        if name == "sticky"
                        else encode_generation(generation),
                    )
                    for member in topics
                },
            )
            assert {m: set(k) for m, k in again.items()} == {m: set(k) for m, k in found.items()}
        owned = {member: list(keys) for member, keys in found.items()}
        if generation % 3 == 0:
            gone = chosen.choice(list(topics))
            topics[f"n{generation}"] = topics.pop(gone)
            owned.pop(gone, None)


def test_of_two_claims_the_later_generation_counts():
    told = {
        "old": MemberSubscription(("a",), encode_sticky([("a", 0), ("a", 1)], 3)),
        "new": MemberSubscription(("a",), encode_sticky([("a", 0)], 4)),
    }
    found = StickyAssignor().assign({"a": 2}, told)
    assert found == {"old": [("a", 1)], "new": [("a", 0)]}


def test_a_member_tells_what_it_was_assigned():
    sticky, cooperative = assignors_of(("sticky", "cooperative-sticky"))
    assert sticky.user_data(["a"]) is None
    for one in (sticky, cooperative):
        one.assigned(Assignment((("a", 1), ("b", 0))), 9)
    assert decode_sticky(sticky.user_data(["a"])) == ((("a", 1), ("b", 0)), 9)
    assert decode_generation(cooperative.user_data(["a"])) == 9
    assert isinstance(cooperative, CooperativeStickyAssignor)


def test_bytes_are_javas():
    # ConsumerProtocol.serializeSubscription of version 3, and StickyAssignor's user data.
    told = MemberSubscription(("b", "a"), b"\1", (("a", 2), ("a", 1)), 6, "r")
    assert encode_subscription(told).hex() == (
        "00030000000200016100016200000001010000000100016100000002000000010000000200000006000172"
    )
    assert decode_subscription(encode_subscription(told), "i") == MemberSubscription(
        ("a", "b"), b"\1", (("a", 1), ("a", 2)), 6, "r", "i"
    )
    given = Assignment((("t", 0), ("t", 4)))
    assert encode_assignment(given).hex() == ("000300000001000174000000020000000000000004ffffffff")
    assert decode_assignment(encode_assignment(given)) == given
    assert encode_sticky([("t", 1)], 5).hex() == ("00000001000174000000010000000100000005")
    assert encode_generation(5).hex() == "00000005"


def test_older_and_newer_versions_are_read():
    assert decode_subscription(bytes.fromhex("000000000001000161ffffffff")) == (
        MemberSubscription(("a",))
    )
    newer = b"\0\x09" + encode_subscription(MemberSubscription(("a",)))[2:] + b"more"
    assert decode_subscription(newer).topics == ("a",)
    assert decode_assignment(b"") == Assignment(())
    assert decode_sticky(bytes.fromhex("00000000")) == ((), -1)


@pytest.mark.parametrize("data", ["", "00", "ffff00000000", "0001000000", "00017fffffff"])
def test_bytes_that_are_none_are_an_error(data):
    with pytest.raises(ValueError):
        decode_subscription(bytes.fromhex(data))
    if data:
        with pytest.raises(ValueError):
            decode_assignment(bytes.fromhex(data))
    with pytest.raises(ValueError):
        decode_sticky(bytes.fromhex("000000010001747fffffff"))
