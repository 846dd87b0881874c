"""CreatePartitions (37): versions 0 to 3. The controller decides."""

from __future__ import annotations

from kbroker.errors import WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import each
from kbroker.ipc.calls import CREATE_PARTITIONS, CreatePartitions, TopicToEnlarge
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)
from kbroker.security.operations import AclOperation, Kind

DENIED = int(Kind.TOPIC.error), Kind.TOPIC.error.message


def fail(
    ctx: RequestContext, request: CreatePartitionsRequest, error: WireError
) -> CreatePartitionsResponse:
    """The same error for every topic."""
    names = dict.fromkeys(topic.name for topic in request.topics)
    return respond({name: (int(error.code), error.message) for name in names})


@api(
    ApiKey.CREATE_PARTITIONS,
    versions=(0, 3),
    fail=fail,
    authorize=each(AclOperation.ALTER, Kind.TOPIC),
)
async def handle_create_partitions(
    ctx: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Add partitions; the response is sent when they are served."""
    if not request.topics:
        return CreatePartitionsResponse()
    named: dict[str, list[TopicToEnlarge]] = {}
    alterable = ctx.allowed(
        AclOperation.ALTER, Kind.TOPIC, (topic.name for topic in request.topics)
    )
    outcomes: dict[str, tuple[int, str | None]] = {}
    async for topic in ctx.each(request.topics):
        if topic.name not in alterable:
            outcomes[topic.name] = DENIED
            continue
        of_name = named.setdefault(topic.name, [])
        if len(of_name) < 2:  # to say that it is named twice
            of_name.append(wanted(topic))
    results = await ctx.change_in_parts(
        CREATE_PARTITIONS,
        request.timeout_ms,
        list(named.values()),
        lambda topics, within_ms: CreatePartitions(topics, request.validate_only, within_ms),
    )
    outcomes |= {str(result.name): (result.error, result.message) for result in results}
    return respond(outcomes)


def wanted(topic: CreatePartitionsRequest.CreatePartitionsTopic) -> TopicToEnlarge:
    """A topic, as an argument of the controller's operation."""
    assignments = topic.assignments
    return TopicToEnlarge(
        topic.name,
        topic.count,
        None if assignments is None else [a.broker_ids for a in assignments],
    )


def respond(outcomes: dict[str, tuple[int, str | None]]) -> CreatePartitionsResponse:
    """The response; a topic that was named twice has one entry."""
    entry = CreatePartitionsResponse.CreatePartitionsTopicResult
    return CreatePartitionsResponse(
        results=[
            entry(name=name, error_code=code, error_message=message)
            for name, (code, message) in outcomes.items()
        ]
    )
