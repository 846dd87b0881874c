"""Requests about one group or one transactional id, which the network process forwards.

JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14), OffsetDelete (47),
ConsumerGroupHeartbeat (68), and of transactions AddOffsetsToTxn (25), EndTxn (26) and
TxnOffsetCommit (28).
"""

from __future__ import annotations

from typing import Protocol

from kbroker.coordinator.offsets.failures import txn_commit_failure
from kbroker.coordinator.partitioner import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.allowed_topics import forward_allowed
from kbroker.handlers.support.coordinated import ask, decode_response, forward, partition_of
from kbroker.handlers.support.requirements import Requirement, each, on_group, on_transaction
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message
from kbroker.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kbroker.protocol.messages.end_txn import EndTxnRequest
from kbroker.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kbroker.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from kbroker.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from kbroker.protocol.messages.sync_group import SyncGroupRequest
from kbroker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from kbroker.security.operations import AclOperation, Kind

# A member waits for the others as long as their timeouts allow; this only ends requests that a
# coordinator has forgotten.
REBALANCE_MS = 3_600_000
# BOUND: members per call; the coordinator serves other requests between two calls.
CALL_MEMBERS_MAX = 500


class OfGroup(Protocol):
    """A request about one group."""

    group_id: str


def checked(key: str) -> str:
    """The key; INVALID_GROUP_ID for an empty one, which has no coordinator."""
    if not key:
        raise WireError(ErrorCode.INVALID_GROUP_ID)
    return key


def join_failed(
    ctx: RequestContext, request: JoinGroupRequest, error: WireError
) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=int(error.code),
        member_id=request.member_id,
        protocol_name=None if ctx.api_version >= 7 else "",
    )


@api(
    ApiKey.JOIN_GROUP,
    versions=ApiKey.JOIN_GROUP.versions,
    fail=join_failed,
    authorize=on_group(AclOperation.READ),
)
async def handle_join_group(ctx: RequestContext, request: JoinGroupRequest) -> bytes:
    """The response is sent when the rebalance has ended."""
    return await forward(ctx, OFFSETS_TOPIC, checked(request.group_id), REBALANCE_MS)


@api(ApiKey.SYNC_GROUP, versions=ApiKey.SYNC_GROUP.versions, authorize=on_group(AclOperation.READ))
async def handle_sync_group(ctx: RequestContext, request: SyncGroupRequest) -> bytes:
    """The response is sent when the leader has sent the assignment."""
    return await forward(ctx, OFFSETS_TOPIC, checked(request.group_id), REBALANCE_MS)


async def hand_to_group(ctx: RequestContext, request: OfGroup) -> bytes:
    """Hand a request on to its group's coordinator."""
    return await forward(ctx, OFFSETS_TOPIC, checked(request.group_id))


@api(
    ApiKey.LEAVE_GROUP, versions=ApiKey.LEAVE_GROUP.versions, authorize=on_group(AclOperation.READ)
)
async def handle_leave_group(ctx: RequestContext, request: LeaveGroupRequest) -> Message | bytes:
    """Forward it, many members a part at a time; a part that fails ends it."""
    members = request.members
    if len(members) <= CALL_MEMBERS_MAX:
        return await hand_to_group(ctx, request)
    partition = partition_of(ctx, OFFSETS_TOPIC, checked(request.group_id))
    response = LeaveGroupResponse()
    for first in range(0, len(members), CALL_MEMBERS_MAX):
        request.members = members[first : first + CALL_MEMBERS_MAX]
        body = codec.encode(request, ctx.api_version)
        part: LeaveGroupResponse = decode_response(
            ctx, await ask(ctx, OFFSETS_TOPIC, partition, body)
        )
        if part.error_code:
            return part
        response.members += part.members
    return response


