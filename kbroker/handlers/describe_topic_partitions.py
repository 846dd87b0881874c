"""DescribeTopicPartitions (75): version 0. Topics in order of name, a limited number of partitions
at a time; the cursor of a response says where the next request continues.

With ``topic_limit``, which is ours, the topics are a page of those whose names contain a text.
"""

from __future__ import annotations

from kbroker.cluster.control_requests import NO_LEADER
from kbroker.cluster.image import TopicImage
from kbroker.controller.state.topics import check_name
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import each
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from kbroker.security.operations import AclOperation, Kind


def fail(
    ctx: RequestContext, request: DescribeTopicPartitionsRequest, error: WireError
) -> DescribeTopicPartitionsResponse:
    """The same error for every requested topic; without a topic there is no field for it."""
    if not request.topics:
        raise error
    return DescribeTopicPartitionsResponse(
        topics=[failed(topic.name, int(error.code)) for topic in request.topics]
    )


@api(
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    versions=(0, 0),
    fail=fail,
    unjoined=ErrorCode.LEADER_NOT_AVAILABLE,
    authorize=each(AclOperation.DESCRIBE, Kind.TOPIC),
)
async def handle_describe_topic_partitions(
    ctx: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Return one page of topics."""
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        raise WireError(ErrorCode.INVALID_REQUEST)
    limit = ctx.config["max.request.partition.size.limit"]
    room = max(1, min(request.response_partition_limit, limit))
    named = {topic.name for topic in request.topics}
    names = sorted(named or ctx.image.topics)
    describable = ctx.allowed(AclOperation.DESCRIBE, Kind.TOPIC, names, is_filter=not named)
    response = DescribeTopicPartitionsResponse()
    if request.topic_limit >= 0:
        names = [
            name
            async for name in ctx.each(names)
            if name in describable and is_searched(ctx, request, name)
        ]
        response.total = len(names)
        first_name = max(request.skip, 0)
        names = names[first_name : first_name + request.topic_limit]
    async for name in ctx.each(names):
        if cursor is not None and name < cursor.topic_name:
            continue
        if name not in describable:
            if named:  # the client must not learn of unauthorized topics it did not name
                response.topics.append(failed(name, int(Kind.TOPIC.error)))
            continue
        topic = ctx.image.topics.get(name)
        if topic is None:
            absent = failed(name, unknown_code(name))
            absent.topic_authorized_operations = ctx.access.operations(Kind.TOPIC, name)
            response.topics.append(absent)
            continue
        first = 0
        if cursor is not None and name == cursor.topic_name:
            first = cursor.partition_index
        if room == 0:
            response.next_cursor = cursor_at(name, first)
            break
        described = describe(ctx, topic, first, room)
        response.topics.append(described)
        room -= len(described.partitions)
        if first + len(described.partitions) < len(topic.partitions):
            response.next_cursor = cursor_at(name, first + len(described.partitions))
            break
    return response


def is_searched(ctx: RequestContext, request: DescribeTopicPartitionsRequest, name: str) -> bool:
    if request.search not in name:
        return False
    topic = ctx.image.topics.get(name)
    return topic is not None and (request.with_internal or not topic.internal)


def unknown_code(name: str) -> int:
    try:
        check_name(name)
    except WireError as error:
        return int(error.code)
    return int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def cursor_at(name: str, partition: int) -> DescribeTopicPartitionsResponse.Cursor:
    return DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=partition)


def describe(
    ctx: RequestContext, topic: TopicImage, first: int, room: int
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    """A topic with up to ``room`` partitions from ``first`` on."""
    brokers = ctx.image.brokers
    entry = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        topic_authorized_operations=ctx.access.operations(Kind.TOPIC, topic.name),
        partitions=[
            entry(
                error_code=0
                if partition.leader in brokers
                else int(ErrorCode.LEADER_NOT_AVAILABLE),
                partition_index=number,
                leader_id=partition.leader if partition.leader in brokers else NO_LEADER,
                leader_epoch=partition.leader_epoch,
                replica_nodes=partition.replicas,
                isr_nodes=partition.isr,
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=ctx.image.offline_replicas(partition),
            )
            for number, partition in enumerate(topic.partitions[first : first + room], first)
        ],
    )


def failed(
    name: str, code: int
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        name=name, error_code=code
    )
