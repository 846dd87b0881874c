"""ListOffsets (2): versions 0 to 11. The ends of a log come from its slot, the rest from its owner.

Version 0 asks for up to ``max_num_offsets`` offsets before a time: the first offsets of segments,
and the end of the log. There is no tiered log: the earliest local offset (-4) is the earliest
offset, and the other special offsets of tiered logs (-5, -6) do not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.cluster.image import PartitionImage
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext, partition_error
from kbroker.handlers.registry import api
from kbroker.handlers.support.owner_calls import OwnerCalls
from kbroker.ipc.rpc import Pending
from kbroker.protocol.api import NEVER, ApiKey
from kbroker.protocol.messages.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    READ_COMMITTED,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

if TYPE_CHECKING:
    from kbroker._ext.partition_table import Slot

# Special timestamp -> the first version that has it.
FIRST_VERSIONS = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
NO_OFFSET = NO_TIMESTAMP = NO_EPOCH = -1


class Lookup(NamedTuple):
    """A partition that is being looked up. ``outcome``: the answer, or a call that will bring it.

    bound: the offset from which on the client may not see records.
    """

    image: PartitionImage
    outcome: dict[str, Any] | Pending
    bound: int


def fail(ctx: RequestContext, request: ListOffsetsRequest, error: WireError) -> ListOffsetsResponse:
    """The same error for every partition."""
    entry = ListOffsetsResponse.ListOffsetsTopicResponse
    return ListOffsetsResponse(
        topics=[
            entry(
                name=topic.name,
                partitions=[failed(p.partition_index, error) for p in topic.partitions],
            )
            for topic in request.topics
        ]
    )


@api(ApiKey.LIST_OFFSETS, versions=(0, 11), fail=fail)
async def handle_list_offsets(
    ctx: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    """Look up every partition; calls to io workers run side by side."""
    seen: set[tuple[str, int]] = set()
    started = []
    if ctx.api_version == 0:
        owners = OwnerCalls(ctx, "offsets_before")
    else:
        owners = OwnerCalls(ctx, "list_offsets", isolation=request.isolation_level)
    async for topic in ctx.each(request.topics):
        partitions = []
        async for partition in ctx.each(topic.partitions):
            place = topic.name, partition.partition_index
            looked_up: Lookup | WireError
            if place in seen:
                looked_up = WireError(ErrorCode.INVALID_REQUEST)
            else:
                looked_up = look_up(ctx, request, *place, partition, owners)
            partitions.append((partition, looked_up))
            seen.add(place)
        started.append((topic.name, partitions))
    owners.send()
    response = ListOffsetsResponse()
    entry = ListOffsetsResponse.ListOffsetsTopicResponse
    async for name, partitions in ctx.each(started):
        answers = [
            await answer(ctx, partition, found) async for partition, found in ctx.each(partitions)
        ]
        response.topics.append(entry(name=name, partitions=answers))
    return response


def look_up(
    ctx: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    number: int,
    partition: Any,
    owners: OwnerCalls,
) -> Lookup | WireError:
    """Start with one partition. owners: to be asked what the slot does not say."""
    timestamp = partition.timestamp
    if timestamp < 0 and ctx.api_version < FIRST_VERSIONS.get(timestamp, NEVER):
        return WireError(ErrorCode.UNSUPPORTED_VERSION)
    try:
        image, slot = ctx.led_partition(topic, number, partition.current_leader_epoch)
    except WireError as error:
        return error.bare()
    log_start = slot["log_start_offset"]
    bound = visible_end(request, slot)
    outcome: dict[str, Any] | Pending
    if ctx.api_version == 0:
        outcome = look_up_old(owners, image.slot, partition, log_start, bound)
    elif timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        outcome = found(NO_OFFSET, NO_EPOCH)
    elif timestamp == LATEST:
        outcome = found(bound, image.leader_epoch)
    elif timestamp in (EARLIEST, EARLIEST_LOCAL) and image.leader_epoch == 0:
        outcome = found(log_start, 0)
    else:
        # A timestamp; or the start of a log with several epochs: its owner knows which it is of.
        asked = EARLIEST if timestamp == EARLIEST_LOCAL else timestamp
        outcome = owners.ask(image.slot, asked)
    return Lookup(image, outcome, bound)


def look_up_old(
    owners: OwnerCalls, slot: int, partition: Any, log_start: int, bound: int
) -> dict[str, Any] | Pending:
    """Version 0: ``offsets``, the last first. What most clients ask for needs no call."""
    if partition.timestamp == EARLIEST:
        return {"offsets": [log_start]}
    if partition.timestamp == LATEST and partition.max_num_offsets <= 1:
        return {"offsets": [bound]}
    return owners.ask(slot, partition.timestamp, bound)


def visible_end(request: ListOffsetsRequest, slot: Slot) -> int:
    """The end of the log for this client."""
    if request.replica_id >= 0:
        end = slot["log_end"]
    elif request.isolation_level == READ_COMMITTED:
        end = slot["last_stable"]
    else:
        end = slot["high_watermark"]
    return end[0]


async def answer(ctx: RequestContext, partition: Any, lookup: Lookup | WireError) -> Any:
    """The response's entry of one partition."""
    number = partition.partition_index
    if isinstance(lookup, WireError):
        return failed(number, lookup)
    outcome = lookup.outcome
    if isinstance(outcome, Pending):
        try:
            outcome = await outcome
        except WireError as error:
            return failed(number, error)
    if ctx.api_version == 0:
        return ListOffsetsResponse.ListOffsetsPartitionResponse(
            partition_index=number,
            old_style_offsets=outcome["offsets"][: max(0, partition.max_num_offsets)],
        )
    if (partition.timestamp >= 0 or partition.timestamp == MAX_TIMESTAMP) and (
        outcome["offset"] >= lookup.bound
    ):
        outcome = found(NO_OFFSET, NO_EPOCH)
    if ctx.api_version < 4:
        outcome = {**outcome, "leader_epoch": NO_EPOCH}
    return ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=number, **outcome)


def found(offset: int, leader_epoch: int) -> dict[str, int]:
    return {"offset": offset, "timestamp": NO_TIMESTAMP, "leader_epoch": leader_epoch}


def failed(number: int, error: WireError) -> Any:
    return ListOffsetsResponse.ListOffsetsPartitionResponse(
        partition_index=number, error_code=partition_error(error)
    )
