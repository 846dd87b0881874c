"""The ``uniform`` assignor: as balanced as subscriptions allow, then as sticky as balance allows.

Balance is counted in partitions, over all topics together. With equal subscriptions no member has
two partitions more than another; with different ones no partition could move to a subscriber of
its topic that has two fewer than its owner.

Topics with the same subscribers are interchangeable, so they are balanced together, as one
*pool*. Most groups have one pool, and few have many, whatever the number of topics.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from kbroker.coordinator.group.assignors import Assignment, MemberSpec, in_order

# BOUND: rounds over pools that overlap. Each about halves the number of partitions left to move.
ROUNDS_MAX = 16

_Partition = tuple[bytes, int]


def assign(
    members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]
) -> dict[str, Assignment]:
    """Assign every partition of every subscribed topic to one of its subscribers."""
    order = in_order(members)
    if not order:
        return {}
    first = members[order[0]].topics
    if all(spec.topics is first or spec.topics == first for spec in members.values()):
        return _assign_equal(order, members, partition_counts)
    return _assign_different(order, members, partition_counts)


# -- all members subscribe to the same topics -----------------------------------------------------


def _assign_equal(
    order: list[str], members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]
) -> dict[str, Assignment]:
    topics = members[order[0]].topics
    kept, missing = _keep(order, members, topics, partition_counts)
    sizes = {m: sum(map(len, assignment.values())) for m, assignment in kept.items()}
    total = sum(partition_counts[topic_id] for topic_id in topics)
    quota, extra = divmod(total, len(order))
    # Members that have more already are the first to keep one more, so that nothing moves
    # needlessly.
    entitled = sorted(order, key=lambda m: -min(sizes[m], quota + 1))[:extra]
    quotas = dict.fromkeys(order, quota)
    for member_id in entitled:
        quotas[member_id] += 1
    for member_id in order:
        surplus = sizes[member_id] - quotas[member_id]
        if surplus > 0:
            kept[member_id], given = _give_up(kept[member_id], surplus)
            missing += given
    missing.sort()
    room = {m: quotas[m] - sizes[m] for m in order if quotas[m] > sizes[m]}
    _deal(kept, room, missing)
    return kept


def _keep(
    order: list[str],
    members: Mapping[str, MemberSpec],
    topics: object,
    partition_counts: Mapping[bytes, int],
) -> tuple[dict[str, Assignment], list[_Partition]]:
    """The partitions that each member may keep, and those without a member."""
    owned: dict[bytes, set[int]] = {topic_id: set() for topic_id in topics}  # type: ignore[attr-defined]
    kept: dict[str, Assignment] = {}
    for member_id in order:
        assigned = members[member_id].assigned
        keeps_all = True
        for topic_id, partitions in assigned.items():
            taken = owned.get(topic_id)
            if (
                taken is None
                or not taken.isdisjoint(partitions)
                or max(partitions, default=0) >= partition_counts[topic_id]
            ):
                keeps_all = False
                break
        if not keeps_all:
            assigned = {
                topic_id: remaining
                for topic_id, partitions in assigned.items()
                if topic_id in owned
                and (remaining := (partitions - owned[topic_id]) & _all(partition_counts[topic_id]))
            }
        for topic_id, partitions in assigned.items():
            owned[topic_id] |= partitions
        kept[member_id] = assigned
    missing = [
        (topic_id, partition)
        for topic_id, taken in owned.items()
        if len(taken) < partition_counts[topic_id]
        for partition in range(partition_counts[topic_id])
        if partition not in taken
    ]
    return kept, missing


def _all(count: int) -> frozenset[int]:
    return frozenset(range(count))


def _give_up(assignment: Assignment, surplus: int) -> tuple[Assignment, list[_Partition]]:
    """Take partitions away, first those of topics of which the member has most."""
    left = {topic_id: sorted(partitions) for topic_id, partitions in assignment.items()}
    largest = [(-len(partitions), topic_id) for topic_id, partitions in left.items()]
    heapq.heapify(largest)
    given = []
    for _ in range(surplus):
        size, topic_id = largest[0]
        given.append((topic_id, left[topic_id].pop()))
        heapq.heapreplace(largest, (size + 1, topic_id))
    changed = {topic_id for topic_id, _ in given}
    return {
        topic_id: frozenset(left[topic_id]) if topic_id in changed else partitions
        for topic_id, partitions in assignment.items()
        if left[topic_id]
    }, given


def _deal(kept: dict[str, Assignment], room: dict[str, int], missing: list[_Partition]) -> None:
    """Deal out partitions, one at a time to each member that has room, until none is left.

    In turn, and not to one member after the other, so that the partitions of one topic spread.
    """
    gained: dict[str, dict[bytes, list[int]]] = {m: {} for m in room}
    turn = list(room)
    at = 0
    while at < len(missing):
        for member_id in turn:
            if at == len(missing):
                break
            topic_id, partition = missing[at]
            at += 1
            room[member_id] -= 1
            gained[member_id].setdefault(topic_id, []).append(partition)
        turn = [member_id for member_id in turn if room[member_id]]
        assert turn or at == len(missing), "partitions without a member that has room"
    for member_id, gains in gained.items():
        merged = dict(kept[member_id])
        for topic_id, partitions in gains.items():
            merged[topic_id] = merged.get(topic_id, frozenset()).union(partitions)
        kept[member_id] = merged if gains else kept[member_id]


# -- subscriptions differ -------------------------------------------------------------------------


class _Pool:
    """Topics with the same subscribers, and which of these have which partitions.

    holdings: per subscriber; what it had before stands first and is the last to be moved.
    """

    __slots__ = ("holdings", "subscribers", "topics")

    def __init__(self, subscribers: tuple[int, ...]) -> None:
        self.subscribers = subscribers
        self.topics: list[bytes] = []
        self.holdings: dict[int, list[_Partition]] = {index: [] for index in subscribers}

    def size(self, partition_counts: Mapping[bytes, int]) -> int:
        return sum(partition_counts[topic_id] for topic_id in self.topics)


def _assign_different(
    order: list[str], members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]
) -> dict[str, Assignment]:
    pools = _pools(order, members)
    loads = [0] * len(order)
    # The partitions that the fewest members can take are dealt first: others can make room for
    # them.
    pools.sort(
        key=lambda p: (-p.size(partition_counts) / len(p.subscribers), len(p.subscribers), p.topics)
    )
    missing = [_fill(pool, order, members, partition_counts, loads) for pool in pools]
    for pool, partitions in zip(pools, missing, strict=True):
        lightest = [(loads[index], index) for index in pool.subscribers]
        heapq.heapify(lightest)
        for partition in partitions:
            load, index = lightest[0]
            pool.holdings[index].append(partition)
            loads[index] += 1
            heapq.heapreplace(lightest, (load + 1, index))
    for _ in range(ROUNDS_MAX):
        if not sum([_level(pool, loads) for pool in pools]) or len(pools) == 1:
            break
    assigned: list[dict[bytes, set[int]]] = [{} for _ in order]
    for pool in pools:
        for index, held in pool.holdings.items():
            for topic_id, number in held:
                assigned[index].setdefault(topic_id, set()).add(number)
    result: dict[str, Assignment] = {}
    for member_id, topics in zip(order, assigned, strict=True):
        before = members[member_id].assigned
        result[member_id] = (
            before if topics == before else {t: frozenset(p) for t, p in topics.items()}
        )
    return result


def _pools(order: list[str], members: Mapping[str, MemberSpec]) -> list[_Pool]:
    subscribers: dict[bytes, list[int]] = {}
    for index, member_id in enumerate(order):
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(index)
    pools: dict[tuple[int, ...], _Pool] = {}
    for topic_id in sorted(subscribers):
        indexes = tuple(subscribers[topic_id])
        if indexes not in pools:
            pools[indexes] = _Pool(indexes)
        pools[indexes].topics.append(topic_id)
    return list(pools.values())


def _fill(
    pool: _Pool,
    order: list[str],
    members: Mapping[str, MemberSpec],
    partition_counts: Mapping[bytes, int],
    loads: list[int],
) -> list[_Partition]:
    """Give subscribers their previous partitions; returns those that are left."""
    left = []
    for topic_id in pool.topics:
        free = set(range(partition_counts[topic_id]))
        for index in pool.subscribers:
            had = members[order[index]].assigned.get(topic_id)
            if had:
                kept = free & had
                free -= kept
                loads[index] += len(kept)
                pool.holdings[index] += [(topic_id, partition) for partition in sorted(kept)]
        left += [(topic_id, partition) for partition in sorted(free)]
    return left


def _level(pool: _Pool, loads: list[int]) -> int:
    """Move partitions from the most to the least loaded subscribers; returns the number moved."""
    lightest = [(loads[index], index) for index in pool.subscribers]
    heaviest = [(-loads[index], index) for index in pool.subscribers if pool.holdings[index]]
    heapq.heapify(lightest)
    heapq.heapify(heaviest)
    moved = 0
    while heaviest:
        low, taker = lightest[0]
        high, giver = -heaviest[0][0], heaviest[0][1]
        # Entries are not corrected when a load changes, but when they are popped.
        if low != loads[taker]:
            heapq.heapreplace(lightest, (loads[taker], taker))
        elif not pool.holdings[giver]:
            heapq.heappop(heaviest)
        elif high != loads[giver]:
            heapq.heapreplace(heaviest, (-loads[giver], giver))
        elif high - low <= 1:
            break
        else:
            pool.holdings[taker].append(pool.holdings[giver].pop())
            loads[giver] -= 1
            loads[taker] += 1
            moved += 1
            heapq.heapreplace(heaviest, (-loads[giver], giver))
            # The lowest entry rises, and is corrected next; one that fell would be missed.
            heapq.heappush(lightest, (loads[giver], giver))
    return moved
