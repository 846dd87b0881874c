"""The state of a group in the classic protocol.

Hard state (the content of the group's record) is the last generation that got its assignment; only
``load`` sets it. Everything that leads from one generation to the next is soft: members that join,
members that wait, a generation without an assignment yet. A crash sets the group back to its
record, and its members join again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.group.classic.classic_member import ClassicGroupMember, MemberSessions
from kbroker.coordinator.group.group import CLASSIC, Group
from kbroker.coordinator.group.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from kbroker.coordinator.records.offsets_topic import GroupMetadataKey, GroupMetadataValue
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.rpc import Pending

if TYPE_CHECKING:
    from kbroker.coordinator.machine import CoordinatorOperation

logger = logging.getLogger(__name__)

EMPTY, PREPARING, COMPLETING = "Empty", "PreparingRebalance", "CompletingRebalance"
STABLE, DEAD = "Stable", "Dead"


CountState = Callable[[str, int], None]


def count_nothing(state: str, amount: int) -> None:
    """Stop counting the group, because it no longer exists."""


class ClassicGroup(Group):
    """One group. Members are in the order in which they joined.

    pending_joins: ids given to clients that have not joined with them yet.
    pending_syncs: members of the present generation that have not asked for their assignment.
    is_initial: the current rebalance began with an empty group.
    has_new_member: a member has joined since the initial delay was last extended.
    is_stored: there is a record of the group.
    is_unfinished: that record names no leader, so a rebalance has to follow.
    protocol_type: empty if unknown.
    """

    __slots__ = (
        "_count_state",
        "_state",
        "_support",
        "_topics",
        "_topics_known",
        "generation",
        "has_new_member",
        "is_initial",
        "is_stored",
        "is_unfinished",
        "leader",
        "members",
        "pending_joins",
        "pending_syncs",
        "protocol",
        "protocol_type",
        "sessions",
        "state_timestamp_ms",
        "static_members",
        "waiting_joins",
    )

    kind = CLASSIC

    def __init__(self, group_id: str, sessions: MemberSessions, count_state: CountState) -> None:
        """count_state: called with a state and by how much its number of groups has changed."""
        super().__init__(group_id)
        self.sessions = sessions
        self._count_state = count_state
        self._state = EMPTY
        count_state(EMPTY, 1)
        self.is_stored = False
        self.is_unfinished = False
        self.is_initial = False
        self.has_new_member = False
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader: str | None = None
        self.state_timestamp_ms = -1  # wall clock
        self.members: dict[str, ClassicGroupMember] = {}
        self.static_members: dict[str, str] = {}  # instance id -> member id
        self.pending_joins: set[str] = set()
        self.pending_syncs: set[str] = set()
        self.waiting_joins = 0
        self._support: dict[str, int] = {}  # protocol -> how many members offer it
        self._topics: frozenset[str] | None = frozenset()
        self._topics_known = True

    # -- as any group ----------------------------------------------------------------------------

    @property
    def state(self) -> str:
        return self._state

    @state.setter
    def state(self, state: str) -> None:
        self._count_state(self._state, -1)
        self._count_state(state, 1)
        self._state = state

    def uncount(self) -> None:
        """The group is removed: take it out of the counts of states."""
        self._count_state(self._state, -1)
        self._count_state = count_nothing

    @property
    def is_empty(self) -> bool:
        return self.state == EMPTY

    @property
    def empty_since_ms(self) -> int | None:
        if self.state != EMPTY or self.pending_joins:
            return None
        return self.state_timestamp_ms

    def subscribes_to(self, topic: str) -> bool:
        if not self._topics_known:
            self._topics, self._topics_known = self._subscribed_topics(), True
        return self._topics is None or topic in self._topics

    def _subscribed_topics(self) -> frozenset[str] | None:
        """The topics of all members, in any protocol that the group may choose."""
        if self.members and self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            for metadata in member.protocols.values():
                subscribed = subscribed_topics(metadata)
                if subscribed is None:
                    return None
                topics |= subscribed
        return frozenset(topics)

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
        if epoch < 0 and self.state == EMPTY:
            return  # an administrator, or a consumer that does not use the group's protocol
        if epoch >= 0 or member_id or instance_id is not None:
            member = self.check_member(member_id, instance_id, "a commit")
            self.check_generation(epoch)
            if not transactional:
                if self.state == COMPLETING:
                    raise WireError(ErrorCode.REBALANCE_IN_PROGRESS)
                self.sessions.start(self, member.member_id, member.session_timeout_ms)
        elif not transactional:
            # COMPAT: producers before TxnOffsetCommit 3 name no member, and are let in.
            raise WireError(ErrorCode.UNKNOWN_MEMBER_ID)

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """In the classic protocol, any client may fetch offsets."""

    def check_deletion(self) -> None:
        if self.state != EMPTY:
            raise WireError(ErrorCode.NON_EMPTY_GROUP)

    def delete(self, op: CoordinatorOperation) -> None:
        op.append(GroupMetadataKey(group=self.group_id), None)

    # -- checks ----------------------------------------------------------------------------------

    def check_member(
        self, member_id: str, instance_id: str | None, what: str
    ) -> ClassicGroupMember:
        """The member that a request names. Raises FENCED_INSTANCE_ID or UNKNOWN_MEMBER_ID."""
        if instance_id is not None:
            present = self.static_members.get(instance_id)
            if present is None:
                raise WireError(ErrorCode.UNKNOWN_MEMBER_ID)
            if present != member_id:
                logger.info("group %s: fenced %s of static %s with member id %s; it is now %s",
                            self.group_id, what, instance_id, member_id, present)  # fmt: skip
                raise WireError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise WireError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise WireError(ErrorCode.ILLEGAL_GENERATION)

    def supports(self, protocol_type: str, protocols: dict[str, bytes]) -> bool:
        """Whether a member with these protocols can be in the group."""
        if self.state == EMPTY or not self.members:
            return bool(protocol_type and protocols)
        if protocol_type != self.protocol_type:
            return False
        return any(self._support.get(name) == len(self.members) for name in protocols)

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long members may take to join: the longest timeout of any member."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    @property
    def has_all_joined(self) -> bool:
        """Whether all members, pending ones included, have joined."""
        return self.waiting_joins == len(self.members) and not self.pending_joins

    # -- members ---------------------------------------------------------------------------------

    def add(self, member: ClassicGroupMember, protocol_type: str) -> None:
        """Add a member; the first one is the leader and determines the group's protocol type."""
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader not in self.members:
            self.leader = member.member_id
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self.members[member.member_id] = member
        self.pending_joins.discard(member.member_id)
        self._count(member, 1)

    def remove(self, member: ClassicGroupMember) -> None:
        """Remove a member, which must not have a pending request any more."""
        assert member.join is None and member.sync is None, member
        del self.members[member.member_id]
        self._count(member, -1)
        if member.instance_id is not None:
            self.static_members.pop(member.instance_id, None)
        if member.member_id == self.leader:
            self.leader = next(iter(self.members), None)
        self.pending_syncs.discard(member.member_id)

    def rename(self, member: ClassicGroupMember, member_id: str) -> None:
        """Give a static member the id of its new instance; it keeps everything else."""
        assert member.join is None and member.sync is None, member
        del self.members[member.member_id]
        self.pending_syncs.discard(member.member_id)
        if member.member_id == self.leader:
            self.leader = member_id
        member.member_id = member_id
        self.members[member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member_id

    def update(self, member: ClassicGroupMember, protocols: dict[str, bytes]) -> None:
        """Replace the protocols of a member."""
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)

    def _count(self, member: ClassicGroupMember, amount: int) -> None:
        self._topics_known = False
        for name in member.protocols:
            count = self._support.get(name, 0) + amount
            if count:
                self._support[name] = count
            else:
                del self._support[name]

    def wait_for_join(
        self, member: ClassicGroupMember, pending: Pending[Any]
    ) -> Pending[Any] | None:
        """Keep the member's join until the next generation; returns its earlier pending join."""
        before, member.join = member.join, pending
        if before is None:
            self.waiting_joins += 1
        return before

    def end_join(self, member: ClassicGroupMember) -> Pending[Any] | None:
        """Take out the member's pending join, which gets its response now."""
        before, member.join = member.join, None
        if before is not None:
            self.waiting_joins -= 1
        return before

    # -- generations -----------------------------------------------------------------------------

    def choose_protocol(self) -> str:
        """The protocol with the most votes among those that every member offers."""
        candidates = {name for name, n in self._support.items() if n == len(self.members)}
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.vote(candidates)
            votes[name] = votes.get(name, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def ensure_leader(self) -> bool:
        """Make sure that the leader is a member that has joined; False if no member has."""
        leader = self.members.get(self.leader or "")
        if leader is None or leader.join is None:
            joined = next((m for m in self.members.values() if m.join is not None), None)
            if joined is None:
                return False
            self.leader = joined.member_id
        return True

    def next_generation(self) -> int:
        """The number of the next generation."""
        return (self.generation + 1) & 0x7FFFFFFF

    def assignments(self) -> dict[str, bytes]:
        """The assignment of each member."""
        return {member.member_id: member.assignment for member in self.members.values()}

    def record(
        self, generation: int, assignments: dict[str, bytes], now_ms: int
    ) -> GroupMetadataValue:
        """The group's record: this generation, with its members and their assignments."""
        protocol = self.protocol if self.members else None
        return GroupMetadataValue(
            protocol_type=self.protocol_type,
            generation=generation,
            protocol=protocol,
            leader=self.leader,
            current_state_timestamp=now_ms,
            members=[
                GroupMetadataValue.MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.protocols.get(protocol or "", b""),
                    assignment=assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ],
        )

    def load(self, value: GroupMetadataValue) -> list[ClassicGroupMember]:
        """Take over the state of a record, in its replay; returns the members removed by this.

        Members that are known keep what the record does not hold: their other protocols, and what
        they wait for. A record of the generation whose successor is being prepared does not end
        that: it comes of a group that was moved here from the consumer protocol.
        """
        self.is_stored = True
        self.is_unfinished = value.leader is None
        before, self.members = self.members, {}
        self.static_members = {}
        self._support = {}
        self.waiting_joins = 0
        self.leader = None
        self.protocol_type = value.protocol_type
        for row in value.members:
            member = before.pop(row.member_id, None) or loaded_member(value, row)
            member.assignment = bytes(row.assignment)
            self.add(member, value.protocol_type)
            self.waiting_joins += member.join is not None
        if value.leader in self.members:
            self.leader = value.leader
        self.pending_syncs &= self.members.keys()
        if self.state != PREPARING or value.generation != self.generation:
            self.state = STABLE if self.members else EMPTY
            self.state_timestamp_ms = value.current_state_timestamp
        self.generation = value.generation
        self.protocol = value.protocol
        self._topics_known = False
        return list(before.values())


def loaded_member(value: GroupMetadataValue, row: Any) -> ClassicGroupMember:
    """A member from its group's record."""
    timeout = row.rebalance_timeout
    return ClassicGroupMember(
        row.member_id,
        row.group_instance_id,
        row.client_id,
        row.client_host,
        row.session_timeout if timeout == -1 else timeout,
        row.session_timeout,
        {value.protocol or "": row.subscription},
        row.assignment,
    )
