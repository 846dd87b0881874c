"""Records of consumer groups, replayed into the groups of a machine.

Tolerant on purpose: a compacted log holds the last record of each key in the order they were
written, so a record may come without one that preceded it. A record that does not fit replaces what
is there, and a tombstone for something that does not exist does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup, ResolvedRegex
from kbroker.coordinator.group.consumer.consumer_member import (
    LEAVE_EPOCH,
    STABLE,
    ConsumerGroupMember,
)
from kbroker.coordinator.records import offsets_topic as topic
from kbroker.types import Offset

if TYPE_CHECKING:
    from kbroker.coordinator.group.group import Group
    from kbroker.coordinator.group.machine import Replayer
    from kbroker.protocol.message import Message


class ConsumerReplay:
    """groups: of the machine; this creates, changes and removes those of the consumer protocol.

    on_removed: called with the id of a group that is gone.
    """

    __slots__ = ("_groups", "_on_removed")

    def __init__(self, groups: dict[str, Group], on_removed: Callable[[str], None]) -> None:
        self._groups = groups
        self._on_removed = on_removed

    def replayers(self) -> dict[type[Message], Replayer]:
        """The replay functions by class of the record's key."""
        return {
            topic.ConsumerGroupMetadataKey: self._group,
            topic.ConsumerGroupPartitionMetadataKey: self._partition_metadata,
            topic.ConsumerGroupMemberMetadataKey: self._metadata,
            topic.ConsumerGroupTargetAssignmentMetadataKey: self._target_epoch,
            topic.ConsumerGroupTargetAssignmentMemberKey: self._target,
            topic.ConsumerGroupCurrentMemberAssignmentKey: self._assignment,
            topic.ConsumerGroupRegularExpressionKey: self._regex,
        }

    def _find(self, group_id: str, value: Any) -> ConsumerGroup | None:
        """The group; created if it does not exist and the record is not a tombstone."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if value is None:
            return None
        made = self._groups[group_id] = ConsumerGroup(group_id)
        return made

    def _group(self, offset: Offset, producer_id: int, key: Any, value: Any) -> None:
        group = self._find(key.group_id, value)
        if group is None:
            return
        if value is None:
            del self._groups[key.group_id]
            self._on_removed(key.group_id)
            return
        group.epoch, group.metadata_hash = value.epoch, value.metadata_hash

    def _partition_metadata(self, offset: Offset, producer_id: int, key: Any, value: Any) -> None:
        # COMPAT: until 4.0 Kafka stored the topics of a group here, now it stores a hash of them.
        group = self._find(key.group_id, value)
        if group is not None:
            group.has_partition_metadata = value is not None

    def _metadata(self, offset: Offset, producer_id: int, key: Any, value: Any) -> None:
        group = self._find(key.group_id, value)
        if group is None:
            return
        if value is None:
            group.remove(key.member_id)
            return
        member = group.members.get(key.member_id) or ConsumerGroupMember(key.member_id)
        group.put(member.with_metadata(value))

    def _target_epoch(self, offset: Offset, producer_id: int, key: Any, value: Any) -> None:
        group = self._find(key.group_id, value)
        if group is not None:
            group.target_epoch = 0 if value is None else value.assignment_epoch
            group.target_ms = 0 if value is None else value.assignment_timestamp

    def _target(self, offset: Offset, producer_id: int, key: Any, value: Any) -> None:
        group = self._find(key.group_id, value)
        if group is None:
            return
        if value is None:
            group.targets.pop(key.member_id, None)
            return
        group.targets[key.member_id] = {
            one.topic_id: frozenset(one.partitions)
            for one in value.topic_partitions
            if one.partitions
        }

    def _assignment(self, offset: Offset, producer_id: int, key: Any, value: Any) -> None:
        group = self._find(key.group_id, value)
        if group is None:
            return
        member = group.members.get(key.member_id)
        if value is not None:
            group.put((member or ConsumerGroupMember(key.member_id)).with_assignment(value))
        elif member is not None:
            group.put(
                member.with_(
                    epoch=LEAVE_EPOCH,
                    previous_epoch=LEAVE_EPOCH,
                    state=STABLE,
                    assigned={},
                    revoking={},
                )
            )

    def _regex(self, offset: Offset, producer_id: int, key: Any, value: Any) -> None:
        group = self._find(key.group_id, value)
        if group is None:
            return
        if value is None:
            group.resolved.pop(key.regular_expression, None)
        else:
            group.resolved[key.regular_expression] = ResolvedRegex(
                frozenset(value.topics), value.version, value.timestamp
            )
