"""OffsetForLeaderEpoch (23): versions 0 to 4. The ends of a log's latest epochs are in its slot;
its owner knows all others.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext, partition_error
from kbroker.handlers.registry import api
from kbroker.handlers.support.owner_calls import OwnerCalls, each_partition
from kbroker.handlers.support.requirements import each
from kbroker.ipc.calls import OFFSET_FOR_LEADER_EPOCH, EpochEndQuestion, EpochEndReply
from kbroker.ipc.rpc import Pending
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kbroker.security.access import EVERYTHING
from kbroker.security.operations import AclOperation, Kind

Partition = OffsetForLeaderEpochRequest.OffsetForLeaderPartition
Row = OffsetForLeaderEpochResponse.EpochEndOffset

if TYPE_CHECKING:
    from kbroker._ext.shared.partition_table import Slot

UNKNOWN = EpochEndReply(-1, -1)
Asked = Pending[EpochEndReply] | EpochEndReply | WireError


def fail(
    ctx: RequestContext, request: OffsetForLeaderEpochRequest, error: WireError
) -> OffsetForLeaderEpochResponse:
    """The same error for every partition."""
    entry = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    return OffsetForLeaderEpochResponse(
        topics=[
            entry(
                topic=topic.topic, partitions=[failed(p.partition, error) for p in topic.partitions]
            )
            for topic in request.topics
        ]
    )


@api(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    versions=(0, 4),
    fail=fail,
    unjoined=ErrorCode.NOT_LEADER_OR_FOLLOWER,
    authorize=(
        each(AclOperation.CLUSTER_ACTION, Kind.CLUSTER),
        each(AclOperation.DESCRIBE, Kind.TOPIC),
    ),
)
async def handle_offset_for_leader_epoch(
    ctx: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Read every partition's slot, or ask its owner; the calls run in parallel."""
    owners = OwnerCalls(ctx, OFFSET_FOR_LEADER_EPOCH)
    describable: Container[str] = EVERYTHING
    if not ctx.allows(AclOperation.CLUSTER_ACTION, Kind.CLUSTER, is_filter=True):
        names = [topic.topic for topic in request.topics]
        describable = ctx.allowed(AclOperation.DESCRIBE, Kind.TOPIC, names)

    def start(name: str, partition: Partition) -> Asked:
        return ask(ctx, name, partition, owners, describable)

    response = OffsetForLeaderEpochResponse()
    entry = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    topics = ((topic.topic, topic.partitions) for topic in request.topics)
    async for name, results in each_partition(ctx, topics, start, owners.send, partition_result):
        response.topics.append(entry(topic=name, partitions=results))
    return response


def ask(
    ctx: RequestContext,
    topic: str,
    partition: Partition,
    owners: OwnerCalls[EpochEndQuestion, EpochEndReply],
    describable: Container[str],
) -> Asked:
    """Start with one partition."""
    if topic not in describable:
        return WireError(Kind.TOPIC.error)
    try:
        image, slot = ctx.led_partition(topic, partition.partition, partition.current_leader_epoch)
    except WireError as error:
        return error.bare()
    known = end_by_slot(slot, partition.leader_epoch)
    return known or owners.ask(EpochEndQuestion(image.slot, partition.leader_epoch))


def end_by_slot(slot: Slot, leader_epoch: int) -> EpochEndReply | None:
    """The result of ``LeaderEpochs.end_offset_for``, as far as the slot has it: for the last two
    epochs and later ones.
    """
    latest, previous = slot["latest_epoch"], slot["previous_epoch"]
    if leader_epoch < 0 or leader_epoch > latest:
        return UNKNOWN
    if leader_epoch == latest:
        return EpochEndReply(latest, slot["log_end"][0])
    if previous < 0:
        # Older than all epochs in the log: they begin where the oldest one begins.
        return EpochEndReply(leader_epoch, slot["latest_epoch_start"])
    if leader_epoch >= previous:
        return EpochEndReply(previous, slot["latest_epoch_start"])
    return None


async def partition_result(partition: Partition, asked: Asked) -> Row:
    """The response's entry of one partition."""
    number = partition.partition
    if isinstance(asked, WireError):
        return failed(number, asked)
    try:
        epoch_end = asked if isinstance(asked, EpochEndReply) else await asked
    except WireError as error:
        return failed(number, error)
    return OffsetForLeaderEpochResponse.EpochEndOffset(
        partition=number, leader_epoch=epoch_end.leader_epoch, end_offset=epoch_end.end_offset
    )


def failed(number: int, error: WireError) -> OffsetForLeaderEpochResponse.EpochEndOffset:
    return OffsetForLeaderEpochResponse.EpochEndOffset(
        partition=number, error_code=partition_error(error)
    )