async def hand_to_consumer_group(ctx: RequestContext, request: OfGroup) -> bytes:
    """Like ``hand_to_group``; here a missing group id is INVALID_REQUEST, as in Kafka."""
    if not request.group_id:
        raise WireError(ErrorCode.INVALID_REQUEST, "GroupId is blank")
    return await hand_to_group(ctx, request)


async def hand_to_transaction(
    ctx: RequestContext, request: AddOffsetsToTxnRequest | EndTxnRequest
) -> bytes:
    """Hand a request on to its transaction's coordinator."""
    return await forward(ctx, TRANSACTIONS_TOPIC, request.transactional_id)


def txn_offsets_failed(
    ctx: RequestContext, request: TxnOffsetCommitRequest, error: WireError
) -> TxnOffsetCommitResponse:
    """The same error for every partition, with a code that the version knows."""
    return txn_commit_failure(request, ctx.api_version, error)


api(ApiKey.HEARTBEAT, versions=ApiKey.HEARTBEAT.versions, authorize=on_group(AclOperation.READ))(
    hand_to_group
)
api(
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    versions=ApiKey.CONSUMER_GROUP_HEARTBEAT.versions,
    authorize=(
        on_group(AclOperation.READ),
        Requirement(
            AclOperation.DESCRIBE, Kind.TOPIC, lambda request: request.subscribed_topic_names or ()
        ),
    ),
)(hand_to_consumer_group)
api(
    ApiKey.ADD_OFFSETS_TO_TXN,
    versions=ApiKey.ADD_OFFSETS_TO_TXN.versions,
    authorize=(on_transaction(AclOperation.WRITE), on_group(AclOperation.READ)),
)(hand_to_transaction)
api(ApiKey.END_TXN, versions=ApiKey.END_TXN.versions, authorize=on_transaction(AclOperation.WRITE))(
    hand_to_transaction
)


def failed_offsets(
    ctx: RequestContext,
    topic: TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic,
    error: WireError,
) -> TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic:
    """The entry of one topic in the response to TxnOffsetCommit."""
    asked = TxnOffsetCommitRequest(topics=[topic])
    return txn_commit_failure(asked, ctx.api_version, error).topics[0]


@api(
    ApiKey.TXN_OFFSET_COMMIT,
    versions=ApiKey.TXN_OFFSET_COMMIT.versions,
    fail=txn_offsets_failed,
    authorize=(
        on_transaction(AclOperation.WRITE),
        on_group(AclOperation.READ),
        each(AclOperation.READ, Kind.TOPIC),
    ),
)
async def handle_txn_offset_commit(
    ctx: RequestContext, request: TxnOffsetCommitRequest
) -> Message | bytes:
    """Forward the offsets that the client may commit."""
    error = WireError(Kind.TOPIC.error)
    return await forward_allowed(
        ctx,
        OFFSETS_TOPIC,
        checked(request.group_id),
        request,
        AclOperation.READ,
        lambda topic: failed_offsets(ctx, topic, error),
    )


def failed_deletion(
    topic: OffsetDeleteRequest.OffsetDeleteRequestTopic,
) -> OffsetDeleteResponse.OffsetDeleteResponseTopic:
    """The entry in an OffsetDelete response for a topic that the client may not read."""
    cls = OffsetDeleteResponse
    return cls.OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=[
            cls.OffsetDeleteResponsePartition(
                partition_index=p.partition_index, error_code=int(Kind.TOPIC.error)
            )
            for p in topic.partitions
        ],
    )


@api(
    ApiKey.OFFSET_DELETE,
    versions=ApiKey.OFFSET_DELETE.versions,
    authorize=(on_group(AclOperation.DELETE), each(AclOperation.READ, Kind.TOPIC)),
)
async def handle_offset_delete(
    ctx: RequestContext, request: OffsetDeleteRequest
) -> Message | bytes:
    """Forward the offsets that the client may delete."""
    key = checked(request.group_id)
    return await forward_allowed(
        ctx, OFFSETS_TOPIC, key, request, AclOperation.READ, failed_deletion
    )
