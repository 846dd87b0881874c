"""ListOffsets (2): versions 0 to 11. The ends of a log come from its slot, the rest from its owner.

Version 0 asks for up to ``max_num_offsets`` offsets before a time: the first offsets of segments,
and the end of the log. There is no tiered log: the earliest local offset (-4) is the earliest
offset, and the other special offsets of tiered logs (-5, -6) do not exist.

A new leader's high watermark may be below what consumers have been told before, until its followers
have fetched. While it is below the start of the leader's epoch, consumers get
OFFSET_NOT_AVAILABLE where the end of the log matters.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, NamedTuple

from kbroker.cluster.image import PartitionImage
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext, partition_error
from kbroker.handlers.registry import api
from kbroker.handlers.support.owner_calls import OwnerCalls, each_partition
from kbroker.handlers.support.requirements import each
from kbroker.ipc.calls import (
    LIST_OFFSETS,
    OFFSETS_BEFORE,
    FoundOffset,
    FoundOffsets,
    SegmentsQuestion,
    TimestampQuestion,
)
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
from kbroker.security.operations import AclOperation, Kind
from kbroker.types import SlotId

Asked = ListOffsetsRequest.ListOffsetsPartition
Row = ListOffsetsResponse.ListOffsetsPartitionResponse

if TYPE_CHECKING:
    from kbroker._ext.shared.partition_table import Slot

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
CONSUMER = -1  # the replica id
FIRST_WITH_NOT_AVAILABLE = 5

Outcome = FoundOffset | FoundOffsets


class OffsetLookup(NamedTuple):
    """A partition that is being looked up. ``outcome``: the response, or a call that will bring it.

    bound: the offset from which on the client may not see records. not_yet: the error instead of
    an offset beyond it, or of none.
    """

    image: PartitionImage
    outcome: Outcome | Pending[FoundOffset] | Pending[FoundOffsets]
    bound: int
    not_yet: WireError | None


class Owners(NamedTuple):
    """The calls to owners for what slots do not have: for version 0, and for the others."""

    old: OwnerCalls[SegmentsQuestion, FoundOffsets]
    new: OwnerCalls[TimestampQuestion, FoundOffset]

    def send(self) -> None:
        self.old.send()
        self.new.send()


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


@api(
    ApiKey.LIST_OFFSETS,
    versions=(0, 11),
    fail=fail,
    unjoined=ErrorCode.NOT_LEADER_OR_FOLLOWER,
    authorize=each(AclOperation.DESCRIBE, Kind.TOPIC),
)
async def handle_list_offsets(
    ctx: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    """Look up every partition; calls to io workers run in parallel."""
    seen: set[tuple[str, int]] = set()
    describable = ctx.allowed(
        AclOperation.DESCRIBE, Kind.TOPIC, (topic.name for topic in request.topics)
    )
    owners = Owners(OwnerCalls(ctx, OFFSETS_BEFORE), OwnerCalls(ctx, LIST_OFFSETS))

    def start(name: str, partition: Asked) -> OffsetLookup | WireError:
        place = name, partition.partition_index
        is_repeated = place in seen
        seen.add(place)
        if name not in describable:
            return WireError(Kind.TOPIC.error)
        if is_repeated:
            return WireError(ErrorCode.INVALID_REQUEST)
        return look_up(ctx, request, *place, partition, owners)

    def result(partition: Asked, lookup: OffsetLookup | WireError) -> Coroutine[object, None, Row]:
        return partition_result(ctx, partition, lookup)

    response = ListOffsetsResponse()
    entry = ListOffsetsResponse.ListOffsetsTopicResponse
    topics = ((topic.name, topic.partitions) for topic in request.topics)
    async for name, results in each_partition(ctx, topics, start, owners.send, result):
        response.topics.append(entry(name=name, partitions=results))
    return response


def look_up(
    ctx: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    number: int,
    partition: Asked,
    owners: Owners,
) -> OffsetLookup | WireError:
    """Start with one partition."""
    timestamp = partition.timestamp
    if timestamp < 0 and ctx.api_version < FIRST_VERSIONS.get(timestamp, NEVER):
        return WireError(ErrorCode.UNSUPPORTED_VERSION)
    try:
        image, slot = ctx.led_partition(topic, number, partition.current_leader_epoch)
    except WireError as error:
        return error.bare()
    log_start = slot["log_start_offset"]
    bound = visible_end(request, slot)
    not_yet = awaited(ctx.api_version) if is_catching_up(request, slot) else None
    outcome: Outcome | Pending[FoundOffset] | Pending[FoundOffsets]
    if ctx.api_version == 0:
        outcome = look_up_old(owners.old, image.slot, partition, log_start, bound)
    elif timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        outcome = found(NO_OFFSET, NO_EPOCH)
    elif timestamp == LATEST:
        if not_yet is not None:
            return not_yet
        outcome = found(bound, slot["leader_epoch"])
    elif timestamp in (EARLIEST, EARLIEST_LOCAL) and (epoch := epoch_of_start(slot)) is not None:
        outcome = found(log_start, epoch)
    else:
        # A timestamp; or the start of a log with several epochs: its owner knows which it is of.
        asked = EARLIEST if timestamp == EARLIEST_LOCAL else timestamp
        question = TimestampQuestion(image.slot, asked, request.isolation_level)
        outcome = owners.new.ask(question)
    return OffsetLookup(image, outcome, bound, not_yet)


def epoch_of_start(slot: Slot) -> int | None:
    """The leader epoch of the first record, if the slot has it: the log has only that one then."""
    if slot["leader_epoch"] == 0:
        return 0
    is_of_latest = 0 <= slot["latest_epoch_start"] <= slot["log_start_offset"]
    return slot["latest_epoch"] if is_of_latest else None


def look_up_old(
    owners: OwnerCalls[SegmentsQuestion, FoundOffsets],
    slot: SlotId,
    partition: Asked,
    log_start: int,
    bound: int,
) -> FoundOffsets | Pending[FoundOffsets]:
    """Version 0: the last offset first. What most clients request needs no call."""
    if partition.timestamp == EARLIEST:
        return FoundOffsets([log_start])
    if partition.timestamp == LATEST and partition.max_num_offsets <= 1:
        return FoundOffsets([bound])
    return owners.ask(SegmentsQuestion(slot, partition.timestamp, bound))


def visible_end(request: ListOffsetsRequest, slot: Slot) -> int:
    """The end of the log for this client."""
    if request.replica_id != CONSUMER:
        end = slot["log_end"]  # COMPAT: also for debugging consumers (-2), as in Kafka 2.7
    elif request.isolation_level == READ_COMMITTED:
        end = slot["last_stable"]
    else:
        end = slot["high_watermark"]
    return end[0]


def is_catching_up(request: ListOffsetsRequest, slot: Slot) -> bool:
    """Whether the high watermark has not reached the start of this leader's epoch."""
    return (
        request.replica_id == CONSUMER
        and slot["latest_epoch"] == slot["leader_epoch"]
        and slot["latest_epoch_start"] > slot["high_watermark"][0]
    )


