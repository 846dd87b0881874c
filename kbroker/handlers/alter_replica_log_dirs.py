"""AlterReplicaLogDirs (34): versions 0 to 2. The response is sent when the moves have begun.

A partition that does not exist yet is created in the named directory later, by whichever io worker
then owns it, so the request goes to all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.cluster.image import NO_SLOT
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import on_cluster
from kbroker.ipc.calls import ALTER_REPLICA_LOG_DIRS, MoveReplicas, ReplicaToMove
from kbroker.ipc.process_table import Address
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
)
from kbroker.security.operations import AclOperation
from kbroker.types import SlotId

# BOUND: replicas per call, so that a large request does not block their owner.
CALL_REPLICAS_MAX = 200


def fail(
    ctx: RequestContext, request: AlterReplicaLogDirsRequest, error: WireError
) -> AlterReplicaLogDirsResponse:
    """The same error for every partition."""
    return response({(topic, number): int(error.code) for topic, number, _ in asked(request)})


@api(
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    versions=(0, 2),
    fail=fail,
    unjoined=ErrorCode.REPLICA_NOT_AVAILABLE,
    authorize=on_cluster(AclOperation.ALTER),
)
async def handle_alter_replica_log_dirs(
    ctx: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Start the moves in the owners; the calls run in parallel."""
    by_worker: dict[Address, list[ReplicaToMove]] = {}
    codes: dict[tuple[str, int], int] = {}
    async for topic, number, path in ctx.each(asked(request)):
        slot, absent = replica_of(ctx, topic, number)
        workers = ctx.io_workers
        owners = workers if slot == NO_SLOT else [workers[slot % len(workers)]]
        codes[topic, number] = int(absent)
        for owner in owners:
            by_worker.setdefault(owner, []).append(ReplicaToMove(topic, number, slot, path))
    most = max(map(len, by_worker.values()), default=0)
    for first in range(0, most, CALL_REPLICAS_MAX):
        calls = [
            (part, ctx.io_worker(owner, ALTER_REPLICA_LOG_DIRS, MoveReplicas(part)))
            for owner, replicas in by_worker.items()
            if (part := replicas[first : first + CALL_REPLICAS_MAX])
        ]
        for part, call in calls:
            try:
                results = await call
            except WireError:
                continue  # restarting: not available now
            for (topic, number, _, _), code in zip(part, results, strict=True):
                if code != ErrorCode.REPLICA_NOT_AVAILABLE:
                    codes[topic, number] = code
    return response(codes)


def asked(request: AlterReplicaLogDirsRequest) -> Iterator[tuple[str, int, str]]:
    """Topic, partition and directory."""
    for directory in request.dirs:
        for topic in directory.topics:
            for number in topic.partitions:
                yield topic.name, number, directory.path


def replica_of(ctx: RequestContext, topic: str, number: int) -> tuple[SlotId, ErrorCode]:
    """The slot of this broker's replica, NO_SLOT if it has none; and the code if there is no log
    to move: as in Kafka, another one if no broker has such a partition.
    """
    try:
        return ctx.partition(topic, number).slot, ErrorCode.REPLICA_NOT_AVAILABLE
    except WireError as error:
        return NO_SLOT, error.code


def response(codes: dict[tuple[str, int], int]) -> AlterReplicaLogDirsResponse:
    """The response: one entry for each topic, in the order of the request."""
    cls = AlterReplicaLogDirsResponse
    topics: dict[str, AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult] = {}
    for (name, number), code in codes.items():
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = cls.AlterReplicaLogDirTopicResult(topic_name=name)
        topic.partitions.append(
            cls.AlterReplicaLogDirPartitionResult(partition_index=number, error_code=code)
        )
    return cls(results=list(topics.values()))
