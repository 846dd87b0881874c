"""How the leader of a classic group assigns partitions to members: Java's four ways.

Range and round-robin assign as Java's do, to the partition. The sticky ones keep what Java's keep:
balance, and then as many partitions as possible where they were. All but round-robin let members
read from replicas in their racks where that does not cost balance (KIP-881, ``rack_matching``).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.client.batches.offsets import TopicPartition as Key
from kbroker.client.consumer.rack_matching import (
    NearMembers,
    PartitionRacks,
    Racks,
    TopicRanges,
    match_ranges,
)
from kbroker.client.consumer.subscriptions import (
    NO_GENERATION,
    Assignment,
    MemberSubscription,
    decode_generation,
    decode_sticky,
    encode_generation,
    encode_sticky,
)

Members = Mapping[str, MemberSubscription]
Assigned = dict[str, list[Key]]


class Assignor:
    """A way to assign. name: all members of a group need one in common.

    cooperative: members keep their partitions during a rebalance, so a partition may only be
    assigned to a member once its owner has given it up. knows_racks: ``assign`` has a third
    argument.
    """

    name = ""
    cooperative = False
    knows_racks = False

    def user_data(self, topics: Iterable[str]) -> bytes | None:
        """What this member tells the leader's assignor."""
        return None

    def assign(self, counts: Mapping[str, int], members: Members) -> Assigned:
        """The partitions of each member. counts: of partitions, by topic."""
        raise NotImplementedError

    def assigned(self, assignment: Assignment, generation: int) -> None:
        """What this member was assigned."""


def ordered(members: Members) -> list[str]:
    """Static members by their ids, then the others: their order survives a restart."""
    return sorted(
        members, key=lambda name: (members[name].instance is None, members[name].instance or name)
    )


class RackAwareAssignor(Assignor):
    """racks: those of the replicas of partitions; None: unknown."""

    knows_racks = True

    def assign(
        self, counts: Mapping[str, int], members: Members, racks: PartitionRacks | None = None
    ) -> Assigned:
        raise NotImplementedError


class RangeAssignor(RackAwareAssignor):
    """Each topic is cut into ranges, so that the same partitions of several topics meet."""

    name = "range"

    def assign(
        self, counts: Mapping[str, int], members: Members, racks: PartitionRacks | None = None
    ) -> Assigned:
        assigned: Assigned = {name: [] for name in members}
        known = Racks(members, racks) if racks else None
        order = ordered(members)
        topics = [
            TopicRanges(
                topic,
                counts.get(topic, 0),
                [name for name in order if topic in members[name].topics],
                known,
            )
            for topic in sorted(_topics(members))
        ]
        if any(topic.has_racks for topic in topics):
            match_ranges(topics, assigned)
        for topic in topics:
            topic.assign(assigned)
        for keys in assigned.values():
            keys.sort()
        return assigned


class RoundRobinAssignor(Assignor):
    """All partitions of all topics, one after the other, to one member after the other."""

    name = "roundrobin"

    def assign(self, counts: Mapping[str, int], members: Members) -> Assigned:
        assigned: Assigned = {name: [] for name in members}
        order = ordered(members)
        at = 0
        for key in _partitions(counts, members):
            while key[0] not in members[order[at % len(order)]].topics:
                at += 1
            assigned[order[at % len(order)]].append(key)
            at += 1
        return assigned


class StickyAssignor(RackAwareAssignor):
    """Balanced, with as few moves as possible; members tell what they had."""

    name = "sticky"

    def __init__(self) -> None:
        self._had: tuple[Key, ...] = ()
        self._generation = NO_GENERATION

    def user_data(self, topics: Iterable[str]) -> bytes | None:
        if self._generation == NO_GENERATION:
            return None
        return encode_sticky(self._had, self._generation)

    def assigned(self, assignment: Assignment, generation: int) -> None:
        self._had, self._generation = assignment.partitions, generation

    def assign(
        self, counts: Mapping[str, int], members: Members, racks: PartitionRacks | None = None
    ) -> Assigned:
        claims = {}
        for name, member in members.items():
            claims[name] = _claim_of(member.user_data)
        return sticky(counts, members, claims, racks)


