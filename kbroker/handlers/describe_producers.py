"""DescribeProducers (61): version 0. The owners of the partitions know their producers.

Followers respond, too, as in Kafka: tools that look for hanging transactions ask each broker for
all its replicas. Those of ours ask for open transactions alone (``late_before``), which takes a
call to each io worker instead of a row for each partition.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext, partition_error
from kbroker.handlers.registry import api
from kbroker.handlers.support.owner_calls import OwnerCalls, each_partition
from kbroker.handlers.support.requirements import each
from kbroker.ipc.calls import (
    DESCRIBE_PRODUCERS,
    LATE_TRANSACTIONS,
    KnownProducer,
    KnownProducers,
    LateProducers,
    LateQuestion,
    ProducersQuestion,
)
from kbroker.ipc.rpc import Pending
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from kbroker.security.operations import AclOperation, Kind

# BOUND: partitions per call: each may have thousands of producers, a microsecond each.
CALL_PARTITIONS_MAX = 10


def fail(
    ctx: RequestContext, request: DescribeProducersRequest, error: WireError
) -> DescribeProducersResponse:
    """The same error for every partition."""
    entry = DescribeProducersResponse.TopicResponse
    return DescribeProducersResponse(
        topics=[
            entry(
                name=topic.name,
                partitions=[failed(number, error) for number in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


@api(
    ApiKey.DESCRIBE_PRODUCERS,
    versions=(0, 0),
    fail=fail,
    unjoined=ErrorCode.NOT_LEADER_OR_FOLLOWER,
    authorize=each(AclOperation.READ, Kind.TOPIC),
)
async def handle_describe_producers(
    ctx: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Ask the owner of every partition, in parallel. A partition named twice is in the response
    once, because it may have thousands of producers.
    """
    if request.late_before >= 0:
        return await late_producers(ctx, request.late_before)
    owners = OwnerCalls(ctx, DESCRIBE_PRODUCERS, call_partitions_max=CALL_PARTITIONS_MAX)
    numbers: dict[str, dict[int, None]] = {}
    async for topic in ctx.each(request.topics):
        numbers.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    readable = ctx.allowed(AclOperation.READ, Kind.TOPIC, numbers)

    def start(name: str, number: int) -> Pending[KnownProducers] | WireError:
        return ask(ctx, name, number, owners, readable)

    response = DescribeProducersResponse()
    entry = DescribeProducersResponse.TopicResponse
    rows = each_partition(ctx, numbers.items(), start, owners.send, partition_result)
    async for name, results in rows:
        response.topics.append(entry(name=name, partitions=results))
    return response


async def late_producers(ctx: RequestContext, before_ms: int) -> DescribeProducersResponse:
    """Of all replicas here, those with producers that are late. Where one is in a topic that the
    client may describe but not read, there is an error instead: it would be taken for none.

    Raises WireError while nobody can say.
    """
    asked = [
        ctx.io_worker(address, LATE_TRANSACTIONS, LateQuestion(before_ms))
        for address in ctx.io_workers
    ]
    late: dict[str, list[LateProducers]] = {}
    for call in asked:
        async for one in ctx.each(await call):
            late.setdefault(one.topic, []).append(one)
    readable = ctx.allowed(AclOperation.READ, Kind.TOPIC, late, is_filter=True)
    visible = ctx.allowed(AclOperation.DESCRIBE, Kind.TOPIC, late, is_filter=True)
    response = DescribeProducersResponse(only_late=True)
    entry = DescribeProducersResponse.TopicResponse
    for name, rows in late.items():
        if name in readable:
            partitions = [partition_of(row.partition, row.producers) for row in rows]
        elif name in visible:
            partitions = [failed(row.partition, WireError(Kind.TOPIC.error)) for row in rows]
        else:
            continue
        response.topics.append(entry(name=name, partitions=partitions))
    return response


def ask(
    ctx: RequestContext,
    topic: str,
    number: int,
    owners: OwnerCalls[ProducersQuestion, KnownProducers],
    readable: Container[str],
) -> Pending[KnownProducers] | WireError:
    """Start with one partition."""
    if topic not in readable:
        return WireError(Kind.TOPIC.error)
    try:
        image = ctx.replica(topic, number)
    except WireError as error:
        return error.bare()
    return owners.ask(ProducersQuestion(image.slot))


async def partition_result(
    number: int, asked: Pending[KnownProducers] | WireError
) -> DescribeProducersResponse.PartitionResponse:
    """The response's entry of one partition."""
    if isinstance(asked, WireError):
        return failed(number, asked)
    try:
        producers = await asked
    except WireError as error:
        return failed(number, error)
    return partition_of(number, producers.producers)


def partition_of(
    number: int, producers: Iterable[KnownProducer]
) -> DescribeProducersResponse.PartitionResponse:
    producer = DescribeProducersResponse.ProducerState
    return DescribeProducersResponse.PartitionResponse(
        partition_index=number,
        active_producers=[
            producer(
                producer_id=known.producer_id,
                producer_epoch=known.producer_epoch,
                last_sequence=known.last_sequence,
                last_timestamp=known.last_timestamp,
                coordinator_epoch=known.coordinator_epoch,
                current_txn_start_offset=known.current_txn_start_offset,
            )
            for known in producers
        ],
    )


def failed(number: int, error: WireError) -> DescribeProducersResponse.PartitionResponse:
    return DescribeProducersResponse.PartitionResponse(
        partition_index=number, error_code=partition_error(error), error_message=error.message
    )
