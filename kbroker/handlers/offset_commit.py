"""OffsetCommit (8) and OffsetFetch (9)."""

from __future__ import annotations

from typing import Any

from kbroker.coordinator.partitioner import OFFSETS_TOPIC
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.coordinated import forward, split
from kbroker.handlers.registry import api
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse


def commit_failed(
    ctx: RequestContext, request: OffsetCommitRequest, error: WireError
) -> OffsetCommitResponse:
    topic = OffsetCommitResponse.OffsetCommitResponseTopic
    partition = OffsetCommitResponse.OffsetCommitResponsePartition
    return OffsetCommitResponse(
        topics=[
            topic(
                name=t.name,
                topic_id=t.topic_id,
                partitions=[
                    partition(partition_index=p.partition_index, error_code=int(error.code))
                    for p in t.partitions
                ],
            )
            for t in request.topics
        ]
    )


@api(ApiKey.OFFSET_COMMIT, versions=ApiKey.OFFSET_COMMIT.versions, fail=commit_failed)
async def handle_offset_commit(ctx: RequestContext, request: OffsetCommitRequest) -> Any:
    """Hand the commit on to its group's coordinator."""
    if not request.group_id and ctx.api_version >= 8:
        raise WireError(ErrorCode.INVALID_GROUP_ID)
    return await forward(ctx, OFFSETS_TOPIC, request.group_id)


def fetch_failed(
    ctx: RequestContext, request: OffsetFetchRequest, error: WireError
) -> OffsetFetchResponse:
    if ctx.api_version >= 8:
        return OffsetFetchResponse(groups=[failed_group(g, error) for g in request.groups])
    topic = OffsetFetchResponse.OffsetFetchResponseTopic
    partition = OffsetFetchResponse.OffsetFetchResponsePartition
    code = int(error.code)
    return OffsetFetchResponse(
        error_code=code,
        topics=[
            topic(
                name=t.name,
                partitions=[
                    partition(partition_index=p, committed_offset=-1, metadata="", error_code=code)
                    for p in t.partition_indexes
                ],
            )
            for t in request.topics or ()
            if ctx.api_version < 2  # later versions say it once, at the top
        ],
    )


def failed_group(group: Any, error: WireError) -> Any:
    row = OffsetFetchResponse.OffsetFetchResponseGroup
    return row(group_id=group.group_id, error_code=int(error.code))


@api(ApiKey.OFFSET_FETCH, versions=ApiKey.OFFSET_FETCH.versions, fail=fetch_failed)
async def handle_offset_fetch(ctx: RequestContext, request: OffsetFetchRequest) -> Any:
    """Ask the coordinator of each group."""
    if ctx.api_version < 8:
        return await forward(ctx, OFFSETS_TOPIC, request.group_id)
    if len(request.groups) == 1:
        return await forward(ctx, OFFSETS_TOPIC, request.groups[0].group_id)
    rows = await split(
        ctx,
        OFFSETS_TOPIC,
        request.groups,
        lambda group: str(group.group_id),
        lambda groups: OffsetFetchRequest(groups=groups, require_stable=request.require_stable),
        lambda response: list(response.groups),
        failed_group,
    )
    return OffsetFetchResponse(groups=rows)
