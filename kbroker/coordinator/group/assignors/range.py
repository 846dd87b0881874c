"""The ``range`` assignor: of each topic, every subscriber gets one contiguous range of partitions.

Subscribers have the same order for each topic, so topics of equal size to which all members
subscribe are assigned alike. Apart from that order it is not sticky.
"""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.coordinator.group.assignors import Assignment, MemberSpec, in_order


def assign(
    members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]
) -> dict[str, Assignment]:
    """Assign; where a topic does not divide evenly, the first members get one partition more."""
    order = in_order(members)
    subscribers: dict[bytes, list[str]] = {}
    for member_id in order:
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    assigned: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in order}
    for topic_id in sorted(subscribers):
        shares, extra = divmod(partition_counts[topic_id], len(subscribers[topic_id]))
        start = 0
        for member_id in subscribers[topic_id]:
            end = start + shares + (extra > 0)
            extra -= 1
            if start == end:
                break
            assigned[member_id][topic_id] = frozenset(range(start, end))
            start = end
    # Unchanged objects stay the same object, which saves comparing them again.
    return {
        member_id: members[member_id].assigned
        if members[member_id].assigned == assignment
        else assignment
        for member_id, assignment in assigned.items()
    }
