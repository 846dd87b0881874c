"""Members that speak the classic protocol in a group of the consumer protocol.

There is no leader, and no request waits: the coordinator assigns. A join is one step of the
reconciliation (which a member of the other kind takes with a heartbeat), the sync after it returns
what the member may consume, and heartbeats tell it when to rejoin.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.group import subscription
from kbroker.coordinator.group.classic.classic_member import (
    new_member_id,
    protocols_of,
    rebalance_timeout_of,
)
from kbroker.coordinator.group.classic.classic_protocol import MEMBER_ID_REQUIRED_VERSION, left
from kbroker.coordinator.group.classic.classic_rebalance import failed_join
from kbroker.coordinator.group.consumer import consumer_migration, consumer_records
from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup
from kbroker.coordinator.group.consumer.consumer_member import (
    UNRELEASED_PARTITIONS,
    UNREVOKED_PARTITIONS,
    ConsumerGroupMember,
)
from kbroker.coordinator.group.consumer.consumer_update import assignment_wait_ms
from kbroker.coordinator.group.subscription import CONSUMER_PROTOCOL_TYPE
from kbroker.errors import ErrorCode, WireError
from kbroker.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kbroker.protocol.messages.heartbeat import HeartbeatResponse
from kbroker.protocol.messages.join_group import JoinGroupResponse
from kbroker.protocol.messages.sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from kbroker.coordinator.group.consumer.consumer import ConsumerProtocol
    from kbroker.coordinator.machine import Call, CoordinatorOperation
    from kbroker.protocol.messages.consumer_protocol import ConsumerProtocolSubscription

logger = logging.getLogger(__name__)

# Prefixes of timer names: a member must rejoin, or has joined and must sync.
JOIN, SYNC = "consumer join", "consumer sync"


class ClassicMembers:
    """Serves JoinGroup, SyncGroup, Heartbeat and LeaveGroup for consumer groups with members."""

    def __init__(self, part: ConsumerProtocol) -> None:
        self._part = part
        self._host = part.host

    # -- JoinGroup -------------------------------------------------------------------------------

    def join(self, op: CoordinatorOperation, call: Call) -> JoinGroupResponse:
        request = call.request
        try:
            return self._join(op, call)
        except WireError as error:
            assert not op.touched and not op.records, error
            return failed_join(error.code, request.member_id)

    def _join(self, op: CoordinatorOperation, call: Call) -> JoinGroupResponse:
        request = call.request
        group = self._part.existing(request.group_id)
        member_id, instance_id = request.member_id, request.group_instance_id
        self._part.reject_if_full(group, member_id)
        protocols = protocols_of(request)
        if not supports(group, request.protocol_type, protocols):
            raise WireError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        is_unknown = not member_id
        if is_unknown:
            member_id = new_member_id(call.client_id, instance_id)
            if call.version >= MEMBER_ID_REQUIRED_VERSION and instance_id is None:
                return failed_join(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        # All protocols of a consumer contain the same subscription.
        subscribed = subscription.subscription(next(iter(protocols.values())))
        if subscribed is None:
            logger.warning(
                "group %s: the subscription of %s cannot be read", group.group_id, member_id
            )
            raise WireError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        old, replaced = _known(group, member_id, instance_id, is_unknown)
        member = _joined(old, call, subscribed)
        if replaced is not None and consumer_migration.may_downgrade(
            self._host, group, [replaced], len(group.members)
        ):
            return self._join_downgraded(op, group, old, member, replaced)
        replacing = self._part.replacement(group, replaced, old)
        update = self._part.update(group, old, member, replaced, call)
        member = update.run(self._reported(subscribed))
        records = replacing + update.records
        if not consumer_records.surely_fit(records):
            self._part.reject_too_large(group.group_id, records)
        if records:
            self._part.ensure_writable(op, group, old)
        self._part.write(op, group, records)
        self._part.settle(op, update, member)
        logger.info("group %s: member %s joins with the classic protocol, epoch %d",
                    group.group_id, member_id, member.epoch)  # fmt: skip
        self._host.cancel_timer((JOIN, group.group_id, member_id))
        self._part.start_session(group.group_id, member)
        self._start(SYNC, group, member, "it has not requested its assignment in time")
        return _join_response(member, member.epoch, next(iter(protocols)))

    def _join_downgraded(
        self,
        op: CoordinatorOperation,
        group: ConsumerGroup,
        old: ConsumerGroupMember,
        member: ConsumerGroupMember,
        replaced: ConsumerGroupMember,
    ) -> JoinGroupResponse:
        """A static member takes the place of the last one that spoke the consumer protocol."""
        members = [one for one in group.members.values() if one is not replaced]
        reason = None
        if member.topics != old.topics or member.regex != old.regex:
            reason = f"{member.member_id} subscribes to other topics"
        elif group.epoch != group.target_epoch or not all(
            one.is_reconciled(group.target_epoch) for one in members
        ):
            # Another member may still have partitions of this member's target.
            reason = "members have not reached their target assignment"
        made = self._part.downgrade(op, group, [*members, member], reason)
        return _join_response(member, made.generation, made.protocol or "")

    def _reported(self, subscribed: ConsumerProtocolSubscription) -> list[Any]:
        """The partitions that the member says it owns, in the form of a heartbeat."""
        topics = self._host.image.topics
        cls = ConsumerGroupHeartbeatRequest.TopicPartitions
        return [
            cls(topic_id=topics[one.topic].topic_id, partitions=one.partitions)
            for one in subscribed.owned_partitions
            if one.topic in topics
        ]

    # -- SyncGroup -------------------------------------------------------------------------------

    def sync(self, op: CoordinatorOperation, call: Call) -> SyncGroupResponse:
        request = call.request
        group, member = self._member(call)
        assert member.classic is not None
        protocol = member.classic.supported_protocols[0].name
        if (
            request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE)
            or (request.protocol_name or protocol) != protocol
        ):
            raise WireError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        op.touch()
        if self._is_behind(group, member) and member.state != UNREVOKED_PARTITIONS:
            # A member that must revoke has joined already: it gets what it may keep first.
            self._ask_to_join(group, member)
            return SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        self._host.cancel_timer((SYNC, group.group_id, member.member_id))
        self._part.start_session(group.group_id, member)
        return SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=consumer_migration.encoded(self._host.image, member.assigned, member),
        )

    # -- Heartbeat -------------------------------------------------------------------------------

    def heartbeat(self, op: CoordinatorOperation, call: Call) -> HeartbeatResponse:
        group, member = self._member(call)
        op.touch()
        self._part.start_session(group.group_id, member)
        if (
            self._is_behind(group, member)
            or member.state == UNREVOKED_PARTITIONS
            or (member.state == UNRELEASED_PARTITIONS and not group.waits_for_others(member))
        ):
            self._ask_to_join(group, member)
            return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        return HeartbeatResponse()

    def _is_behind(self, group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
        """Whether a join would bring the member to a newer target. While none may be computed it
        would not, and a member that has to rejoin would do nothing else.
        """
        if member.epoch < group.target_epoch:
            return True
        return group.epoch > group.target_epoch and not assignment_wait_ms(self._host, group)

    def _member(self, call: Call) -> tuple[ConsumerGroup, ConsumerGroupMember]:
        """The member of a request with a generation. Raises the error for the client."""
        request = call.request
        group = self._part.existing(request.group_id)
        member = _find(group, request.member_id, request.group_instance_id)
        if request.generation_id != member.epoch:
            text = f"generation {request.generation_id} is not the member's ({member.epoch})"
            raise WireError(ErrorCode.ILLEGAL_GENERATION, text)
        return group, member

    def _ask_to_join(self, group: ConsumerGroup, member: ConsumerGroupMember) -> None:
        if (JOIN, group.group_id, member.member_id) not in self._host.timers:
            self._start(JOIN, group, member, "it has not joined again in time")

    def _start(
        self, kind: str, group: ConsumerGroup, member: ConsumerGroupMember, reason: str
    ) -> None:
        name = (kind, group.group_id, member.member_id)
        timeout_ms = max(member.rebalance_timeout_ms, 0)
        self._host.set_timer(
            name, timeout_ms, self._part.expire, group.group_id, member.member_id, reason
        )

    # -- LeaveGroup ------------------------------------------------------------------------------

    def leave(self, op: CoordinatorOperation, call: Call) -> Any:
        request = call.request
        group = self._part.existing(request.group_id)
        codes, gone = [], []
        for identity in request.members:
            try:
                member = _leaving(group, identity)
                if member in gone:
                    raise WireError(ErrorCode.UNKNOWN_MEMBER_ID)
                gone.append(member)
                codes.append(ErrorCode.NONE)
                logger.info("group %s: member %s leaves (%s)", group.group_id, member.member_id,
                            (identity.reason or "no reason given")[:255])  # fmt: skip
            except WireError as error:
                codes.append(error.code)
        if gone:
            self._part.fence(op, group, gone)
        return left(call, codes)


def supports(group: ConsumerGroup, protocol_type: str, protocols: dict[str, bytes]) -> bool:
    """Whether a member with these protocols can be in the group: all classic members share one."""
    if protocol_type != CONSUMER_PROTOCOL_TYPE:
        return False
    shared = set(protocols)
    for member in group.members.values():
        if member.classic is not None:
            shared &= {protocol.name for protocol in member.classic.supported_protocols}
    return bool(shared)


def _known(
    group: ConsumerGroup, member_id: str, instance_id: str | None, is_unknown: bool
) -> tuple[ConsumerGroupMember, ConsumerGroupMember | None]:
    """The joining member, a blank one if it is new; and the member that it replaces."""
    if instance_id is None:
        return group.members.get(member_id) or ConsumerGroupMember(member_id), None
    known = group.static_member(instance_id)
    if not is_unknown:
        return group.static_member_or_raise(instance_id, member_id), None
    if known is None:
        return ConsumerGroupMember(member_id), None
    return group.successor(known, member_id), known


def _find(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerGroupMember:
    """A classic member. Raises UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
    if instance_id is None:
        member = group.member(member_id)
    else:
        member = group.static_member_or_raise(instance_id, member_id)
    if not member.is_classic:
        text = f"{member.member_id} does not use the classic protocol"
        raise WireError(ErrorCode.UNKNOWN_MEMBER_ID, text)
    return member


def _leaving(group: ConsumerGroup, identity: Any) -> ConsumerGroupMember:
    """An administrator names a static member by its instance only."""
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if not member_id and instance_id is not None:
        member_id = group.static_members.get(instance_id, "")
    return _find(group, member_id, instance_id)


def _joined(
    old: ConsumerGroupMember, call: Call, subscribed: ConsumerProtocolSubscription
) -> ConsumerGroupMember:
    """The member with the values of its join."""
    request = call.request
    return old.with_(
        instance_id=request.group_instance_id or old.instance_id,
        rack_id=subscribed.rack_id or old.rack_id,
        rebalance_timeout_ms=rebalance_timeout_of(request),
        topics=frozenset(subscribed.topics),
        regex="",  # the classic protocol has none
        client_id=call.client_id,
        client_host=call.client_host,
        classic=consumer_migration.classic_metadata(
            request.session_timeout_ms, protocols_of(request)
        ),
    )


def _join_response(
    member: ConsumerGroupMember, generation: int, protocol: str
) -> JoinGroupResponse:
    """The response to a join; it names no leader, so that no member computes an assignment."""
    return JoinGroupResponse(
        member_id=member.member_id,
        generation_id=generation,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=protocol,
        leader="",
    )
