"""Takes a group in the classic protocol from one generation to the next.

A rebalance is *prepared*: members are told to join, and those that wait for an assignment are sent
back. It is *completed* when all members have joined or the longest rebalance timeout has passed:
the members get the new generation, and the leader also the list of members. The assignment that the
leader sends makes the group *stable*: only then is the generation written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.group.classic.classic_group import (
    COMPLETING,
    EMPTY,
    PREPARING,
    STABLE,
    ClassicGroup,
)
from kbroker.coordinator.group.classic.classic_member import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    ClassicGroupMember,
    MemberSessions,
)
from kbroker.coordinator.records.offsets_topic import GroupMetadataKey, GroupMetadataValue
from kbroker.errors import ErrorCode
from kbroker.metrics.catalog import (
    CLASSIC_GROUPS_COMPLETING,
    CLASSIC_GROUPS_EMPTY,
    CLASSIC_GROUPS_PREPARING,
    CLASSIC_GROUPS_STABLE,
    CLASSIC_REBALANCES,
)
from kbroker.protocol.messages.join_group import JoinGroupResponse
from kbroker.protocol.messages.sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from kbroker.coordinator.group.machine import GroupMachine
    from kbroker.coordinator.machine import CoordinatorOperation
    from kbroker.ipc.rpc import Pending

logger = logging.getLogger(__name__)

GROUPS_IN_STATE = {
    EMPTY: CLASSIC_GROUPS_EMPTY,
    PREPARING: CLASSIC_GROUPS_PREPARING,
    COMPLETING: CLASSIC_GROUPS_COMPLETING,
    STABLE: CLASSIC_GROUPS_STABLE,
}
# BOUND: when no member has joined by the end of a rebalance, it is checked again no sooner than
# this, whatever timeout the members have.
RETRY_DELAY_MS_MIN = 1_000
# A group whose record is below this size cannot exceed any limit of the topic.
SMALL_RECORD_BYTES = 64 << 10


class Rebalances:
    """The rebalances of all groups of one partition. Every method changes soft state."""

    def __init__(self, machine: GroupMachine) -> None:
        self._machine = machine
        self._host = machine.host
        self.sessions = MemberSessions(machine.host, self._expire_session)

    def new_group(self, group_id: str) -> ClassicGroup:
        """Put an empty group into the machine, in place of any of that name."""
        group = ClassicGroup(group_id, self.sessions, self._count_state)
        self._machine.groups[group_id] = group
        return group

    def _count_state(self, state: str, amount: int) -> None:
        self._host.count(GROUPS_IN_STATE[state], amount)

    def _is_present(self, group: ClassicGroup) -> bool:
        return self._machine.groups.get(group.group_id) is group

    # -- members ---------------------------------------------------------------------------------

    def add_member(
        self,
        group: ClassicGroup,
        member: ClassicGroupMember,
        protocol_type: str,
        pending: Pending[Any],
    ) -> None:
        """Add a new member and have it wait."""
        if group.state == PREPARING and group.is_initial:
            group.has_new_member = True
        group.add(member, protocol_type)
        group.wait_for_join(member, pending)
        self.sessions.start(group, member.member_id, NEW_MEMBER_JOIN_TIMEOUT_MS)

    def keep_session(self, group: ClassicGroup, member: ClassicGroupMember) -> None:
        """The member has sent a request: restart its session."""
        self.sessions.start(group, member.member_id, member.session_timeout_ms)

    def remove_member(
        self,
        op: CoordinatorOperation,
        group: ClassicGroup,
        member: ClassicGroupMember,
        error: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID,
    ) -> None:
        """Remove a member; its pending request gets the error. The caller starts the rebalance."""
        self.sessions.cancel(group, member.member_id)
        self.complete_join(op, group, member, failed_join(error))
        self.complete_sync(op, member, SyncGroupResponse(error_code=error))
        group.remove(member)

    def remove_pending(self, group: ClassicGroup, member_id: str) -> None:
        """Forget a member id that was never used to join."""
        self.sessions.cancel(group, member_id)
        group.pending_joins.discard(member_id)

    def _expire_session(
        self, op: CoordinatorOperation, group: ClassicGroup, member_id: str
    ) -> None:
        if not self._is_present(group):
            return
        op.touch()
        if member_id in group.pending_joins:
            logger.info("group %s: %s did not rejoin in time", group.group_id, member_id)
            self.remove_pending(group, member_id)
            self.maybe_complete(op, group)
            self.maybe_forget(group)
            return
        member = group.members.get(member_id)
        if member is None:
            return
        if not member.is_new and (member.join is not None or member.sync is not None):
            return  # it waits for the group, not the group for it; its session continues then
        logger.info("group %s: the session of %s has expired, generation %d",
                    group.group_id, member_id, group.generation)  # fmt: skip
        self.remove_member(op, group, member)
        self.after_removal(op, group, f"the session of {member_id} has expired")

    def after_removal(self, op: CoordinatorOperation, group: ClassicGroup, reason: str) -> None:
        """Members were removed: start a rebalance, or complete the one that waited for them."""
        if group.state in (STABLE, COMPLETING):
            self.prepare(op, group, reason)
        else:
            self.maybe_complete(op, group)

    # -- responses -------------------------------------------------------------------------------

    def complete_join(
        self,
        op: CoordinatorOperation,
        group: ClassicGroup,
        member: ClassicGroupMember,
        response: JoinGroupResponse,
    ) -> None:
        pending = group.end_join(member)
        if pending is not None:
            op.respond(pending, response)

    def complete_sync(
        self, op: CoordinatorOperation, member: ClassicGroupMember, response: SyncGroupResponse
    ) -> None:
        pending, member.sync = member.sync, None
        if pending is not None:
            op.respond(pending, response)

    def fail_all(self, op: CoordinatorOperation, group: ClassicGroup, error: ErrorCode) -> None:
        """Complete all pending joins and syncs with the error; these members must rejoin."""
        for member in group.members.values():
            self.complete_join(op, group, member, failed_join(error, member.member_id))
            self.complete_sync(op, member, SyncGroupResponse(error_code=error))

    def present_generation(
        self, group: ClassicGroup, member: ClassicGroupMember, *, leader: str | None = None
    ) -> JoinGroupResponse:
        """The response to a join: the generation as it is; the leader also gets the members."""
        response = JoinGroupResponse(
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol,
            leader=(group.leader or "") if leader is None else leader,
            member_id=member.member_id,
        )
        if response.leader == member.member_id:
            name = group.protocol or ""
            response.members = [
                JoinGroupResponse.JoinGroupResponseMember(
                    member_id=other.member_id,
                    group_instance_id=other.instance_id,
                    metadata=other.protocols.get(name, b""),
                )
                for other in group.members.values()
            ]
        return response

    # -- the phases ------------------------------------------------------------------------------

    def prepare_or_complete(
        self, op: CoordinatorOperation, group: ClassicGroup, reason: str
    ) -> None:
        """A member has joined: start a rebalance, or complete the one that waited for it."""
        if group.state == PREPARING:
            self.maybe_complete(op, group)
        else:
            self.prepare(op, group, reason)

    def prepare(self, op: CoordinatorOperation, group: ClassicGroup, reason: str) -> None:
        """Start a rebalance of a group that has none, or whose members wait for the leader."""
        logger.info("group %s: rebalance after generation %d (%s), %d members: %s", group.group_id,
                    group.generation, group.state, len(group.members), reason)  # fmt: skip
        if group.state == COMPLETING:
            error = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
            for member in group.members.values():
                if member.sync is not None:
                    self.keep_session(group, member)
                    self.complete_sync(op, member, error)
                member.assignment = b""
        self._end_sync_phase(group)
        group.is_initial = group.state == EMPTY
        group.state = PREPARING
        group.state_timestamp_ms = self._host.wall_ms()
        if group.is_initial:
            group.has_new_member = False
            delay = self._host.config["group.initial.rebalance.delay.ms"]
            left = max(group.rebalance_timeout_ms - delay, 0)
            self._wait(group, delay, self._end_initial_delay, delay, left)
        elif group.has_all_joined:
            self.complete(op, group)
        else:
            self._wait(group, group.rebalance_timeout_ms, self._end_wait)

    def _wait(self, group: ClassicGroup, delay_ms: int, function: Any, *args: Any) -> None:
        """Continue the rebalance later; there is one such timer per group."""
        name = ("classic join", group.group_id)
        self._host.set_timer(name, delay_ms, function, group, *args)

    def _end_initial_delay(
        self, op: CoordinatorOperation, group: ClassicGroup, delay_ms: int, left_ms: int
    ) -> None:
        """A new group waits for more members while some join, up to the rebalance timeout."""
        if not self._is_present(group) or group.state != PREPARING:
            return
        op.touch()
        if not group.has_new_member or left_ms == 0:
            self.complete(op, group)
            return
        group.has_new_member = False
        delay = min(self._host.config["group.initial.rebalance.delay.ms"], left_ms)
        self._wait(group, delay, self._end_initial_delay, delay, max(left_ms - delay_ms, 0))

    def _end_wait(self, op: CoordinatorOperation, group: ClassicGroup) -> None:
        if self._is_present(group) and group.state == PREPARING:
            op.touch()
            self.complete(op, group)

    def maybe_complete(self, op: CoordinatorOperation, group: ClassicGroup) -> None:
        """End the rebalance if all members have joined; a new group always waits for its delay."""
        if group.state == PREPARING and not group.is_initial and group.has_all_joined:
            self.complete(op, group)

    def complete(self, op: CoordinatorOperation, group: ClassicGroup) -> None:
        """Form the next generation from the members that have joined and absent static members."""
        self._host.cancel_timer(("classic join", group.group_id))
        gone = [m for m in group.members.values() if m.join is None and m.instance_id is None]
        if gone:
            logger.info("group %s: removed because they have not rejoined: %s",
                        group.group_id, names(m.member_id for m in gone))  # fmt: skip
            for member in gone:
                self.remove_member(op, group, member)
        if not group.members:
            self._become_empty(op, group)
            return
        before = group.leader
        if not group.ensure_leader():
            logger.info(
                "group %s: no member has joined the rebalance; still waiting", group.group_id
            )
            self._wait(group, max(group.rebalance_timeout_ms, RETRY_DELAY_MS_MIN), self._end_wait)
            return
        if group.leader != before:
            logger.info("group %s: %s is now the leader; %s has not rejoined",
                        group.group_id, group.leader, before)  # fmt: skip
        self._start_generation(op, group)

    def _start_generation(self, op: CoordinatorOperation, group: ClassicGroup) -> None:
        group.generation = group.next_generation()
        group.protocol = group.choose_protocol()
        group.state = COMPLETING
        group.state_timestamp_ms = self._host.wall_ms()
        group.pending_syncs = set(group.members)
        logger.info("group %s: generation %d has %d members and protocol %s, its leader is %s",
                    group.group_id, group.generation, len(group.members), group.protocol,
                    group.leader)  # fmt: skip
        for member in group.members.values():
            self.complete_join(op, group, member, self.present_generation(group, member))
            self.keep_session(group, member)
            member.is_new = False
        name = ("classic sync", group.group_id)
        timeout = group.rebalance_timeout_ms
        self._host.set_timer(name, timeout, self._end_wait_for_sync, group, group.generation)

    def _become_empty(self, op: CoordinatorOperation, group: ClassicGroup) -> None:
        """Write a generation without members; the replay makes the group empty."""
        generation = group.next_generation()
        group.protocol = None
        logger.info("group %s: empty in generation %d", group.group_id, generation)
        record = group.record(generation, {}, self._host.wall_ms())
        if op.refusal is not None:
            # As in Kafka, it is empty here although that cannot be written now. The next
            # coordinator finds its last generation, the sessions of whose members expire there.
            group.load(record)
            return
        op.append(GroupMetadataKey(group=group.group_id), record)

    # -- assignments -----------------------------------------------------------------------------

    def synced(self, group: ClassicGroup, member: ClassicGroupMember) -> None:
        """The member has asked for its assignment."""
        group.pending_syncs.discard(member.member_id)
        if not group.pending_syncs:
            self._host.cancel_timer(("classic sync", group.group_id))

    def _end_sync_phase(self, group: ClassicGroup) -> None:
        group.pending_syncs.clear()
        self._host.cancel_timer(("classic sync", group.group_id))

    def _end_wait_for_sync(
        self, op: CoordinatorOperation, group: ClassicGroup, generation: int
    ) -> None:
        """Remove members that joined a generation but did not ask for its assignment."""
        if not self._is_present(group) or group.generation != generation:
            return
        gone = [group.members[i] for i in sorted(group.pending_syncs) if i in group.members]
        if not gone or group.state not in (COMPLETING, STABLE):
            return
        op.touch()
        text = f"{names(m.member_id for m in gone)} did not ask for an assignment in time"
        for member in gone:
            self.remove_member(op, group, member)
        self.prepare(op, group, text)

    def store(
        self, op: CoordinatorOperation, group: ClassicGroup, assignments: dict[str, bytes]
    ) -> None:
        """Write the leader's assignment; the replay makes the group stable."""
        if op.refusal is not None:
            reason = "its assignment cannot be written now"
            self._reject_syncs(op, group, op.refusal.code, reason)
            return
        record = group.record(group.generation, assignments, self._host.wall_ms())
        if not self.fits(record):
            logger.warning("group %s: its record does not fit into a batch; generation %d gets no "
                           "assignment", group.group_id, group.generation)  # fmt: skip
            code = ErrorCode.UNKNOWN_SERVER_ERROR
            self._reject_syncs(op, group, code, "its record is too large")
            return
        op.append(GroupMetadataKey(group=group.group_id), record)
        missing = [i for i in group.members if i not in assignments]
        if missing:
            logger.warning("group %s: the leader left %s out of the assignment of generation %d",
                           group.group_id, names(missing), group.generation)  # fmt: skip
        logger.info("group %s: received the assignment of generation %d from %s",
                    group.group_id, group.generation, group.leader)  # fmt: skip
        for member in group.members.values():
            if member.sync is not None:
                self.keep_session(group, member)
                assignment = assignments.get(member.member_id, b"")
                self.complete_sync(op, member, assigned(group, assignment))
        self._host.count(CLASSIC_REBALANCES)

    def _reject_syncs(
        self, op: CoordinatorOperation, group: ClassicGroup, code: ErrorCode, reason: str
    ) -> None:
        """There is no assignment for this generation: its members have to join again."""
        for member in group.members.values():
            if member.sync is not None:
                self.keep_session(group, member)
                self.complete_sync(op, member, SyncGroupResponse(error_code=code))
        self.prepare(op, group, reason)

    def fits(self, record: GroupMetadataValue) -> bool:
        """Whether the topic takes a batch with this record."""
        size = 0
        for member in record.members:
            text = len(member.member_id) + len(member.client_id) + len(member.client_host)
            text += len(member.group_instance_id or "")
            size += 4 * text + len(member.subscription) + len(member.assignment) + 64
        return size <= SMALL_RECORD_BYTES or self._fits_exactly(record)

    def _fits_exactly(self, record: GroupMetadataValue) -> bool:
        from kbroker.coordinator.group.batch_size import fits_batch

        encoded = self._machine.records.encode(GroupMetadataKey(group=""), record)
        # The group id is missing in this one; it has a string's length at most.
        return fits_batch(self._host, [encoded], 0x8000)

    # -- the end ---------------------------------------------------------------------------------

    def maybe_forget(self, group: ClassicGroup) -> None:
        """Drop a group that never had a generation and has no pending members."""
        if group.state == EMPTY and not group.is_stored and not group.pending_joins:
            self.forget(group)

    def forget(self, group: ClassicGroup) -> None:
        """Take the group out of the machine, with all its timers."""
        if self._is_present(group):
            del self._machine.groups[group.group_id]
        group.uncount()
        for member_id in (*group.members, *group.pending_joins):
            self.sessions.cancel(group, member_id)
        self._host.cancel_timer(("classic join", group.group_id))
        self._host.cancel_timer(("classic sync", group.group_id))


def failed_join(error: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, member_id=member_id, protocol_name=None)


def assigned(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    """The response to a SyncGroup."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=assignment,
    )


def names(member_ids: Iterable[str]) -> str:
    """Names for a log line, not more than a reader can take in."""
    ids = list(member_ids)
    more = f" and {len(ids) - 10} more" if len(ids) > 10 else ""
    return ", ".join(ids[:10]) + more
