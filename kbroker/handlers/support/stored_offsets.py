"""OffsetCommit and OffsetFetch in version 0: their offsets are in the metadata store.

COMPAT: as in Kafka, offsets committed with later versions are not seen here, nor the other way
round; and an offset that was never committed is UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.ipc.calls import (
    COMMIT_STORED_OFFSETS,
    FETCH_STORED_OFFSETS,
    CommitStoredOffsets,
    FetchStoredOffsets,
    StoredOffset,
    StoredPartition,
)
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from kbroker.security.operations import AclOperation, Kind

NO_OFFSET = -1
# BOUND: partitions per call, so that a large request does not block the controller.
CALL_MAX = 500

NONE, UNKNOWN = int(ErrorCode.NONE), int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def commit_stored(ctx: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Serve OffsetCommit 0."""
    accepted = []
    readable = ctx.allowed(AclOperation.READ, Kind.TOPIC, (topic.name for topic in request.topics))
    codes: dict[int, int] = {}
    async for topic in ctx.each(request.topics):
        async for partition in ctx.each(topic.partitions):
            code = NONE
            if topic.name not in readable:
                code = int(Kind.TOPIC.error)
            elif not exists(ctx, topic.name, partition.partition_index):
                code = UNKNOWN
            elif len(partition.committed_metadata or "") > ctx.config["offset.metadata.max.bytes"]:
                code = int(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            else:
                accepted.append((topic.name, partition))
            codes[id(partition)] = code
    for start in range(0, len(accepted), CALL_MAX):
        part = accepted[start : start + CALL_MAX]
        try:
            offsets = [
                StoredOffset(name, p.partition_index, p.committed_offset) for name, p in part
            ]
            await ctx.controller(
                COMMIT_STORED_OFFSETS, CommitStoredOffsets(request.group_id, offsets)
            )
        except WireError as error:
            codes.update((id(partition), int(error.code)) for _, partition in part)
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponse.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=codes[id(partition)]
                    )
                    async for partition in ctx.each(topic.partitions)
                ],
            )
            async for topic in ctx.each(request.topics)
        ]
    )


async def fetch_stored(ctx: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Serve OffsetFetch 0."""
    topics = request.topics or []
    asked = [(topic.name, index) for topic in topics for index in topic.partition_indexes]
    describable = ctx.allowed(AclOperation.DESCRIBE, Kind.TOPIC, (name for name, _ in asked))
    stored: dict[tuple[str, int], tuple[int, int]] = {}
    wanted: dict[tuple[str, int], None] = {}
    async for place in ctx.each(asked):
        if place[0] not in describable:
            stored[place] = (NO_OFFSET, int(Kind.TOPIC.error))
        elif exists(ctx, *place):
            wanted[place] = None
    known = list(wanted)
    for start in range(0, len(known), CALL_MAX):
        part = known[start : start + CALL_MAX]
        try:
            partitions = [StoredPartition(*place) for place in part]
            offsets = await ctx.controller(
                FETCH_STORED_OFFSETS, FetchStoredOffsets(request.group_id, partitions)
            )
        except WireError as error:
            stored.update((place, (NO_OFFSET, int(error.code))) for place in part)
            continue
        for place, offset in zip(part, offsets, strict=True):
            if offset is not None:
                stored[place] = (offset, NONE)
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponse.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    entry(index, *stored.get((topic.name, index), (NO_OFFSET, UNKNOWN)))
                    async for index in ctx.each(topic.partition_indexes)
                ],
            )
            async for topic in ctx.each(topics)
        ]
    )


def exists(ctx: RequestContext, topic: str, partition: int) -> bool:
    known = ctx.image.topics.get(topic)
    return known is not None and 0 <= partition < len(known.partitions)


def entry(index: int, offset: int, code: int) -> OffsetFetchResponse.OffsetFetchResponsePartition:
    """The response's entry of one partition."""
    return OffsetFetchResponse.OffsetFetchResponsePartition(
        partition_index=index, committed_offset=offset, metadata="", error_code=code
    )
