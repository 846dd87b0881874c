"""DeleteTopics (20): versions 0 to 6, from 6 on also by topic id."""

from __future__ import annotations

from typing import Any

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from kbroker.protocol.primitives import NO_UUID


def fail(ctx: RequestContext, request: DeleteTopicsRequest, error: WireError) -> Any:
    """The same error for every topic."""
    return DeleteTopicsResponse(
        responses=[
            entry(ctx, name, topic_id, error.code, error.message)
            for name, topic_id in asked(ctx, request)
        ]
    )


@api(ApiKey.DELETE_TOPICS, versions=(0, 6), fail=fail)
async def handle_delete_topics(
    ctx: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Delete them; answered when nobody serves them any more."""
    topics = asked(ctx, request)
    for name, topic_id in topics:
        if (name is None) == (topic_id == NO_UUID):
            raise WireError(
                ErrorCode.INVALID_REQUEST, "Name each topic by its name or by its id, not by both."
            )
    if not topics:
        return DeleteTopicsResponse()
    results = await ctx.change(
        "delete_topics",
        request.timeout_ms,
        topics=[
            {"name": name} if name is not None else {"topic_id": topic_id.hex()}
            for name, topic_id in topics
        ],
    )
    return DeleteTopicsResponse(
        responses=[
            entry(
                ctx,
                result["name"],
                bytes.fromhex(result["topic_id"] or "") or topic_id,
                result["error"],
                result["message"],
            )
            for (_, topic_id), result in zip(topics, results, strict=True)
        ]
    )


def asked(ctx: RequestContext, request: DeleteTopicsRequest) -> list[tuple[str | None, bytes]]:
    """Name and id of each topic, each once."""
    if ctx.api_version >= 6:
        topics = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        topics = [(name, NO_UUID) for name in request.topic_names]
    return list(dict.fromkeys(topics))


def entry(
    ctx: RequestContext, name: str | None, topic_id: bytes, code: int, message: str | None
) -> Any:
    """The response's entry of one topic."""
    # COMPAT: version 3 brought the code of its own.
    if code == ErrorCode.TOPIC_DELETION_DISABLED and ctx.api_version < 3:
        code = ErrorCode.INVALID_REQUEST
    return DeleteTopicsResponse.DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=int(code), error_message=message
    )
