"""A group of the consumer protocol (KIP-848), as its records describe it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, NamedTuple

from kbroker.coordinator.group.assignors import NOTHING, Assignment
from kbroker.coordinator.group.consumer import consumer_records as records
from kbroker.coordinator.group.consumer.consumer_member import ConsumerGroupMember
from kbroker.coordinator.group.consumer.consumer_sight import NOTHING as NONE_HIDDEN
from kbroker.coordinator.group.consumer.consumer_sight import Sight
from kbroker.coordinator.group.group import CONSUMER, Group
from kbroker.errors import ErrorCode, WireError

if TYPE_CHECKING:
    from kbroker.coordinator.machine import CoordinatorOperation

logger = logging.getLogger(__name__)

EMPTY, ASSIGNING, RECONCILING, STABLE = "Empty", "Assigning", "Reconciling", "Stable"

NONE_MATCHED: frozenset[str] = frozenset()
# BOUND: topics that a group records for its patterns; above this it matches all existing ones.
CHANGED_TOPICS_MAX = 1_000
# BOUND: instance ids that a member has had before; above this the oldest is free again.
FORMER_INSTANCES_MAX = 8

# The first OffsetCommit that carries a member epoch.
FIRST_EPOCH_COMMIT = 9


class ResolvedRegex(NamedTuple):
    """The topics that a pattern matches.

    version: of the image it was matched against, which means nothing to another process.
    wall_ms: when that was.
    """

    topics: frozenset[str]
    version: int
    wall_ms: int


def matched_topics(
    member: ConsumerGroupMember, resolved: Mapping[str, ResolvedRegex]
) -> frozenset[str]:
    """Names of the topics that match the member's pattern."""
    matched = resolved.get(member.regex) if member.regex else None
    return NONE_MATCHED if matched is None else matched.topics


def subscribed_names(
    member: ConsumerGroupMember,
    resolved: Mapping[str, ResolvedRegex],
    hidden: frozenset[str] = NONE_HIDDEN,
) -> frozenset[str]:
    """Names of the topics a member subscribes to, by name or by pattern.

    hidden: those that match its pattern, but that it may not describe.
    """
    matched = matched_topics(member, resolved)
    if hidden:
        matched -= hidden
    if not matched:
        return member.topics
    return member.topics | matched if member.topics else matched