def awaited(version: int) -> WireError:
    """The error after which consumers ask again."""
    knows_it = version >= FIRST_WITH_NOT_AVAILABLE
    return WireError(ErrorCode.OFFSET_NOT_AVAILABLE if knows_it else ErrorCode.LEADER_NOT_AVAILABLE)


async def partition_result(
    ctx: RequestContext, partition: Asked, lookup: OffsetLookup | WireError
) -> Row:
    """The response's entry of one partition."""
    number = partition.partition_index
    if isinstance(lookup, WireError):
        return failed(number, lookup)
    outcome: Outcome
    if isinstance(lookup.outcome, Pending):
        try:
            outcome = await lookup.outcome
        except WireError as error:
            return failed(number, error)
    else:
        outcome = lookup.outcome
    if isinstance(outcome, FoundOffsets):
        return ListOffsetsResponse.ListOffsetsPartitionResponse(
            partition_index=number,
            old_style_offsets=outcome.offsets[: max(0, partition.max_num_offsets)],
        )
    if partition.timestamp >= 0 or partition.timestamp == MAX_TIMESTAMP:
        is_visible = 0 <= outcome.offset < lookup.bound
        if lookup.not_yet is not None and not is_visible:
            return failed(number, lookup.not_yet)
        if outcome.offset >= lookup.bound:
            outcome = found(NO_OFFSET, NO_EPOCH)
    return ListOffsetsResponse.ListOffsetsPartitionResponse(
        partition_index=number,
        offset=outcome.offset,
        timestamp=outcome.timestamp,
        leader_epoch=NO_EPOCH if ctx.api_version < 4 else outcome.leader_epoch,
    )


def found(offset: int, leader_epoch: int) -> FoundOffset:
    return FoundOffset(offset, NO_TIMESTAMP, leader_epoch)


def failed(number: int, error: WireError) -> ListOffsetsResponse.ListOffsetsPartitionResponse:
    return ListOffsetsResponse.ListOffsetsPartitionResponse(
        partition_index=number, error_code=partition_error(error)
    )
