"""DeleteTopics (20): versions 0 to 6, from 6 on also by topic id."""

from __future__ import annotations

from collections import Counter

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import each
from kbroker.ipc.calls import DELETE_TOPICS, DeleteTopics, TopicToDelete
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from kbroker.protocol.primitives import NO_UUID
from kbroker.security.operations import AclOperation, Kind

# Its name, None without one, and its id, NO_UUID without one.
Topic = tuple[str | None, bytes]


def fail(
    ctx: RequestContext, request: DeleteTopicsRequest, error: WireError
) -> DeleteTopicsResponse:
    """The same error for every topic."""
    return DeleteTopicsResponse(
        responses=[
            entry(ctx, name, topic_id, error.code, error.message)
            for name, topic_id in asked(ctx, request)
        ]
    )


@api(
    ApiKey.DELETE_TOPICS,
    versions=(0, 6),
    fail=fail,
    unjoined=ErrorCode.NOT_CONTROLLER,
    authorize=(
        each(AclOperation.DELETE, Kind.TOPIC),
        each(AclOperation.DESCRIBE, Kind.TOPIC),
    ),
)
async def handle_delete_topics(
    ctx: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Delete topics; the response is sent when no process serves them any more."""
    topics = asked(ctx, request)
    responses = [] if ctx.access.everything else deny(ctx, topics)
    rejections = {
        topic: text for topic, count in topics.items() if (text := rejection(topic, count))
    }
    accepted = [topic for topic in topics if topic not in rejections]
    responses += [
        entry(ctx, *topic, ErrorCode.INVALID_REQUEST, text) for topic, text in rejections.items()
    ]
    if accepted:
        results = await ctx.change_in_parts(
            DELETE_TOPICS,
            request.timeout_ms,
            [
                [TopicToDelete(name) if name is not None else TopicToDelete(topic_id=topic_id)]
                for name, topic_id in accepted
            ],
            DeleteTopics,
        )
        responses += [
            entry(
                ctx,
                result.name,
                result.topic_id or topic_id,
                result.error,
                result.message,
            )
            for (_, topic_id), result in zip(accepted, results, strict=True)
        ]
    return DeleteTopicsResponse(responses=responses)


def asked(ctx: RequestContext, request: DeleteTopicsRequest) -> Counter[Topic]:
    """Name and id of each topic, and how often the request has it."""
    if ctx.api_version >= 6:
        return Counter((topic.name, topic.topic_id) for topic in request.topics)
    return Counter((name, NO_UUID) for name in request.topic_names)


def deny(
    ctx: RequestContext, topics: Counter[Topic]
) -> list[DeleteTopicsResponse.DeletableTopicResult]:
    """Remove the topics that the client may not delete; returns their entries for the response.

    By its id, a topic that it may not describe is answered without the name. COMPAT: with KRaft,
    Kafka tells a client that may describe a topic that there is none.
    """
    names: dict[Topic, str] = {}
    for name, topic_id in topics:
        known = ctx.image.topics_by_id.get(topic_id) if name is None else None
        if known is not None:
            names[name, topic_id] = known.name
        elif name is not None:
            names[name, topic_id] = name
    deletable = ctx.allowed(AclOperation.DELETE, Kind.TOPIC, names.values())
    describable = ctx.allowed(AclOperation.DESCRIBE, Kind.TOPIC, names.values())
    denied = []
    for (name, topic_id), own_name in names.items():
        if own_name in deletable and (name is None or own_name in describable):
            continue
        del topics[name, topic_id]
        shown = own_name if own_name in describable else name
        error = Kind.TOPIC.error
        if own_name in describable and own_name not in ctx.image.topics:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        denied.append(entry(ctx, shown, topic_id, error, error.message))
    return denied


def rejection(topic: Topic, count: int) -> str | None:
    """The error of one entry of the request; the other topics are deleted."""
    name, topic_id = topic
    if name is None and topic_id == NO_UUID:
        return "The topic has neither a name nor an id."
    if name is not None and topic_id != NO_UUID:
        return "Specify a topic by its name or by its id, not by both."
    if count > 1:
        return "The topic appears more than once in the request."
    return None


def entry(
    ctx: RequestContext, name: str | None, topic_id: bytes, code: int, message: str | None
) -> DeleteTopicsResponse.DeletableTopicResult:
    """The response's entry of one topic."""
    # COMPAT: version 3 introduced the specific error code.
    if code == ErrorCode.TOPIC_DELETION_DISABLED and ctx.api_version < 3:
        code = ErrorCode.INVALID_REQUEST
    return DeleteTopicsResponse.DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=int(code), error_message=message
    )
