"""A member of a consumer group. Immutable: an update makes a new one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbroker.coordinator.records.offsets_topic import (
        ConsumerGroupCurrentMemberAssignmentValue,
        ConsumerGroupMemberMetadataValue,
    )

# Epochs with a special meaning, in requests and records.
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2

# The member's progress towards its target; numbered as in the records.
STABLE = 0
UNREVOKED_PARTITIONS = 1  # must revoke partitions before it may move to the next epoch
UNRELEASED_PARTITIONS = 2  # partitions of its target are still owned by other members
UNKNOWN_STATE = 127

# topic id -> partition -> epoch in which the member got it
Owned = Mapping[bytes, Mapping[int, int]]

_EMPTY: Owned = {}


class ConsumerGroupMember:
    """A member of a consumer group.

    epoch: 0 before its first assignment, -1 if only its subscription is left.
    classic: the session timeout and protocols of a member that uses the classic protocol, as in
        its record; None for other members.
    assigned: the partitions that it may consume. revoking: those that it must give up, but may
        still consume.
    """

    __slots__ = (
        "assigned",
        "classic",
        "client_host",
        "client_id",
        "epoch",
        "instance_id",
        "member_id",
        "previous_epoch",
        "rack_id",
        "rebalance_timeout_ms",
        "regex",
        "revoking",
        "server_assignor",
        "state",
        "topics",
    )

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.epoch = 0
        self.previous_epoch = -1
        self.state = STABLE
        self.instance_id: str | None = None
        self.rack_id: str | None = None
        self.rebalance_timeout_ms = -1
        self.client_id = ""
        self.client_host = ""
        self.topics: frozenset[str] = frozenset()
        self.regex = ""
        self.server_assignor: str | None = None
        self.classic: Any = None  # ConsumerGroupMemberMetadataValue.ClassicMemberMetadata
        self.assigned: Owned = _EMPTY
        self.revoking: Owned = _EMPTY

    def with_(self, **changes: Any) -> ConsumerGroupMember:
        """A copy with other values."""
        copy = ConsumerGroupMember.__new__(ConsumerGroupMember)
        for name in ConsumerGroupMember.__slots__:
            setattr(copy, name, getattr(self, name))
        for name, value in changes.items():
            setattr(copy, name, value)
        return copy

    @property
    def is_classic(self) -> bool:
        """Whether it speaks the classic protocol, in a group that was upgraded."""
        return self.classic is not None

    def is_reconciled(self, target_epoch: int) -> bool:
        """Whether it has exactly its target of this epoch."""
        return self.state == STABLE and self.epoch == target_epoch

    def has_since(self, epoch: int, topic_id: bytes | None, partition: int) -> bool:
        """Whether the member has had the partition ever since that epoch."""
        if topic_id is None:
            return False
        for owned in (self.assigned, self.revoking):
            since = owned.get(topic_id, {}).get(partition)
            if since is not None:
                return since <= epoch
        return False

    def has_same_metadata(self, other: ConsumerGroupMember) -> bool:
        """Whether everything that the members themselves report is equal."""
        return all(getattr(self, name) == getattr(other, name) for name in _METADATA)

    def has_same_assignment(self, other: ConsumerGroupMember) -> bool:
        """Whether everything that the coordinator determines is equal."""
        return all(getattr(self, name) == getattr(other, name) for name in _ASSIGNMENT)

    # -- records ---------------------------------------------------------------------------------

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> ConsumerGroupMember:
        """A copy with the metadata of the record."""
        return self.with_(
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=frozenset(value.subscribed_topic_names),
            regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def with_assignment(
        self, value: ConsumerGroupCurrentMemberAssignmentValue
    ) -> ConsumerGroupMember:
        """A copy that has the epoch and partitions of the record."""
        known = (STABLE, UNREVOKED_PARTITIONS, UNRELEASED_PARTITIONS)
        return self.with_(
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=value.state if value.state in known else UNKNOWN_STATE,
            assigned=_owned(value.assigned_partitions, value.member_epoch),
            revoking=_owned(value.partitions_pending_revocation, value.member_epoch),
        )


_METADATA = (
    "instance_id",
    "rack_id",
    "rebalance_timeout_ms",
    "client_id",
    "client_host",
    "topics",
    "regex",
    "server_assignor",
    "classic",
)
_ASSIGNMENT = ("epoch", "previous_epoch", "state", "assigned", "revoking")


def _owned(topics: list[Any], member_epoch: int) -> Owned:
    """Partitions with their epochs; a record without these gives them the member's."""
    owned: dict[bytes, dict[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [member_epoch] * len(topic.partitions)
        owned[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return owned
