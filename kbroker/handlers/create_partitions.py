"""CreatePartitions (37): versions 0 to 3. The controller decides."""

from __future__ import annotations

from typing import Any

from kbroker.errors import WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)


def fail(ctx: RequestContext, request: CreatePartitionsRequest, error: WireError) -> Any:
    """The same error for every topic."""
    names = dict.fromkeys(topic.name for topic in request.topics)
    return respond({name: (int(error.code), error.message) for name in names})


@api(ApiKey.CREATE_PARTITIONS, versions=(0, 3), fail=fail)
async def handle_create_partitions(
    ctx: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Enlarge topics; answered when the new partitions are served."""
    if not request.topics:
        return CreatePartitionsResponse()
    results = await ctx.change(
        "create_partitions",
        request.timeout_ms,
        topics=[
            {
                "name": topic.name,
                "count": topic.count,
                "assignments": (
                    None if topic.assignments is None else [a.broker_ids for a in topic.assignments]
                ),
            }
            for topic in request.topics
        ],
        validate_only=request.validate_only,
    )
    return respond({result["name"]: (result["error"], result["message"]) for result in results})


def respond(outcomes: dict[str, tuple[int, str | None]]) -> CreatePartitionsResponse:
    """The response; a topic that was named twice is answered once."""
    entry = CreatePartitionsResponse.CreatePartitionsTopicResult
    return CreatePartitionsResponse(
        results=[
            entry(name=name, error_code=code, error_message=message)
            for name, (code, message) in outcomes.items()
        ]
    )