class CooperativeStickyAssignor(RackAwareAssignor):
    """The same, where members read on while they rebalance, and partitions move in two steps."""

    name = "cooperative-sticky"
    cooperative = True

    def __init__(self) -> None:
        self._generation = NO_GENERATION

    def user_data(self, topics: Iterable[str]) -> bytes | None:
        return encode_generation(self._generation)

    def assigned(self, assignment: Assignment, generation: int) -> None:
        self._generation = generation

    def assign(
        self, counts: Mapping[str, int], members: Members, racks: PartitionRacks | None = None
    ) -> Assigned:
        claims = {}
        for name, member in members.items():
            try:
                generation = decode_generation(member.user_data)
            except ValueError:
                generation = NO_GENERATION
            claims[name] = member.owned, max(generation, member.generation)
        assigned = sticky(counts, members, claims, racks)
        owners: dict[Key, set[str]] = defaultdict(set)
        for name, member in members.items():
            for key in member.owned:
                owners[key].add(name)
        # What another member still has is assigned once that one has given it up.
        return {
            name: [key for key in keys if not owners[key] - {name}]
            for name, keys in assigned.items()
        }


Claims = Mapping[str, tuple[tuple[Key, ...], int]]


def _claim_of(user_data: bytes | None) -> tuple[tuple[Key, ...], int]:
    if not user_data:
        return (), NO_GENERATION
    try:
        return decode_sticky(user_data)
    except ValueError:
        return (), NO_GENERATION  # COMPAT: as in Java, such a member begins anew


def sticky(
    counts: Mapping[str, int],
    members: Members,
    claims: Claims,
    racks: PartitionRacks | None = None,
) -> Assigned:
    """claims: what each member had, and in which generation; the last one counts, and nobody where
    two have the same.
    """
    partitions = _partitions(counts, members)
    order = ordered(members)
    topics = {name: frozenset(member.topics) for name, member in members.items()}
    able: dict[str, list[str]] = defaultdict(list)
    for name in order:
        for topic in topics[name]:
            able[topic].append(name)
    owner = _owners(frozenset(partitions), topics, claims)
    near = None
    if racks and (known := Racks(members, racks)).help(members, partitions):
        near = NearMembers(known, able)
    if len(set(topics.values())) == 1:
        assigned = _sticky_equal(partitions, order, owner, near)
    else:
        assigned = _sticky_general(partitions, order, able, owner, near)
    return assigned if near is None else _better(assigned, order, partitions, owner, near)


def _better(
    assigned: Assigned,
    order: list[str],
    partitions: list[Key],
    owner: Mapping[Key, str],
    near: NearMembers,
) -> Assigned:
    """What is assigned already, unless this is more balanced or nearer: so assignments come to an
    end, also where partitions that cannot all be near could be moved around for ever.
    """
    if len(owner) < len(partitions):
        return assigned
    had: Assigned = {name: [] for name in order}
    for key in partitions:
        had[owner[key]].append(key)

    def rank(one: Assigned) -> tuple[int, int]:
        return sum(len(keys) ** 2 for keys in one.values()), near.far(one)

    return assigned if rank(assigned) < rank(had) else had


def _owners(
    partitions: frozenset[Key], topics: Mapping[str, frozenset[str]], claims: Claims
) -> dict[Key, str]:
    best: dict[Key, tuple[int, str | None]] = {}
    for name in sorted(claims):
        keys, generation = claims[name]
        for key in set(keys):
            if key not in partitions or key[0] not in topics[name]:
                continue
            known = best.get(key)
            if known is None or generation > known[0]:
                best[key] = generation, name
            elif generation == known[0]:
                best[key] = generation, None
    return {key: name for key, (_, name) in best.items() if name is not None}


