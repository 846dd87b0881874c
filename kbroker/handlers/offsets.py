"""OffsetCommit (8) and OffsetFetch (9)."""

from __future__ import annotations

from typing import Any

from kbroker.coordinator.offsets.failures import (
    commit_failure,
    fetch_failure,
    fetch_group_failure,
)
from kbroker.coordinator.partitioner import OFFSETS_TOPIC
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.coordinated import forward, split
from kbroker.handlers.support.stored_offsets import commit_stored, fetch_stored
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse


def commit_failed(
    ctx: RequestContext, request: OffsetCommitRequest, error: WireError
) -> OffsetCommitResponse:
    """The same error for every partition."""
    return commit_failure(request, error)


@api(ApiKey.OFFSET_COMMIT, versions=ApiKey.OFFSET_COMMIT.versions, fail=commit_failed)
async def handle_offset_commit(ctx: RequestContext, request: OffsetCommitRequest) -> Any:
    """Hand the commit on to its group's coordinator; an empty group id is one, as in Kafka."""
    if ctx.api_version == 0:
        return await commit_stored(ctx, request)
    return await forward(ctx, OFFSETS_TOPIC, request.group_id)


def fetch_failed(
    ctx: RequestContext, request: OffsetFetchRequest, error: WireError
) -> OffsetFetchResponse:
    """The same error for every group."""
    return fetch_failure(request, ctx.api_version, error)


@api(ApiKey.OFFSET_FETCH, versions=ApiKey.OFFSET_FETCH.versions, fail=fetch_failed)
async def handle_offset_fetch(ctx: RequestContext, request: OffsetFetchRequest) -> Any:
    """Ask the coordinator of each group; INVALID_REQUEST for a group that was named before."""
    if ctx.api_version == 0:
        return await fetch_stored(ctx, request)
    if ctx.api_version < 8:
        return await forward(ctx, OFFSETS_TOPIC, request.group_id)
    if len(request.groups) == 1:
        return await forward(ctx, OFFSETS_TOPIC, request.groups[0].group_id)
    first: dict[str, Any] = {}
    for group in request.groups:
        first.setdefault(group.group_id, group)
    rows = await split(
        ctx,
        OFFSETS_TOPIC,
        list(first.values()),
        lambda group: str(group.group_id),
        lambda groups: OffsetFetchRequest(groups=groups, require_stable=request.require_stable),
        lambda response: list(response.groups),
        lambda group, error: fetch_group_failure(group.group_id, error),
    )
    answers = dict(zip(first, rows, strict=True))
    repeated = WireError(ErrorCode.INVALID_REQUEST)
    return OffsetFetchResponse(
        groups=[
            answers[group.group_id]
            if first[group.group_id] is group
            else fetch_group_failure(group.group_id, repeated)
            for group in request.groups
        ]
    )
