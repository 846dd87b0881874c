"""What holds for every plan of moves, on random layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.console.replica_plan import (
    Key,
    Move,
    PlacedPartition,
    PlanRefused,
    ReplicaLayout,
    balance,
    drain,
    replication,
    spread,
)

pytestmark = pytest.mark.property


@st.composite
def layouts(draw: st.DrawFn, racks: Sequence[str | None] = (None, "a", "b", "c")) -> ReplicaLayout:
    """Brokers of which some may not run; topics of one factor each."""
    nodes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=7, unique=True))
    running = draw(st.lists(st.sampled_from(nodes), min_size=1, unique=True))
    partitions: dict[Key, PlacedPartition] = {}
    for topic in "xyz"[: draw(st.integers(1, 3))]:
        factor = draw(st.integers(1, min(3, len(nodes))))
        for number in range(draw(st.integers(1, 8))):
            order = draw(st.permutations(nodes))[:factor]
            in_sync = frozenset(node for node in order if node in running)
            size = draw(st.integers(0, 5))
            partitions[topic, number] = PlacedPartition(tuple(order), size, in_sync)
    return ReplicaLayout(
        {node: draw(st.sampled_from(racks)) for node in sorted(running)}, partitions
    )


def all_running(layout: ReplicaLayout) -> ReplicaLayout:
    nodes = {node for row in layout.partitions.values() for node in row.nodes} | set(layout.racks)
    return ReplicaLayout(
        {node: layout.racks.get(node) for node in sorted(nodes)}, layout.partitions
    )


def after(layout: ReplicaLayout, moves: Iterable[Move]) -> ReplicaLayout:
    """The layout when all has moved."""
    partitions = dict(layout.partitions)
    for move in moves:
        assert partitions[move.key].nodes == move.before
        partitions[move.key] = partitions[move.key]._replace(nodes=move.after)
    return ReplicaLayout(layout.racks, partitions)


def check_moves(layout: ReplicaLayout, moves: Sequence[Move]) -> None:
    """Each changes something, to different brokers that run where they are new."""
    assert len({move.key for move in moves}) == len(moves)
    for move in moves:
        assert move.before != move.after
        assert len(set(move.after)) == len(move.after)
        assert set(move.added) <= set(layout.racks)
        assert move.size == len(move.added) * layout.partitions[move.key].size


def crowding(layout: ReplicaLayout, nodes: Iterable[int]) -> int:
    used = Counter(layout.racks[node] or "" for node in nodes if node in layout.racks)
    return sum(count**2 for count in used.values())


def least_crowding(
    layout: ReplicaLayout, kept: Sequence[int], more: int, nodes: Iterable[int]
) -> int:
    """Of all ways to put ``more`` replicas onto some of these brokers, tried one after another."""
    free = [node for node in nodes if node not in kept]
    best = {frozenset(kept)}
    for _ in range(more):
        best = {frozenset({*some, node}) for some in best for node in free if node not in some}
    return min(crowding(layout, some) for some in best)


def replicas(layout: ReplicaLayout, topic: str | None = None) -> dict[int, int]:
    """How many each broker that runs has."""
    counts = Counter(
        node
        for key, row in layout.partitions.items()
        for node in row.nodes
        if topic in (None, key[0])
    )
    return {node: counts[node] for node in layout.racks}


def leaders(layout: ReplicaLayout, topic: str | None = None) -> dict[int, int]:
    counts = Counter(
        row.nodes[0] for key, row in layout.partitions.items() if topic in (None, key[0])
    )
    return {node: counts[node] for node in layout.racks}


def differ_by(counts: Mapping[int, int]) -> int:
    return max(counts.values()) - min(counts.values())


@given(layouts(), st.data())
def test_drained_broker_is_empty_and_nothing_else_moves(
    layout: ReplicaLayout, data: st.DataObject
) -> None:
    present = sorted({node for row in layout.partitions.values() for node in row.nodes})
    away = data.draw(st.sets(st.sampled_from(present), min_size=1, max_size=2))
    left = [node for node in layout.racks if node not in away]
    try:
        moves = drain(layout, away)
    except PlanRefused:
        assert any(
            away & set(row.nodes) and len(set(left) - set(row.nodes)) < len(away & set(row.nodes))
            for row in layout.partitions.values()
        )
        return

    check_moves(layout, moves)
    then = after(layout, moves)
    assert {move.key for move in moves} == {
        key for key, row in layout.partitions.items() if away & set(row.nodes)
    }
    for key, row in layout.partitions.items():
        kept = [node for node in row.nodes if node not in away]
        nodes = then.partitions[key].nodes
        assert not away & set(nodes)
        assert [node for node in nodes if node in kept] == kept, "in their order"
        more = len(row.nodes) - len(kept)
        assert crowding(layout, nodes) == least_crowding(layout, kept, more, left)
    assert drain(then, away) == []
    assert drain(layout, away) == moves


@given(layouts())
def test_balanced_brokers_differ_by_one_without_racks(layout: ReplicaLayout) -> None:
    layout = ReplicaLayout(dict.fromkeys(layout.racks), layout.partitions)

    moves = balance(layout)

    check_moves(layout, moves)
    then = after(layout, moves)
    assert differ_by(replicas(then)) <= 1
    assert balance(then) == []
    before = replicas(layout)
    low, left = divmod(sum(before.values()), len(before))
    # The brokers that have the most keep one more than the others.
    largest = sorted(before.values(), reverse=True)
    needed = sum(max(count - low - (at < left), 0) for at, count in enumerate(largest))
    assert sum(len(move.added) for move in moves) == needed, "no replica moves for nothing"


@given(layouts())
def test_balance_respects_racks_and_has_no_move_left(layout: ReplicaLayout) -> None:
    moves = balance(layout)

    check_moves(layout, moves)
    then = after(layout, moves)
    for row in then.partitions.values():
        running = [node for node in row.nodes if node in layout.racks]
        assert crowding(layout, running) == least_crowding(layout, [], len(running), layout.racks)
    counts = replicas(then)
    for row in then.partitions.values():
        for old in set(row.nodes) & set(layout.racks):
            for new in set(layout.racks) - set(row.nodes):
                moved = [new if node == old else node for node in row.nodes]
                assert counts[old] - counts[new] < 2 or crowding(layout, moved) > crowding(
                    layout, row.nodes
                )
    assert balance(then) == []
    assert balance(layout) == moves


@given(layouts(racks=(None,)))
def test_balance_evens_leaders_as_far_as_replicas_are_there(layout: ReplicaLayout) -> None:
    layout = all_running(layout)

    then = after(layout, balance(layout))

    counts = leaders(then)
    if all(len(row.nodes) == len(layout.racks) for row in then.partitions.values()):
        assert differ_by(counts) <= 1
    for row in then.partitions.values():
        assert all(counts[row.nodes[0]] - counts[node] < 2 for node in row.nodes)


@given(layouts(), st.data())
def test_spread_topic_differs_by_one_and_others_stay(
    layout: ReplicaLayout, data: st.DataObject
) -> None:
    layout = ReplicaLayout(dict.fromkeys(layout.racks), layout.partitions)
    topics = data.draw(st.sets(st.sampled_from("xyz"), min_size=1))

    moves = spread(layout, topics)

    check_moves(layout, moves)
    assert {move.key[0] for move in moves} <= topics
    then = after(layout, moves)
    for topic in topics:
        assert differ_by(replicas(then, topic)) <= 1
    assert spread(then, topics) == []


@given(layouts(), st.data())
def test_spread_over_some_brokers_leaves_nothing_elsewhere(
    layout: ReplicaLayout, data: st.DataObject
) -> None:
    some = data.draw(st.lists(st.sampled_from(sorted(layout.racks)), min_size=1, unique=True))
    try:
        moves = spread(layout, {"x"}, some)
    except PlanRefused:
        factor = max(len(row.nodes) for key, row in layout.partitions.items() if key[0] == "x")
        assert factor > len(some)
        return

    check_moves(layout, moves)
    for key, row in after(layout, moves).partitions.items():
        if key[0] == "x":
            assert set(row.nodes) <= set(some)


@given(layouts(), st.integers(1, 4))
def test_replication_adds_or_removes_and_never_both(layout: ReplicaLayout, factor: int) -> None:
    try:
        moves = replication(layout, {"x", "y"}, factor)
    except PlanRefused:
        enough = all(len(layout.racks) >= factor for _ in layout.partitions)
        away = any(
            len(set(layout.racks) - set(row.nodes)) < factor - len(row.nodes)
            for row in layout.partitions.values()
        )
        assert not enough or away
        return

    check_moves(layout, moves)
    then = after(layout, moves)
    for key, row in layout.partitions.items():
        nodes = then.partitions[key].nodes
        if key[0] not in ("x", "y"):
            assert nodes == row.nodes
            continue
        assert len(nodes) == factor
        assert set(nodes) <= set(row.nodes) or set(nodes) > set(row.nodes)
        if factor >= len(row.nodes):
            assert nodes[: len(row.nodes)] == row.nodes
            more = factor - len(row.nodes)
            assert crowding(layout, nodes) == least_crowding(layout, row.nodes, more, layout.racks)
        elif row.in_sync:
            assert set(nodes) & row.in_sync, "one that has all records stays"
    assert replication(then, {"x", "y"}, factor) == []


@pytest.mark.parametrize("away", [[0, 1, 2], [0, 1]])
def test_too_few_brokers_are_said_with_what_to_do(away: list[int]) -> None:
    layout = ReplicaLayout(dict.fromkeys(range(3)), {("x", 0): PlacedPartition((0, 1))})

    with pytest.raises(PlanRefused, match=r"start another one") as caught:
        drain(layout, away)

    assert ("kbroker cluster replication 1 x" in str(caught.value)) == (len(away) == 2)


def test_cheapest_partitions_move() -> None:
    sizes = [50, 10, 40, 20, 30, 60]
    partitions = {("x", n): PlacedPartition((0,), size) for n, size in enumerate(sizes)}

    moves = balance(ReplicaLayout({0: None, 1: None}, partitions))

    assert {move.key[1]: move.after for move in moves} == {1: (1,), 3: (1,), 4: (1,)}
    assert sum(move.size for move in moves) == 60


def test_thousands_of_partitions_of_uneven_racks_are_planned() -> None:
    """As racks forbid most moves, those are not looked at again and again."""
    partitions = {("x", n): PlacedPartition((0, 1), n) for n in range(4000)}

    moves = balance(ReplicaLayout({0: "a", 1: "b", 2: "b"}, partitions))

    assert len([move for move in moves if move.added]) == 2000
    assert all(0 in move.after for move in moves)
