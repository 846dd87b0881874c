"""DescribeLogDirs (35): versions 0 to 5. Each io worker knows the logs it owns, and all of them
know every directory.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import on_cluster
from kbroker.ipc.calls import (
    DESCRIBE_LOG_DIRS,
    LogDirDescription,
    ReplicaSize,
    ReplicasToDescribe,
)
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from kbroker.security.operations import AclOperation, Kind


def fail(
    ctx: RequestContext, request: DescribeLogDirsRequest, error: WireError
) -> DescribeLogDirsResponse:
    """An error without a directory; versions before 3 have no field for it."""
    if ctx.api_version < 3:
        if error.code == Kind.CLUSTER.error:
            return DescribeLogDirsResponse()  # COMPAT: as in Kafka
        raise error
    return DescribeLogDirsResponse(error_code=int(error.code))


@api(
    ApiKey.DESCRIBE_LOG_DIRS,
    versions=(0, 5),
    fail=fail,
    authorize=on_cluster(AclOperation.DESCRIBE),
)
async def handle_describe_log_dirs(
    ctx: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Ask all io workers and merge their results for each directory."""
    wanted = replicas_of(request)
    asked = [ctx.io_worker(address, DESCRIBE_LOG_DIRS, wanted) for address in ctx.io_workers]
    directories: dict[str, DescribeLogDirsResponse.DescribeLogDirsResult] = {}
    topics: dict[tuple[str, str], DescribeLogDirsResponse.DescribeLogDirsTopic] = {}
    for call in asked:
        for described in await call:
            path = described.path
            known = directories.get(path)
            if known is None:
                known = directories[path] = directory(described)
            if described.error is not None:
                # One worker may see the directory fail before the others do.
                known.error_code = int(ErrorCode.KAFKA_STORAGE_ERROR)
            if wanted.totals:
                known.replica_count = max(known.replica_count, 0) + described.count
                known.replica_bytes = max(known.replica_bytes, 0) + described.size
            async for entry in ctx.each(described.logs):
                topic = topics.get((path, entry.topic))
                if topic is None:
                    topic = DescribeLogDirsResponse.DescribeLogDirsTopic(name=entry.topic)
                    topics[path, entry.topic] = topic
                    known.topics.append(topic)
                topic.partitions.append(partition(entry))
    for failed in directories.values():
        if failed.error_code:
            failed.topics = []
            failed.replica_count = failed.replica_bytes = -1
    return DescribeLogDirsResponse(results=list(directories.values()))


def replicas_of(request: DescribeLogDirsRequest) -> ReplicasToDescribe:
    """The replicas that were asked for: null means all."""
    if request.only_totals:
        return ReplicasToDescribe(None, totals=True)
    if request.topics is None:
        return ReplicasToDescribe(None)
    topics: dict[str, list[int]] = {}
    for topic in request.topics:
        topics.setdefault(topic.topic, []).extend(topic.partitions)
    return ReplicasToDescribe(topics)


def directory(described: LogDirDescription) -> DescribeLogDirsResponse.DescribeLogDirsResult:
    return DescribeLogDirsResponse.DescribeLogDirsResult(
        log_dir=described.path,
        total_bytes=described.total_bytes,
        usable_bytes=described.usable_bytes,
        is_cordoned=described.cordoned,
    )


def partition(entry: ReplicaSize) -> DescribeLogDirsResponse.DescribeLogDirsPartition:
    return DescribeLogDirsResponse.DescribeLogDirsPartition(
        partition_index=entry.partition,
        partition_size=entry.size,
        offset_lag=entry.lag,
        is_future_key=entry.future,
    )