def _sticky_equal(
    partitions: list[Key],
    order: list[str],
    owner: Mapping[Key, str],
    near: NearMembers | None,
) -> Assigned:
    """All members may have every partition: each gets the quota or one more."""
    quota, more = divmod(len(partitions), len(order))
    had: Assigned = {name: [] for name in order}
    free: list[Key] = []
    for key in partitions:
        name = owner.get(key)
        if name is None or not (near is None or near.may_keep(name, key)):
            free.append(key)
        else:
            had[name].append(key)
    # Those who have the most are the ones that may have one more.
    for name in sorted(order, key=lambda one: -len(had[one])):
        keep = quota
        if more and len(had[name]) > quota:
            keep, more = quota + 1, more - 1
        free += had[name][keep:]
        del had[name][keep:]
    free.sort()
    if near is not None:
        free = _sticky_near(free, had, owner, (quota, more), near)
    at = 0
    for name in order:
        take = quota - len(had[name])
        if take > 0:
            had[name] += free[at : at + take]
            at += take
    # What is left is one for each of some members who have just the quota.
    for name in order:
        if at < len(free) and len(had[name]) == quota:
            had[name].append(free[at])
            at += 1
    return had


def _sticky_near(
    free: list[Key],
    had: Assigned,
    owner: Mapping[Key, str],
    room: tuple[int, int],
    near: NearMembers,
) -> list[Key]:
    """Give partitions to members nearby, those first that have the fewest, and then to who had
    them; returns those for which there is no room. room: the quota, and how many members may get
    one above it.
    """
    quota, more = room

    def take(key: Key, names: Iterable[str]) -> bool:
        nonlocal more
        able = [name for name in names if len(had[name]) < quota + (more > 0)]
        if not able:
            return False
        name = min(able, key=lambda one: len(had[one]))
        more -= len(had[name]) == quota
        had[name].append(key)
        return True

    by_places = sorted(free, key=lambda key: len(near.of(key)))
    left = [key for key in by_places if not take(key, near.of(key))]
    return sorted(key for key in left if not take(key, [owner[key]] if key in owner else []))


def _sticky_general(
    partitions: list[Key],
    order: list[str],
    by_topic: Mapping[str, list[str]],
    owner: Mapping[Key, str],
    near: NearMembers | None,
) -> Assigned:
    """Members differ in what they may have: free partitions go to who has the fewest, and then some
    move as long as that balances.
    """
    assigned: dict[str, set[Key]] = {name: set() for name in order}
    free = []
    for key in partitions:
        if key in owner and (near is None or near.may_keep(owner[key], key)):
            assigned[owner[key]].add(key)
        else:
            free.append(key)
    # Those with the fewest possible owners first.
    for key in sorted(free, key=lambda one: (len(by_topic[one[0]]), one)):
        assigned[_least((near and near.of(key)) or by_topic[key[0]], assigned)].add(key)
    moved = True
    while moved:
        moved = False
        heap = [(-len(keys), at, order[at]) for at, keys in enumerate(assigned.values())]
        heapq.heapify(heap)
        while heap:
            _, _, name = heapq.heappop(heap)
            for key in sorted(assigned[name]):
                other = _least(by_topic[key[0]], assigned)
                if near is not None and near.of(key):
                    close = _least(near.of(key), assigned)
                    if len(assigned[name]) > len(assigned[close]) + 1:
                        other = close
                if len(assigned[name]) > len(assigned[other]) + 1:
                    assigned[name].remove(key)
                    assigned[other].add(key)
                    moved = True
    return {name: sorted(keys) for name, keys in assigned.items()}


def _least(names: list[str], assigned: Mapping[str, set[Key]]) -> str:
    return min(names, key=lambda name: len(assigned[name]))


def _topics(members: Members) -> set[str]:
    return {topic for member in members.values() for topic in member.topics}


def _partitions(counts: Mapping[str, int], members: Members) -> list[Key]:
    """Of all topics that somebody subscribes to, in order."""
    return [
        (topic, partition)
        for topic in sorted(_topics(members))
        for partition in range(counts.get(topic, 0))
    ]


ASSIGNORS: dict[str, type[Assignor]] = {
    made.name: made
    for made in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}


def assignors_of(given: Iterable[Any]) -> list[Assignor]:
    """Names and objects, as the setting has them."""
    return [ASSIGNORS[one]() if isinstance(one, str) else one for one in given]
