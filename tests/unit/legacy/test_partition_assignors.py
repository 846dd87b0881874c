"""Partitions of a group by ZooKeeper: each consumer computes its own part of the same division."""

from __future__ import annotations

from collections import Counter

import pytest

from kbroker.legacy.zookeeper_consumer.consumer_errors import GroupDisagrees
from kbroker.legacy.zookeeper_consumer.partition_assignors import (
    ASSIGNORS,
    java_hash,
    range_assignment,
    roundrobin_assignment,
    thread_id,
    threads_by_topic,
)

pytestmark = pytest.mark.unit


def whole(strategy: str, members, partitions):
    """Partition -> stream, as all consumers together have it; none has two owners."""
    found = {}
    for me in members:
        for key, stream in ASSIGNORS[strategy](members, partitions, me).items():
            assert key not in found
            found[key] = thread_id(me, stream)
    return found


def test_range_gives_the_first_streams_one_more():
    """CONS-21: 5 partitions on 2 consumers of one stream are 3 and 2."""
    members = {"g_b": {"t": 1}, "g_a": {"t": 1}}

    found = whole("range", members, {"t": (4, 2, 0, 1, 3)})

    assert found == {
        ("t", 0): "g_a-0", ("t", 1): "g_a-0", ("t", 2): "g_a-0", ("t", 3): "g_b-0",
        ("t", 4): "g_b-0",
    }  # fmt: skip


def test_range_orders_streams_as_text():
    """Stream 10 comes before stream 2, as in Java."""
    members = {"c": {"t": 11}}

    found = whole("range", members, {"t": range(11)})

    assert [found["t", n] for n in range(4)] == ["c-0", "c-1", "c-10", "c-2"]


def test_range_leaves_streams_without_partitions_if_there_are_too_many():
    assert whole("range", {"a": {"t": 2}, "b": {"t": 2}}, {"t": (0,)}) == {("t", 0): "a-0"}
    assert range_assignment({"a": {"t": 1}}, {}, "a") == {}


def test_range_divides_each_topic_by_those_that_read_it():
    members = {"a": {"t": 1, "u": 1}, "b": {"u": 1}}

    found = whole("range", members, {"t": (0, 1), "u": (0, 1)})

    assert found == {("t", 0): "a-0", ("t", 1): "a-0", ("u", 0): "a-0", ("u", 1): "b-0"}


def test_roundrobin_counts_differ_by_one_at_most():
    """CONS-22, over all topics together."""
    members = {"a": {"t": 2, "u": 2}, "b": {"t": 1, "u": 1}}

    found = whole("roundrobin", members, {"t": range(7), "u": range(4)})

    assert set(found) == {*(("t", n) for n in range(7)), *(("u", n) for n in range(4))}
    assert sorted(Counter(found.values()).values()) == [3, 4, 4]


def test_roundrobin_takes_partitions_in_the_order_of_their_hash():
    """Written out: Java's hashes of [t,0], [t,1] and [t,2] ascend, those of [u,n] follow."""
    hashes = [java_hash(f"[{topic},{n}]") for topic in "tu" for n in range(3)]
    assert hashes == sorted(hashes)

    found = whole("roundrobin", {"a": {"t": 1, "u": 1}, "b": {"t": 1, "u": 1}},
                  {"u": (0, 1, 2), "t": (2, 1, 0)})  # fmt: skip

    assert [found[topic, n] for topic in "tu" for n in range(3)] == ["a-0", "b-0"] * 3


@pytest.mark.parametrize(
    "members",
    [
        {"a": {"t": 1, "u": 1}, "b": {"t": 1}},  # other topics
        {"a": {"t": 2, "u": 1}},  # other numbers of streams
    ],
)
def test_roundrobin_needs_the_same_everywhere(members):
    with pytest.raises(GroupDisagrees, match="as many streams for every topic: u has a-0"):
        roundrobin_assignment(members, {"t": (0,), "u": (0,)}, "a")


def test_nothing_is_assigned_without_streams():
    assert roundrobin_assignment({}, {}, "a") == {}
    assert roundrobin_assignment({"a": {"t": 0}}, {"t": (0,)}, "a") == {}
    assert range_assignment({"a": {"t": 0}}, {"t": (0,)}, "a") == {}


def test_hashes_are_javas():
    """Values of String.hashCode."""
    assert [java_hash(text) for text in ("", "a", "hello", "[topic,0]", "polygenelubricants")] == [
        0, 97, 99162322, 2068025637, -2147483648,
    ]  # fmt: skip
    assert java_hash("\U0001f600") == 1772899


def test_threads_are_ordered_as_java_orders_text():
    """By units of UTF-16, in which what is above U+FFFF comes before U+FF5E."""
    members = {"\uff5e": {"t": 1}, "\U0001f600": {"t": 1}}
    assert [one for one, _ in threads_by_topic(members)["t"]] == ["\U0001f600", "\uff5e"]
