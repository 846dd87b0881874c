"""DeleteRecords (21): versions 0 to 2. Offset -1 is the high watermark.

Answered when the records are deleted on every live replica, or with REQUEST_TIMED_OUT when the
request's time is up; the followers still delete them then. With one replica there is no wait.
"""

from __future__ import annotations

from collections.abc import Container, Coroutine
from typing import NamedTuple

from kbroker.config.topic_config import TopicConfig
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import CALL_MARGIN_MS, RequestContext, now_ms, partition_error
from kbroker.handlers.registry import api
from kbroker.handlers.support.owner_calls import OwnerCalls, each_partition
from kbroker.handlers.support.requirements import each
from kbroker.ipc.calls import (
    AWAIT_DELETION,
    DELETE_RECORDS,
    AwaitedDeletion,
    LowWatermark,
    RecordDeletion,
)
from kbroker.ipc.rpc import Pending
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from kbroker.security.operations import AclOperation, Kind
from kbroker.types import Offset

Asked = DeleteRecordsRequest.DeleteRecordsPartition
Row = DeleteRecordsResponse.DeleteRecordsPartitionResult

HIGH_WATERMARK = -1
NO_LOW_WATERMARK = -1


class Started(NamedTuple):
    """A deletion that its owner was asked for."""

    deletion: RecordDeletion
    call: Pending[LowWatermark]


def fail(
    ctx: RequestContext, request: DeleteRecordsRequest, error: WireError
) -> DeleteRecordsResponse:
    """The same error for every partition."""
    entry = DeleteRecordsResponse.DeleteRecordsTopicResult
    return DeleteRecordsResponse(
        topics=[
            entry(
                name=topic.name,
                partitions=[failed(p.partition_index, error) for p in topic.partitions],
            )
            for topic in request.topics
        ]
    )


@api(
    ApiKey.DELETE_RECORDS,
    versions=(0, 2),
    fail=fail,
    unjoined=ErrorCode.NOT_LEADER_OR_FOLLOWER,
    authorize=each(AclOperation.DELETE, Kind.TOPIC),
)
async def handle_delete_records(
    ctx: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """Advance the log start offsets in the owners, and wait for the followers to do the same; the
    calls run in parallel.
    """
    until_ms = now_ms() + max(0, request.timeout_ms)
    owners = OwnerCalls(ctx, DELETE_RECORDS, max(0, request.timeout_ms) + CALL_MARGIN_MS)
    deletable = ctx.allowed(
        AclOperation.DELETE, Kind.TOPIC, (topic.name for topic in request.topics)
    )
    behind: list[tuple[RecordDeletion, Row]] = []

    def begin(name: str, partition: Asked) -> Started | WireError:
        return start(ctx, name, partition, owners, deletable)

    def result(partition: Asked, begun: Started | WireError) -> Coroutine[object, None, Row]:
        return partition_result(partition.partition_index, begun, behind)

    response = DeleteRecordsResponse()
    entry = DeleteRecordsResponse.DeleteRecordsTopicResult
    topics = ((topic.name, topic.partitions) for topic in request.topics)
    async for name, results in each_partition(ctx, topics, begin, owners.send, result):
        response.topics.append(entry(name=name, partitions=results))
    if behind:
        await wait_for_followers(ctx, behind, until_ms)
    return response


def start(
    ctx: RequestContext,
    topic: str,
    partition: Asked,
    owners: OwnerCalls[RecordDeletion, LowWatermark],
    deletable: Container[str],
) -> Started | WireError:
    """Start with one partition."""
    if topic not in deletable:
        return WireError(Kind.TOPIC.error)
    try:
        image, slot = ctx.led_partition(topic, partition.partition_index)
        check_topic(ctx, topic)
        high_watermark = slot["high_watermark"][0]
        offset = high_watermark if partition.offset == HIGH_WATERMARK else partition.offset
        if not 0 <= offset <= high_watermark:
            raise WireError(ErrorCode.OFFSET_OUT_OF_RANGE)
    except WireError as error:
        return error.bare()
    deletion = RecordDeletion(image.slot, Offset(offset))
    return Started(deletion, owners.ask(deletion))


def check_topic(ctx: RequestContext, name: str) -> None:
    """Whether a client may delete records: not of internal topics, not of compacted ones."""
    topic = ctx.image.topics[name]
    if topic.internal:
        raise WireError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    if "delete" not in TopicConfig.stored(topic.config, ctx.config)["cleanup.policy"]:
        raise WireError(ErrorCode.POLICY_VIOLATION)


async def partition_result(
    number: int, started: Started | WireError, behind: list[tuple[RecordDeletion, Row]]
) -> Row:
    """The response's entry of one partition; added to ``behind`` if followers are."""
    if isinstance(started, WireError):
        return failed(number, started)
    try:
        deleted = await started.call
    except WireError as error:
        return failed(number, error)
    result = DeleteRecordsResponse.DeleteRecordsPartitionResult(
        partition_index=number, low_watermark=deleted.low_watermark
    )
    if deleted.low_watermark < started.deletion.offset:
        # COMPAT: one that is not in time keeps the low watermark of before, as in Kafka.
        result.error_code = int(ErrorCode.REQUEST_TIMED_OUT)
        behind.append((started.deletion, result))
    return result


async def wait_for_followers(
    ctx: RequestContext, behind: list[tuple[RecordDeletion, Row]], until_ms: int
) -> None:
    """Wait until every live replica has deleted the records, or the time is up."""
    owners = OwnerCalls(ctx, AWAIT_DELETION, max(0, until_ms - now_ms()) + CALL_MARGIN_MS)
    try:
        with ctx.given_away():
            calls = [
                (result, owners.ask(AwaitedDeletion(slot, offset, until_ms)))
                async for (slot, offset), result in ctx.each(behind)
            ]
            owners.send()
            async for result, call in ctx.each(calls):
                await take_low_watermark(result, call)
    except WireError as error:  # too many requests wait already: this one is late at once
        assert error.code == ErrorCode.COORDINATOR_NOT_AVAILABLE, error


async def take_low_watermark(result: Row, call: Pending[LowWatermark]) -> None:
    try:
        result.low_watermark = (await call).low_watermark
        result.error_code = int(ErrorCode.NONE)
    except WireError as error:
        if error.code != ErrorCode.REQUEST_TIMED_OUT:
            result.low_watermark = NO_LOW_WATERMARK
            result.error_code = partition_error(error)


def failed(number: int, error: WireError) -> Row:
    return DeleteRecordsResponse.DeleteRecordsPartitionResult(
        partition_index=number,
        low_watermark=NO_LOW_WATERMARK,
        error_code=partition_error(error),
    )