class ConsumerGroup(Group):
    """Changed only by replay, except for soft state, which is marked.

    epoch: of the group, raised whenever the target has to be recomputed. target_epoch: the group
        epoch that ``targets`` was computed for.
    owners: topic id -> partition -> who has it, to consume or to revoke.
    name_counts, regex_counts: how many members subscribe to a topic by name, to a pattern.
    is_stale: soft. Topics may have changed since the metadata hash was computed; true after a load.
    changed_topics: soft. What may have changed for patterns since they were matched last; None for
        any topic, as after a load. matched_ms: soft, when that was, on the monotonic clock.
    sights: soft. Of members with a pattern that have sent a heartbeat since the load.
    """

    __slots__ = (
        "changed_topics",
        "classic_count",
        "epoch",
        "former_instances",
        "has_partition_metadata",
        "is_stale",
        "matched_ms",
        "members",
        "metadata_hash",
        "name_counts",
        "owners",
        "regex_counts",
        "resolved",
        "server_assignors",
        "sights",
        "static_members",
        "target_epoch",
        "target_ms",
        "targets",
    )

    kind = CONSUMER

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.epoch = 0
        self.target_epoch = 0
        self.target_ms = 0  # when the target was computed, wall clock; 0 if that is unknown
        self.metadata_hash = 0
        self.members: dict[str, ConsumerGroupMember] = {}
        self.targets: dict[str, Assignment] = {}
        self.static_members: dict[str, str] = {}
        self.former_instances: dict[str, list[str]] = {}  # by member id
        self.owners: dict[bytes, dict[int, str]] = {}
        self.name_counts: dict[str, int] = {}
        self.regex_counts: dict[str, int] = {}
        self.resolved: dict[str, ResolvedRegex] = {}
        self.server_assignors: dict[str, int] = {}
        self.classic_count = 0
        self.has_partition_metadata = False
        self.is_stale = True
        self.changed_topics: set[str] | None = None
        self.matched_ms: int | None = None
        self.sights: dict[str, Sight] = {}

    # -- Group -----------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        if not self.members:
            return EMPTY
        if self.epoch > self.target_epoch:
            return ASSIGNING
        if all(member.is_reconciled(self.target_epoch) for member in self.members.values()):
            return STABLE
        return RECONCILING

    protocol_type = "consumer"

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def empty_since_ms(self) -> int | None:
        return None if self.members else -1

    def subscribes_to(self, topic: str) -> bool:
        if topic in self.name_counts:
            return True
        return any(topic in regex.topics for regex in self.resolved.values())

    def note_changed(self, topics: Set[str]) -> None:
        """Topics were created or deleted, or their partitions have changed. Soft state."""
        if not topics.isdisjoint(self.name_counts):
            self.is_stale = True
        if self.resolved:
            self.is_stale = self.is_stale or any(
                not topics.isdisjoint(resolved.topics) for resolved in self.resolved.values()
            )
            if self.changed_topics is not None:
                self.changed_topics |= topics
                if len(self.changed_topics) > CHANGED_TOPICS_MAX:
                    self.changed_topics = None

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        *,
        version: int,
        transactional: bool = False,
        partitions: Iterable[tuple[bytes | None, int]] | None = None,
    ) -> None:
        if epoch < 0 and not self.members:
            return
        if transactional and epoch == -1 and not member_id and instance_id is None:
            return
        member = self.member(member_id)
        if not transactional and not member.is_classic and version < FIRST_EPOCH_COMMIT:
            text = f"a member of the consumer protocol needs OffsetCommit {FIRST_EPOCH_COMMIT}"
            raise WireError(ErrorCode.UNSUPPORTED_VERSION, text)
        if epoch < member.epoch and partitions is not None:
            # Partitions it has owned since before its epoch are still its own (KIP-1251).
            if all(member.has_since(epoch, *partition) for partition in partitions):
                return
        _check_epoch(member, epoch)

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        if not member_id and epoch < 0:
            return
        _check_epoch(self.member(member_id or ""), epoch)

    def check_deletion(self) -> None:
        if self.members:
            raise WireError(ErrorCode.NON_EMPTY_GROUP)

    def delete(self, op: CoordinatorOperation) -> None:
        for key, value in records.without_group(self, sorted(self.members)):
            op.append(key, value)

    # -- what it is asked ------------------------------------------------------------------------

    def member(self, member_id: str) -> ConsumerGroupMember:
        """Raises UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            text = f"{member_id!r} is not a member of group {self.group_id}"
            raise WireError(ErrorCode.UNKNOWN_MEMBER_ID, text)
        return member

    def static_member(self, instance_id: str | None) -> ConsumerGroupMember | None:
        """The member of that instance."""
        if instance_id is None:
            return None
        return self.members.get(self.static_members.get(instance_id, ""))

    def static_member_or_raise(self, instance_id: str, member_id: str) -> ConsumerGroupMember:
        """The member of that instance. Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        known = self.static_member(instance_id)
        if known is None:
            text = f"there is no member of {instance_id}"
            raise WireError(ErrorCode.UNKNOWN_MEMBER_ID, text)
        if known.member_id != member_id:
            text = f"{known.member_id} is the member of {instance_id} now, not {member_id}"
            logger.info("group %s: %s", self.group_id, text)
            raise WireError(ErrorCode.FENCED_INSTANCE_ID, text)
        return known

    def successor(self, known: ConsumerGroupMember, member_id: str) -> ConsumerGroupMember:
        """A new member that replaces one with the same instance id, but starts over."""
        logger.info(
            "group %s: member %s replaces %s as %s",
            self.group_id,
            member_id,
            known.member_id,
            known.instance_id,
        )
        return known.with_(member_id=member_id, epoch=0, previous_epoch=0)

    def target_of(self, member: ConsumerGroupMember) -> Assignment:
        """The target of a member, or of the member with the same instance id that it replaces."""
        target = self.targets.get(member.member_id)
        if target is None and member.instance_id is not None:
            target = self.targets.get(self.static_members.get(member.instance_id, ""))
        return NOTHING if target is None else target

    def is_free_for(self, topic_id: bytes, partition: int, member_ids: Iterable[str]) -> bool:
        """Whether no other member has the partition."""
        owner = self.owners.get(topic_id, {}).get(partition)
        return owner is None or owner in member_ids

    def waits_for_others(self, member: ConsumerGroupMember) -> bool:
        """Whether another member still has a partition of this member's target."""
        own = (member.member_id,)
        return any(
            partition not in member.assigned.get(topic_id, {})
            and not self.is_free_for(topic_id, partition, own)
            for topic_id, partitions in self.target_of(member).items()
            for partition in partitions
        )

    # -- replay ----------------------------------------------------------------------------------

    def put(self, member: ConsumerGroupMember) -> None:
        """A member is new or has changed."""
        old = self.members.get(member.member_id)
        self.members[member.member_id] = member
        if old is not None:
            self._count_out(old)
            self._release(old)
            self._change_instance(old, member)
        self._count_in(member)
        for topic_id, partitions in _both(member):
            owners = self.owners.setdefault(topic_id, {})
            for partition in partitions:
                owners[partition] = member.member_id
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id

    def remove(self, member_id: str) -> None:
        """A member was removed."""
        old = self.members.pop(member_id, None)
        self.sights.pop(member_id, None)
        if old is None:
            return
        self._count_out(old)
        self._release(old)
        for instance in (old.instance_id, *self.former_instances.pop(member_id, ())):
            self._free_instance(instance, member_id)

    def _release(self, member: ConsumerGroupMember) -> None:
        # If a compacted log still has a record of an old owner, the newer owner's record wins.
        for topic_id, partitions in _both(member):
            owners = self.owners.get(topic_id)
            if owners is None:
                continue
            for partition in partitions:
                if owners.get(partition) == member.member_id:
                    del owners[partition]
            if not owners:
                del self.owners[topic_id]

    def _change_instance(self, old: ConsumerGroupMember, member: ConsumerGroupMember) -> None:
        """COMPAT: an instance id that a member had before is its own until it leaves."""
        if old.instance_id is None or old.instance_id == member.instance_id:
            return
        former = self.former_instances.setdefault(member.member_id, [])
        former.append(old.instance_id)
        if member.instance_id in former:
            former.remove(member.instance_id)
        if len(former) > FORMER_INSTANCES_MAX:
            self._free_instance(former.pop(0), member.member_id)

    def _free_instance(self, instance: str | None, member_id: str) -> None:
        if instance is not None and self.static_members.get(instance) == member_id:
            del self.static_members[instance]

    def _count_in(self, member: ConsumerGroupMember) -> None:
        for name in member.topics:
            self.name_counts[name] = self.name_counts.get(name, 0) + 1
        if member.regex:
            self.regex_counts[member.regex] = self.regex_counts.get(member.regex, 0) + 1
        if member.server_assignor is not None:
            known = self.server_assignors.get(member.server_assignor, 0)
            self.server_assignors[member.server_assignor] = known + 1
        self.classic_count += member.is_classic

    def _count_out(self, member: ConsumerGroupMember) -> None:
        for name in member.topics:
            _decrement(self.name_counts, name)
        if member.regex:
            _decrement(self.regex_counts, member.regex)
        if member.server_assignor is not None:
            _decrement(self.server_assignors, member.server_assignor)
        self.classic_count -= member.is_classic


def _check_epoch(member: ConsumerGroupMember, epoch: int) -> None:
    if epoch == member.epoch:
        return
    text = f"epoch {epoch} is not the member's ({member.epoch})"
    code = ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH
    raise WireError(code, text)


def _both(member: ConsumerGroupMember) -> Iterator[tuple[bytes, Iterable[int]]]:
    yield from member.assigned.items()
    yield from member.revoking.items()


def _decrement(counts: dict[str, int], name: str) -> None:
    if counts[name] == 1:
        del counts[name]
    else:
        counts[name] -= 1
