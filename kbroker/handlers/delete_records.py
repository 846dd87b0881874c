"""DeleteRecords (21): versions 0 to 2. Offset -1 is the high watermark."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from kbroker.config.topic_config import TopicConfig
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import CALL_MARGIN_MS, RequestContext, partition_error
from kbroker.handlers.registry import api
from kbroker.handlers.support.owner_calls import OwnerCalls
from kbroker.handlers.support.requirements import each
from kbroker.ipc.calls import DELETE_RECORDS, Deletion, LowWatermark
from kbroker.ipc.rpc import Pending
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from kbroker.security.operations import AclOperation, Kind

HIGH_WATERMARK = -1
NO_LOW_WATERMARK = -1


def fail(ctx: RequestContext, request: DeleteRecordsRequest, error: WireError) -> Any:
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
    authorize=each(AclOperation.DELETE, Kind.TOPIC),
)
async def handle_delete_records(
    ctx: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """Advance the log start offsets in the owners; the calls run in parallel."""
    timeout_ms = max(0, request.timeout_ms) + CALL_MARGIN_MS
    owners = OwnerCalls(ctx, DELETE_RECORDS, timeout_ms)
    deletable = ctx.allowed(
        AclOperation.DELETE, Kind.TOPIC, (topic.name for topic in request.topics)
    )
    started = [
        (
            topic.name,
            [
                (p.partition_index, start(ctx, topic.name, p, owners, deletable))
                async for p in ctx.each(topic.partitions)
            ],
        )
        async for topic in ctx.each(request.topics)
    ]
    owners.send()
    response = DeleteRecordsResponse()
    entry = DeleteRecordsResponse.DeleteRecordsTopicResult
    async for name, partitions in ctx.each(started):
        results = [
            await partition_result(number, call) async for number, call in ctx.each(partitions)
        ]
        response.topics.append(entry(name=name, partitions=results))
    return response


def start(
    ctx: RequestContext,
    topic: str,
    partition: Any,
    owners: OwnerCalls[Deletion, LowWatermark],
    deletable: Container[str],
) -> Pending[LowWatermark] | WireError:
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
    return owners.ask(Deletion(image.slot, offset))


def check_topic(ctx: RequestContext, name: str) -> None:
    """Whether a client may delete records: not of internal topics, not of compacted ones."""
    topic = ctx.image.topics[name]
    if topic.internal:
        raise WireError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    if "delete" not in TopicConfig(topic.config, ctx.config)["cleanup.policy"]:
        raise WireError(ErrorCode.POLICY_VIOLATION)


async def partition_result(number: int, call: Pending[LowWatermark] | WireError) -> Any:
    """The response's entry of one partition."""
    if isinstance(call, WireError):
        return failed(number, call)
    try:
        result = await call
    except WireError as error:
        return failed(number, error)
    return DeleteRecordsResponse.DeleteRecordsPartitionResult(
        partition_index=number, low_watermark=result.low_watermark
    )


def failed(number: int, error: WireError) -> Any:
    return DeleteRecordsResponse.DeleteRecordsPartitionResult(
        partition_index=number,
        low_watermark=NO_LOW_WATERMARK,
        error_code=partition_error(error),
    )
