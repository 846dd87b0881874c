"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: the requests of the classic group protocol.

For a group of the consumer protocol (KIP-848) they are passed on to ``machine.consumer``, which has
``classic_join``, ``classic_sync``, ``classic_heartbeat`` and ``classic_leave``, called as handlers
are. A group that changes its protocol leaves through ``release`` and comes back through
``ClassicProtocol.adopt``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.group.administration import GroupAdministration
from kbroker.coordinator.group.classic.classic_group import (
    COMPLETING,
    EMPTY,
    PREPARING,
    STABLE,
    ClassicGroup,
)
from kbroker.coordinator.group.classic.classic_member import (
    ClassicGroupMember,
    joining_member,
    new_member_id,
    protocols_of,
    rebalance_timeout_of,
)
from kbroker.coordinator.group.classic.classic_rebalance import (
    Rebalances,
    assigned,
    failed_join,
    names,
)
from kbroker.coordinator.group.group import CLASSIC, CONSUMER
from kbroker.coordinator.group.machine import GroupMachine, Part
from kbroker.coordinator.group.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from kbroker.coordinator.records.offsets_topic import GroupMetadataKey, GroupMetadataValue
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.rpc import Pending
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.heartbeat import HeartbeatResponse
from kbroker.protocol.messages.join_group import JoinGroupResponse
from kbroker.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from kbroker.protocol.messages.sync_group import SyncGroupResponse
from kbroker.types import Offset

if TYPE_CHECKING:
    from kbroker.coordinator.machine import Call, CoordinatorOperation

logger = logging.getLogger(__name__)

# The first version of JoinGroup in which a client joins with an id it was given (KIP-394), and the
# first in which a leader learns that it can skip the assignment (KIP-814).
MEMBER_ID_REQUIRED_VERSION = 4
SKIP_ASSIGNMENT_VERSION = 9
# The first version of SyncGroup that names the protocol.
SYNC_PROTOCOL_VERSION = 5
# The first version of LeaveGroup with several members.
LEAVE_BATCH_VERSION = 3


