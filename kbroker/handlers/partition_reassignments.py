"""AlterPartitionReassignments (45) and ListPartitionReassignments (46): versions 0 to 1 and 0.

A single broker has nowhere to move a replica to: an assignment is already in effect or is rejected.
Tools send these requests before they move replicas between log directories.
"""

from __future__ import annotations

from typing import Any

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import on_cluster
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from kbroker.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kbroker.security.operations import AclOperation


@api(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=(0, 1), authorize=on_cluster(AclOperation.ALTER)
)
async def handle_alter_partition_reassignments(
    ctx: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Accept requests that change nothing."""
    cls = AlterPartitionReassignmentsResponse
    return cls(
        error_message=None,
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=[
            cls.ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    answer(ctx, topic.name, entry) async for entry in ctx.each(topic.partitions)
                ],
            )
            async for topic in ctx.each(request.topics)
        ],
    )


def answer(ctx: RequestContext, topic: str, asked: Any) -> Any:
    """The response's entry of one partition."""
    cls = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse
    try:
        check(ctx, topic, asked.partition_index, asked.replicas)
    except WireError as error:
        return cls(
            partition_index=asked.partition_index,
            error_code=int(error.code),
            error_message=error.message,
        )
    return cls(partition_index=asked.partition_index, error_message=None)


def check(ctx: RequestContext, topic: str, number: int, replicas: list[int] | None) -> None:
    """WireError unless the partition has just these replicas."""
    present = ctx.partition(topic, number)
    if replicas is None:
        raise WireError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{topic}-{number} is not being reassigned."
        )
    unknown = [broker for broker in replicas if broker not in ctx.image.brokers]
    if unknown:
        raise WireError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{topic}-{number} is assigned to brokers that are not available: {unknown}.",
        )
    if replicas != list(present.replicas):
        raise WireError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{topic}-{number} has the replicas {list(present.replicas)}; this cluster cannot "
            f"reassign it to {replicas}.",
        )


@api(
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    versions=(0, 0),
    authorize=on_cluster(AclOperation.DESCRIBE),
)
async def handle_list_partition_reassignments(
    ctx: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Respond that there are no reassignments."""
    return ListPartitionReassignmentsResponse(error_message=None)
