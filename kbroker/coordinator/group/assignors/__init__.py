"""Server-side assignors of the consumer protocol (KIP-848): which member gets which partition.

An assignor is a pure function of its input: the same members, subscriptions and previous
assignment give the same result in every process, whatever their order. Racks are ignored, as by the
assignors of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

# topic id -> partitions. Values and the mappings themselves are shared and never changed.
Assignment = Mapping[bytes, frozenset[int]]

NOTHING: Assignment = {}


class MemberSpec(NamedTuple):
    """An assignor's input for a member.

    topics: ids of the existing topics it subscribes to; equal sets may be one object.
    assigned: what the previous target gave it, also of topics that are gone meanwhile.
    """

    topics: AbstractSet[bytes]
    instance_id: str | None
    assigned: Assignment


# (members by id, partition count of each subscribed topic) -> an assignment for each member.
Assignor = Callable[[Mapping[str, MemberSpec], Mapping[bytes, int]], dict[str, Assignment]]


def in_order(members: Mapping[str, MemberSpec]) -> list[str]:
    """Member ids, those of static members first and by their instance id.

    A static member comes back under a new id, and keeps its place.
    """
    return sorted(
        members, key=lambda m: (members[m].instance_id is None, members[m].instance_id or m)
    )


def find(name: str) -> Assignor | None:
    """The assignor of that name, if there is one."""
    if name == "uniform":
        from kbroker.coordinator.group.assignors.uniform import assign
    elif name == "range":
        from kbroker.coordinator.group.assignors.range import assign
    else:
        return None
    return assign


NAMES = ("uniform", "range")