class ClassicProtocol(Part):
    """The part of the machine for groups of kind ``classic``."""

    def __init__(self, machine: GroupMachine) -> None:
        super().__init__(machine)
        machine.classic = self
        self.rebalances = Rebalances(machine)
        self.sessions = self.rebalances.sessions
        self.handlers = {
            ApiKey.JOIN_GROUP: self.join,
            ApiKey.SYNC_GROUP: self.sync,
            ApiKey.HEARTBEAT: self.heartbeat,
            ApiKey.LEAVE_GROUP: self.leave,
            **GroupAdministration(machine).handlers,
        }
        self.replayers = {GroupMetadataKey: self._replay}

    # -- life ------------------------------------------------------------------------------------

    def _replay(
        self, offset: Offset, producer_id: int, key: Any, value: GroupMetadataValue | None
    ) -> None:
        group = self.machine.groups.get(key.group)
        if value is None:
            if isinstance(group, ClassicGroup):
                self.rebalances.forget(group)
                for member in group.members.values():
                    _fail(group, member, WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        if not isinstance(group, ClassicGroup):
            group = self.rebalances.new_group(key.group)
        for member in group.load(value):
            self.sessions.cancel(group, member.member_id)
            _fail(group, member, WireError(ErrorCode.UNKNOWN_MEMBER_ID))

    def loaded(self, op: CoordinatorOperation) -> None:
        """Restart the sessions; a group that is now too large has to rebalance to its size."""
        largest = self.host.config["group.max.size"]
        for group in list(self.machine.groups.values()):
            if not isinstance(group, ClassicGroup):
                continue
            op.touch()
            for member in group.members.values():
                self.rebalances.keep_session(group, member)
            if group.is_unfinished and group.members:
                self.rebalances.prepare(op, group, "it has migrated from the consumer protocol")
            elif len(group.members) > largest:
                text = f"{len(group.members)} members are more than group.max.size"
                self.rebalances.prepare(op, group, text)

    def close(self, error: Exception) -> None:
        for group in self.machine.groups.values():
            if isinstance(group, ClassicGroup):
                group.uncount()
                for member in group.members.values():
                    _fail(group, member, error)

    # -- KIP-848 ---------------------------------------------------------------------------------

    def release(self, op: CoordinatorOperation, group: ClassicGroup) -> None:
        """The group migrates to the consumer protocol: members with pending requests must rejoin.

        The caller has called ``op.touch`` and appends the tombstone (``group.delete``), whose
        replay drops the group.
        """
        self.rebalances.fail_all(op, group, ErrorCode.REBALANCE_IN_PROGRESS)

    def adopt(
        self,
        op: CoordinatorOperation,
        group_id: str,
        generation: int,
        members: list[ClassicGroupMember],
        *,
        reason: str | None,
    ) -> ClassicGroup:
        """Take over a group from the consumer protocol; its members bring their assignments.

        The caller has called ``op.touch`` and appended the tombstones of the group it had. reason:
        of the rebalance that this starts; None if none is needed.
        """
        assert members, group_id
        group = self.rebalances.new_group(group_id)
        key, record = self._take_over(group, generation, members)
        if reason is not None:
            # A crash must not turn an assignment that was never returned into a generation.
            record.leader = None
        op.append(key, record)
        for member in members:
            self.rebalances.keep_session(group, member)
        if reason is not None:
            self.rebalances.prepare(op, group, reason)
        return group

    def adoption(
        self, group_id: str, generation: int, members: list[ClassicGroupMember]
    ) -> tuple[GroupMetadataKey, GroupMetadataValue]:
        """The record that ``adopt`` would write."""
        trial = ClassicGroup(group_id, self.rebalances.sessions, lambda state, amount: None)
        return self._take_over(trial, generation, members)

    def _take_over(
        self, group: ClassicGroup, generation: int, members: list[ClassicGroupMember]
    ) -> tuple[GroupMetadataKey, GroupMetadataValue]:
        for member in members:
            group.add(member, CONSUMER_PROTOCOL_TYPE)
        group.generation = generation
        group.protocol = group.choose_protocol()
        group.state = STABLE
        record = group.record(generation, group.assignments(), self.host.wall_ms())
        return GroupMetadataKey(group=group.group_id), record

    # -- JoinGroup -------------------------------------------------------------------------------

    def join(self, op: CoordinatorOperation, call: Call) -> Pending[Any] | JoinGroupResponse:
        request = call.request
        config = self.host.config
        if not request.group_id:
            return failed_join(ErrorCode.INVALID_GROUP_ID, request.member_id)
        timeout = request.session_timeout_ms
        if (
            not config["group.min.session.timeout.ms"]
            <= timeout
            <= config["group.max.session.timeout.ms"]
        ):
            return failed_join(ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id)
        group = self.machine.groups.get(request.group_id)
        if group is not None and group.kind == CONSUMER and not group.is_empty:
            return self.machine.consumer.classic_join(op, call)
        if group is not None and group.kind not in (CLASSIC, CONSUMER):
            return failed_join(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        protocols = protocols_of(request)
        if not isinstance(group, ClassicGroup):
            if request.member_id:
                return failed_join(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            if not request.protocol_type or not protocols:
                return failed_join(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if group is not None:
                op.ensure_writable()
            op.touch()
            if group is not None:
                group.delete(op)
            group = self.rebalances.new_group(request.group_id)
        if not self._has_room(group, request):
            return self._turn_away(op, group, request)
        if not group.supports(request.protocol_type, protocols):
            return failed_join(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        if request.member_id:
            return self._join_known(op, call, group, protocols)
        if request.group_instance_id is not None:
            return self._join_static(op, call, group, protocols)
        return self._join_new(op, call, group)

    def _has_room(self, group: ClassicGroup, request: Any) -> bool:
        """Whether ``group.max.size`` allows the member to join or stay."""
        largest: int = self.host.config["group.max.size"]
        member = group.members.get(
            request.member_id or group.static_members.get(request.group_instance_id, "")
        )
        if group.state == EMPTY:
            return True
        if group.state == PREPARING:
            # Only joined members count: after the limit was lowered, the last ones to rejoin are
            # rejected.
            return (member is not None and member.join is not None) or group.waiting_joins < largest
        return member is not None or len(group.members) < largest

    def _turn_away(
        self, op: CoordinatorOperation, group: ClassicGroup, request: Any
    ) -> JoinGroupResponse:
        member = group.members.get(request.member_id)
        if member is not None or request.member_id in group.pending_joins:
            op.touch()
            if member is not None:
                self.rebalances.remove_member(op, group, member)
            else:
                self.rebalances.remove_pending(group, request.member_id)
            self.rebalances.maybe_complete(op, group)
        logger.info("group %s: rejected %s, group.max.size is reached",
                    group.group_id, request.member_id or "another member")  # fmt: skip
        return failed_join(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _join_new(
        self, op: CoordinatorOperation, call: Call, group: ClassicGroup
    ) -> Pending[Any] | JoinGroupResponse:
        """The join of a dynamic member without an id."""
        op.touch()
        member_id = new_member_id(call.client_id, None)
        if call.version >= MEMBER_ID_REQUIRED_VERSION:
            group.pending_joins.add(member_id)
            self.sessions.start(group, member_id, call.request.session_timeout_ms)
            logger.debug("group %s: asking %s to rejoin as %s",
                         group.group_id, call.client_id, member_id)  # fmt: skip
            return failed_join(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        return self._add(op, call, group, member_id)

    def _add(
        self, op: CoordinatorOperation, call: Call, group: ClassicGroup, member_id: str
    ) -> Pending[Any]:
        request = call.request
        pending: Pending[Any] = Pending()
        member = joining_member(call, member_id)
        self.rebalances.add_member(group, member, request.protocol_type, pending)
        reason = f"{member_id} joins{_given(request)}"
        self.rebalances.prepare_or_complete(op, group, reason)
        return pending

    def _join_static(
        self, op: CoordinatorOperation, call: Call, group: ClassicGroup, protocols: dict[str, bytes]
    ) -> Pending[Any] | JoinGroupResponse:
        """The join of a static member that was (re)started: it replaces its predecessor."""
        request = call.request
        present = group.static_members.get(request.group_instance_id)
        member_id = new_member_id(call.client_id, request.group_instance_id)
        if present is None:
            op.touch()
            return self._add(op, call, group, member_id)
        if group.state not in (PREPARING, COMPLETING):
            op.ensure_writable()
        member = group.members[present]
        old_leader = group.leader or ""
        old_topics = _topics(group, member)
        op.touch()
        logger.info("group %s: static member %s now has member id %s; fenced %s",
                    group.group_id, request.group_instance_id, member_id, present)  # fmt: skip
        self._replace(op, call, group, member, member_id, protocols)
        if group.state == PREPARING:
            pending = self._wait(op, group, member)
            self.rebalances.maybe_complete(op, group)
            return pending
        reason = f"static member {request.group_instance_id} joins{_given(request)}"
        if group.state == COMPLETING:
            # The leader may have got the old member id: its assignment would be lost.
            pending = self._wait(op, group, member)
            self.rebalances.prepare(op, group, reason)
            return pending
        is_same = group.choose_protocol() == group.protocol and _topics(group, member) == old_topics
        record = group.record(group.generation, group.assignments(), group.state_timestamp_ms)
        if not is_same or not self.rebalances.fits(record):
            pending = self._wait(op, group, member)
            self.rebalances.prepare(op, group, f"{reason} with another subscription")
            return pending
        # The member has rejoined unchanged: there is no rebalance, only its id has changed.
        op.append(GroupMetadataKey(group=group.group_id), record)
        if call.version < SKIP_ASSIGNMENT_VERSION:
            # A leader would compute an unnecessary assignment, so it does not learn that it is the
            # leader.
            return self.rebalances.present_generation(group, member, leader=old_leader)
        response = self.rebalances.present_generation(group, member)
        response.skip_assignment = group.leader == member.member_id
        return response

    def _replace(
        self,
        op: CoordinatorOperation,
        call: Call,
        group: ClassicGroup,
        member: ClassicGroupMember,
        member_id: str,
        protocols: dict[str, bytes],
    ) -> None:
        """Give a static member its new id and what it has joined with; fence the old one."""
        fenced = ErrorCode.FENCED_INSTANCE_ID
        was_synced = member.member_id not in group.pending_syncs
        self.sessions.cancel(group, member.member_id)
        self.rebalances.complete_join(op, group, member, failed_join(fenced, member.member_id))
        self.rebalances.complete_sync(op, member, SyncGroupResponse(error_code=fenced))
        group.rename(member, member_id)
        if not was_synced and group.state == STABLE:
            group.pending_syncs.add(member_id)
        member.is_new = False
        member.client_id, member.client_host = call.client_id, call.client_host
        self._update(group, member, call.request, protocols)
        self.rebalances.keep_session(group, member)

    def _join_known(
        self, op: CoordinatorOperation, call: Call, group: ClassicGroup, protocols: dict[str, bytes]
    ) -> Pending[Any] | JoinGroupResponse:
        """The join of a member with an id: a known one, or one that it was just given."""
        request = call.request
        member_id = request.member_id
        if member_id in group.pending_joins and request.group_instance_id is None:
            op.touch()
            return self._add(op, call, group, member_id)
        try:
            member = group.check_member(member_id, request.group_instance_id, "a join")
        except WireError as error:
            return failed_join(error.code, member_id)
        op.touch()
        is_same = member.matches(protocols)
        if group.state == COMPLETING and is_same:
            # The member may not have received the response to its join.
            self.rebalances.keep_session(group, member)
            return self.rebalances.present_generation(group, member)
        if group.state == STABLE and is_same and group.leader != member_id:
            self.rebalances.keep_session(group, member)
            return self.rebalances.present_generation(group, member)
        # A leader that joins a stable group requests a rebalance: it has seen a topic change.
        self._update(group, member, request, protocols)
        pending = self._wait(op, group, member)
        who = "leader" if group.leader == member_id else "member"
        what = "joins again" if is_same else "joins with another subscription"
        reason = f"{who} {member_id} {what}{_given(request)}"
        self.rebalances.prepare_or_complete(op, group, reason)
        return pending

    def _update(
        self,
        group: ClassicGroup,
        member: ClassicGroupMember,
        request: Any,
        protocols: dict[str, bytes],
    ) -> None:
        group.update(member, protocols)
        member.rebalance_timeout_ms = rebalance_timeout_of(request)
        member.session_timeout_ms = request.session_timeout_ms

    def _wait(
        self, op: CoordinatorOperation, group: ClassicGroup, member: ClassicGroupMember
    ) -> Pending[Any]:
        """Keep the member's request pending; its earlier pending request gets an error."""
        pending: Pending[Any] = Pending()
        before = group.wait_for_join(member, pending)
        if before is not None:
            error = failed_join(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
            op.respond(before, error)
        return pending

    # -- SyncGroup -------------------------------------------------------------------------------

    def sync(self, op: CoordinatorOperation, call: Call) -> Pending[Any] | SyncGroupResponse:
        request = call.request
        if call.version >= SYNC_PROTOCOL_VERSION and None in (
            request.protocol_type,
            request.protocol_name,
        ):
            raise WireError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        group = self._group(request.group_id)
        if group is None:
            return self.machine.consumer.classic_sync(op, call)
        member = group.check_member(request.member_id, request.group_instance_id, "a sync")
        group.check_generation(request.generation_id)
        self._check_protocol(group, call)
        if group.state == PREPARING:
            raise WireError(ErrorCode.REBALANCE_IN_PROGRESS)
        op.touch()
        self.rebalances.synced(group, member)
        if group.state == STABLE:
            return assigned(group, member.assignment)
        before, member.sync = member.sync, Pending()
        pending = member.sync
        if before is not None:
            op.respond(before, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        if group.leader == member.member_id:
            assignments = {a.member_id: a.assignment for a in request.assignments}
            self.rebalances.store(op, group, assignments)
        return pending

    def _check_protocol(self, group: ClassicGroup, call: Call) -> None:
        """Check the protocol that the member names, from version 5 on."""
        request = call.request
        if call.version >= SYNC_PROTOCOL_VERSION and (
            request.protocol_type != group.protocol_type or request.protocol_name != group.protocol
        ):
            raise WireError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _group(self, group_id: str) -> ClassicGroup | None:
        """The group of a member's request; None if it is one of the consumer protocol."""
        if not group_id:
            raise WireError(ErrorCode.INVALID_GROUP_ID)
        group = self.machine.groups.get(group_id)
        if isinstance(group, ClassicGroup):
            return group
        if group is None or group.kind != CONSUMER:
            raise WireError(ErrorCode.UNKNOWN_MEMBER_ID)
        return None

    # -- Heartbeat -------------------------------------------------------------------------------

    def heartbeat(self, op: CoordinatorOperation, call: Call) -> Any:
        request = call.request
        group = self._group(request.group_id)
        if group is None:
            return self.machine.consumer.classic_heartbeat(op, call)
        member = group.check_member(request.member_id, request.group_instance_id, "a heartbeat")
        group.check_generation(request.generation_id)
        self.rebalances.keep_session(group, member)
        if group.state == PREPARING:
            return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        return HeartbeatResponse()

    # -- LeaveGroup ------------------------------------------------------------------------------

    def leave(self, op: CoordinatorOperation, call: Call) -> Any:
        request = call.request
        if call.version < LEAVE_BATCH_VERSION:
            identity = LeaveGroupRequest.MemberIdentity(member_id=request.member_id)
            request.members, request.member_id = [identity], ""
        try:
            group = self._group(request.group_id)
        except WireError as error:
            if error.code != ErrorCode.UNKNOWN_MEMBER_ID:
                raise
            return left(call, [error.code] * len(request.members))
        if group is None:
            return self.machine.consumer.classic_leave(op, call)
        before = set(group.members)
        codes = []
        for identity in request.members:
            try:
                self._leave_one(op, group, identity)
                codes.append(ErrorCode.NONE)
            except WireError as error:
                codes.append(error.code)
        gone = before - group.members.keys()
        if gone:
            self.rebalances.after_removal(op, group, f"left: {names(sorted(gone))}")
        elif op.touched:
            self.rebalances.maybe_complete(op, group)
            self.rebalances.maybe_forget(group)
        return left(call, codes)

    def _leave_one(self, op: CoordinatorOperation, group: ClassicGroup, identity: Any) -> None:
        """Remove one member. An administrator names a static member by its instance only."""
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if member_id in group.pending_joins:
            op.touch()
            self.rebalances.remove_pending(group, member_id)
            return
        if not member_id and instance_id is not None:
            member_id = group.static_members.get(instance_id, "")
        member = group.check_member(member_id, instance_id, "a leave")
        op.touch()
        logger.info("group %s: %s leaves%s", group.group_id, member_id, _given(identity))
        self.rebalances.remove_member(op, group, member)


def left(call: Call, codes: list[ErrorCode]) -> LeaveGroupResponse:
    """The response to a LeaveGroup with the code of each of its members."""
    if call.version < LEAVE_BATCH_VERSION:
        return LeaveGroupResponse(error_code=codes[0])
    members = [
        LeaveGroupResponse.MemberResponse(
            member_id=identity.member_id,
            group_instance_id=identity.group_instance_id,
            error_code=code,
        )
        for identity, code in zip(call.request.members, codes, strict=True)
    ]
    return LeaveGroupResponse(members=members)


def _given(named: Any) -> str:
    """The reason that a client gave (KIP-800), for the log."""
    return f" ({named.reason[:255]})" if named.reason else ""


def _topics(group: ClassicGroup, member: ClassicGroupMember) -> frozenset[str] | None:
    """The topics that a consumer subscribes to in the group's protocol."""
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    return subscribed_topics(member.protocols.get(group.protocol or "", b""))


def _fail(group: ClassicGroup, member: ClassicGroupMember, error: Exception) -> None:
    """Fail the member's pending request."""
    for pending in (group.end_join(member), member.sync):
        if pending is not None:
            pending.resolve(error=error)
    member.sync = None
