"""The records of a consumer group, made from its state. Each is a key and a value; None deletes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.group.assignors import Assignment
from kbroker.coordinator.group.consumer.consumer_member import ConsumerGroupMember, Owned
from kbroker.coordinator.records import offsets_topic as topic
from kbroker.protocol.message import Message

if TYPE_CHECKING:
    from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup, ResolvedRegex

    Assigned = topic.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions

Record = tuple[Message, Message | None]

# So few and small records are far below any limit of a batch.
SURELY_FIT, SURELY_FIT_BYTES = 500, 64 << 10


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> Record:
    value = topic.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return topic.ConsumerGroupMetadataKey(group_id=group_id), value


def target_epoch(group_id: str, epoch: int, wall_ms: int) -> Record:
    value = topic.ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=wall_ms
    )
    return topic.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value


def target(group_id: str, member_id: str, assignment: Assignment) -> Record:
    cls = topic.ConsumerGroupTargetAssignmentMemberValue
    topics = [
        cls.TopicPartition(topic_id=topic_id, partitions=sorted(assignment[topic_id]))
        for topic_id in sorted(assignment)
    ]
    key = topic.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return key, cls(topic_partitions=topics)


def metadata(group_id: str, member: ConsumerGroupMember) -> Record:
    key = topic.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
    return key, topic.ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=member.classic,
    )


def assignment(group_id: str, member: ConsumerGroupMember) -> Record:
    cls = topic.ConsumerGroupCurrentMemberAssignmentValue

    def topics(
        owned: Owned,
    ) -> list[Assigned]:
        rows = []
        for topic_id in sorted(owned):
            partitions = sorted(owned[topic_id])
            epochs = [owned[topic_id][partition] for partition in partitions]
            rows.append(
                cls.TopicPartitions(
                    topic_id=topic_id, partitions=partitions, assignment_epochs=epochs
                )
            )
        return rows

    key = topic.ConsumerGroupCurrentMemberAssignmentKey(
        group_id=group_id, member_id=member.member_id
    )
    return key, cls(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=topics(member.assigned),
        partitions_pending_revocation=topics(member.revoking),
    )


def regex(group_id: str, pattern: str, resolved: ResolvedRegex | None) -> Record:
    key = topic.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)
    if resolved is None:
        return key, None
    return key, topic.ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.wall_ms
    )


def without_partition_metadata(group_id: str) -> Record:
    return topic.ConsumerGroupPartitionMetadataKey(group_id=group_id), None


def without_member(group_id: str, member_id: str) -> list[Record]:
    """Delete a member: first its assignments, last its metadata."""
    names = {"group_id": group_id, "member_id": member_id}
    return [
        (topic.ConsumerGroupCurrentMemberAssignmentKey(**names), None),
        (topic.ConsumerGroupTargetAssignmentMemberKey(**names), None),
        (topic.ConsumerGroupMemberMetadataKey(**names), None),
    ]


def without_group(group: ConsumerGroup, member_ids: Iterable[str]) -> list[Record]:
    """Delete the group with these members."""
    group_id = group.group_id
    records: list[Record] = []
    for member_id in member_ids:
        records += without_member(group_id, member_id)
    records += [regex(group_id, pattern, None) for pattern in sorted(group.resolved)]
    if group.has_partition_metadata:
        records.append(without_partition_metadata(group_id))
    records.append((topic.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None))
    records.append((topic.ConsumerGroupMetadataKey(group_id=group_id), None))
    return records


def surely_fit(records: Sequence[Record]) -> bool:
    """Whether these certainly fit into one batch of the topic; if not, check their exact size.

    Members choose how long names, patterns and subscriptions are, up to megabytes.
    """
    if len(records) > SURELY_FIT:
        return False
    return sum(_size_max(part) for record in records for part in record) <= SURELY_FIT_BYTES


def _size_max(value: Any) -> int:
    """Maximum bytes of a message or of one of its fields."""
    if value is None or isinstance(value, int):
        return 8
    if isinstance(value, str):
        return 4 * len(value) + 5
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value) + 5
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], int):
            return 8 * len(value) + 5
        return sum(map(_size_max, value)) + 5
    return sum(_size_max(getattr(value, name)) for name in value.__slots__) + 5
