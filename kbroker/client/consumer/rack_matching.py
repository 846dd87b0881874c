"""Racks in the assignments of classic groups (KIP-881): members read from replicas nearby.

Balance comes first, then racks, then that partitions stay where they were. Racks count only where
they make a difference: some member must have a rack that some replica is in, and not all partitions
may have replicas in the same racks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from kbroker.client.batches.offsets import TopicPartition as Key
from kbroker.client.consumer.subscriptions import MemberSubscription

PartitionRacks = Mapping[Key, frozenset[str]]


class Racks:
    """members: the group. partitions: the racks of their replicas; what is missing has none.

    Only ``help`` looks whether they make a difference.
    """

    def __init__(
        self, members: Mapping[str, MemberSubscription], partitions: PartitionRacks
    ) -> None:
        self._of_member = {name: member.rack for name, member in members.items() if member.rack}
        self._of_partition = partitions

    def help(self, names: Iterable[str], keys: Iterable[Key]) -> bool:
        """Whether racks make a difference in how these members share these partitions."""
        near = {self._of_member[name] for name in names if name in self._of_member}
        if not near:
            return False
        places = {self._of_partition.get(key, frozenset()) for key in keys}
        everywhere = frozenset().union(*places)
        return not near.isdisjoint(everywhere) and places != {everywhere}

    def is_near(self, name: str, key: Key) -> bool:
        """Whether a replica is in the rack of a member that has one."""
        return self._of_member.get(name) in self._of_partition.get(key, ())

    def is_far(self, name: str, key: Key) -> bool:
        """Whether none is."""
        return name in self._of_member and not self.is_near(name, key)


class TopicRanges:
    """The ranges of one topic while they are assigned. names: its members, in order."""

    def __init__(self, topic: str, count: int, names: Sequence[str], racks: Racks | None) -> None:
        self.names = tuple(names)
        self.keys = [(topic, partition) for partition in range(count)]
        self._racks = racks
        self._each, self._more = divmod(count, len(names))
        self._left = dict.fromkeys(self.keys)
        self._taken: dict[str, int] = dict.fromkeys(names, 0)
        self.has_racks = racks is not None and racks.help(names, self.keys)

    def fits(self, name: str, key: Key) -> bool:
        """Whether a member has no rack, or that of a replica."""
        return self._racks is None or not self._racks.is_far(name, key)

    def room(self, name: str) -> int:
        """How many more a member may have."""
        return max(0, self._each + (self._more > 0) - self._taken[name])

    def take(self, name: str, keys: Sequence[Key], assigned: Mapping[str, list[Key]]) -> None:
        """Assign partitions, for which there is room."""
        assigned[name].extend(keys)
        self._taken[name] += len(keys)
        if self._taken[name] > self._each:
            self._more -= 1
        for key in keys:
            del self._left[key]

    def assign(
        self, assigned: Mapping[str, list[Key]], may: Callable[[str, Key], bool] | None = None
    ) -> None:
        """Give each member in turn the first ones that are left and that it may have."""
        for name in self.names:
            able = [key for key in self._left if may is None or may(name, key)]
            if keys := able[: self.room(name)]:
                self.take(name, keys, assigned)


def match_ranges(topics: Sequence[TopicRanges], assigned: Mapping[str, list[Key]]) -> None:
    """Assign what can be read nearby; topics with the same members and as many partitions stay
    together: their partitions of the same number go to the same member.
    """
    together: dict[tuple[tuple[str, ...], int], list[TopicRanges]] = defaultdict(list)
    for topic in topics:
        together[topic.names, len(topic.keys)].append(topic)
    for (names, count), group in together.items():
        if len(group) == 1:
            if group[0].has_racks:
                group[0].assign(assigned, group[0].fits)
            continue
        left = list(names)
        for number in range(count):
            fitting = (
                name
                for name in left
                if all(one.room(name) and one.fits(name, one.keys[number]) for one in group)
            )
            name = next(fitting, None)
            if name is None:
                continue
            for one in group:
                one.take(name, [one.keys[number]], assigned)
            if not any(one.room(name) for one in group):
                left.remove(name)


class NearMembers:
    """Who may have a partition nearby, for the sticky assignors. able: by topic, the members that
    may have its partitions.
    """

    def __init__(self, racks: Racks, able: Mapping[str, Sequence[str]]) -> None:
        self._racks = racks
        self._able = able
        self._near: dict[Key, list[str]] = {}

    def of(self, key: Key) -> list[str]:
        """The members in the racks of its replicas, in order."""
        near = self._near.get(key)
        if near is None:
            names = self._able[key[0]]
            near = self._near[key] = [name for name in names if self._racks.is_near(name, key)]
        return near

    def may_keep(self, name: str, key: Key) -> bool:
        """Whether nobody is nearer than this member."""
        return not self._racks.is_far(name, key) or not self.of(key)

    def far(self, assigned: Mapping[str, Iterable[Key]]) -> int:
        """How many partitions of an assignment could be nearer."""
        return sum(not self.may_keep(name, key) for name, keys in assigned.items() for key in keys)
