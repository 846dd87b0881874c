"""OffsetCommit (8) and OffsetFetch (9)."""

from __future__ import annotations

from collections.abc import Callable, Container
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
from kbroker.handlers.support.allowed_topics import divide, forward_allowed
from kbroker.handlers.support.coordinated import (
    ask,
    decode_response,
    forward,
    partition_of,
    split,
)
from kbroker.handlers.support.requirements import Requirement, each, on_group
from kbroker.handlers.support.stored_offsets import commit_stored, fetch_stored
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from kbroker.security.access import EVERYTHING
from kbroker.security.operations import AclOperation, Kind


def commit_failed(
    ctx: RequestContext, request: OffsetCommitRequest, error: WireError
) -> OffsetCommitResponse:
    """The same error for every partition."""
    return commit_failure(request, error)


@api(
    ApiKey.OFFSET_COMMIT,
    versions=ApiKey.OFFSET_COMMIT.versions,
    fail=commit_failed,
    authorize=(
        on_group(AclOperation.READ),
        each(AclOperation.READ, Kind.TOPIC),
    ),
)
async def handle_offset_commit(
    ctx: RequestContext, request: OffsetCommitRequest
) -> Message | bytes:
    """Forward the commit to its group's coordinator; an empty group id is valid, as in Kafka."""
    if ctx.api_version == 0:
        return await commit_stored(ctx, request)
    error = WireError(Kind.TOPIC.error)
    return await forward_allowed(
        ctx,
        OFFSETS_TOPIC,
        request.group_id,
        request,
        AclOperation.READ,
        lambda topic: commit_failure(OffsetCommitRequest(topics=[topic]), error).topics[0],
    )


def of_group(request: OffsetFetchRequest) -> tuple[str, ...]:
    """The group of a request up to version 7; later versions name groups in a list."""
    return () if request.groups else (request.group_id,)


def fetch_failed(
    ctx: RequestContext, request: OffsetFetchRequest, error: WireError
) -> OffsetFetchResponse:
    """The same error for every group."""
    return fetch_failure(request, ctx.api_version, error)


@api(
    ApiKey.OFFSET_FETCH,
    versions=ApiKey.OFFSET_FETCH.versions,
    fail=fetch_failed,
    authorize=(
        Requirement(AclOperation.DESCRIBE, Kind.GROUP, of_group),
        each(AclOperation.DESCRIBE, Kind.GROUP),
        each(AclOperation.DESCRIBE, Kind.TOPIC),
    ),
)
async def handle_offset_fetch(
    ctx: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse | bytes:
    """Ask the coordinator of each group; INVALID_REQUEST for a group that was named before."""
    if ctx.api_version == 0:
        return await fetch_stored(ctx, request)
    if not ctx.access.everything:
        return await fetch_allowed(ctx, request)
    if ctx.api_version < 8:
        return await forward(ctx, OFFSETS_TOPIC, request.group_id)
    if len(request.groups) == 1:
        return await forward(ctx, OFFSETS_TOPIC, request.groups[0].group_id)
    return await fetch_groups(ctx, request)


async def fetch_groups(
    ctx: RequestContext, request: OffsetFetchRequest, describable: Container[str] = EVERYTHING
) -> OffsetFetchResponse:
    """The groups of version 8 and later. describable: the groups that the client may describe."""
    first: dict[str, OffsetFetchRequest.OffsetFetchRequestGroup] = {}
    for group in request.groups:
        first.setdefault(group.group_id, group)
    asked = [group for group in first.values() if group.group_id in describable]
    rows = await split(
        ctx,
        OFFSETS_TOPIC,
        asked,
        lambda group: str(group.group_id),
        lambda groups: OffsetFetchRequest(groups=groups, require_stable=request.require_stable),
        lambda response: list(response.groups),
        lambda group, error: fetch_group_failure(group.group_id, error),
    )
    results = {group.group_id: row for group, row in zip(asked, rows, strict=True)}
    denied = WireError(Kind.GROUP.error)
    repeated = WireError(ErrorCode.INVALID_REQUEST)
    return OffsetFetchResponse(
        groups=[
            fetch_group_failure(group.group_id, repeated)
            if first[group.group_id] is not group
            else results.get(group.group_id) or fetch_group_failure(group.group_id, denied)
            for group in request.groups
        ]
    )


async def fetch_allowed(ctx: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """The response for a client that may not see all topics: TOPIC_AUTHORIZATION_FAILED for topics
    it named, and "all topics" means those it may describe.
    """
    if ctx.api_version < 8:
        wants_all, denied = withhold(ctx, request)
        body = codec.encode(request, ctx.api_version)
        partition = partition_of(ctx, OFFSETS_TOPIC, request.group_id)
        response: OffsetFetchResponse = decode_response(
            ctx, await ask(ctx, OFFSETS_TOPIC, partition, body)
        )
        restore(ctx, response, wants_all, denied)
        return response
    groups = [group.group_id for group in request.groups]
    describable = ctx.allowed(AclOperation.DESCRIBE, Kind.GROUP, groups)
    withheld = [withhold(ctx, group) for group in request.groups]
    response = await fetch_groups(ctx, request, describable)
    for group, (wants_all, denied) in zip(response.groups, withheld, strict=True):
        if not group.error_code:
            restore(ctx, group, wants_all, denied)
    return response


def withhold(ctx: RequestContext, asked: Any) -> tuple[bool, list[Any]]:
    """Remove topics that the client may not describe: returns whether it wants all, and these."""
    if asked.topics is None:
        return True, []
    asked.topics, denied = divide(ctx, AclOperation.DESCRIBE, asked.topics)
    return False, denied


def restore(ctx: RequestContext, response: Any, wants_all: bool, denied: list[Any]) -> None:
    """Complete a response after ``withhold``; that of a group, or of the whole request."""
    if wants_all:
        response.topics, _ = divide(ctx, AclOperation.DESCRIBE, response.topics)
    response.topics += [denied_topic(ctx.api_version, topic) for topic in denied]


def denied_topic(version: int, topic: Any) -> Any:
    """The entry of a topic that the client may not describe."""
    cls = OffsetFetchResponse
    row: Callable[..., Any] = cls.OffsetFetchResponseTopic
    entry: Callable[..., Any] = cls.OffsetFetchResponsePartition
    names = {"name": topic.name}
    if version >= 8:
        row, entry = cls.OffsetFetchResponseTopics, cls.OffsetFetchResponsePartitions
        names["topic_id"] = topic.topic_id
    code = int(Kind.TOPIC.error)
    partitions = [
        entry(partition_index=index, committed_offset=-1, metadata="", error_code=code)
        for index in topic.partition_indexes
    ]
    return row(**names, partitions=partitions)
