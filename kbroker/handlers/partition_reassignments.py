"""AlterPartitionReassignments (45) and ListPartitionReassignments (46): versions 0 to 1 and 0.

The controller serves them; other brokers say NOT_CONTROLLER.
"""

from __future__ import annotations

from kbroker.handlers.context import RequestContext, bound_of
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import on_cluster
from kbroker.ipc.calls import (
    ALTER_REASSIGNMENTS,
    LIST_REASSIGNMENTS,
    AlterReassignments,
    ListReassignments,
    NamedPartition,
    WantedReplicas,
)
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
    """Begin to move partitions to other brokers, or cancel that."""
    cls = AlterPartitionReassignmentsResponse
    wanted = [
        WantedReplicas(topic.name, entry.partition_index, entry.replicas)
        async for topic in ctx.each(request.topics)
        for entry in topic.partitions
    ]
    asked = AlterReassignments(wanted, request.allow_replication_factor_change)
    results = await ctx.controller(ALTER_REASSIGNMENTS, asked, bound_of(request.timeout_ms))
    in_order = iter(results)
    responses = []
    async for topic in ctx.each(request.topics):
        rows = [next(in_order) for _ in topic.partitions]
        partitions = [
            cls.ReassignablePartitionResponse(
                partition_index=row.partition, error_code=row.error, error_message=row.message
            )
            for row in rows
        ]
        responses.append(cls.ReassignableTopicResponse(name=topic.name, partitions=partitions))
    return cls(
        error_message=None,
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=responses,
    )


@api(
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    versions=(0, 0),
    authorize=on_cluster(AclOperation.DESCRIBE),
)
async def handle_list_partition_reassignments(
    ctx: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """The partitions that are being moved, of all or of those in the request."""
    wanted: list[NamedPartition] | None = None
    if request.topics is not None:
        wanted = [
            NamedPartition(topic.name, number)
            async for topic in ctx.each(request.topics)
            for number in topic.partition_indexes
        ]
    asked = ListReassignments(wanted)
    reassignments = await ctx.controller(LIST_REASSIGNMENTS, asked, bound_of(request.timeout_ms))
    cls = ListPartitionReassignmentsResponse
    topics: dict[str, list[ListPartitionReassignmentsResponse.OngoingPartitionReassignment]] = {}
    async for one in ctx.each(reassignments):
        row = cls.OngoingPartitionReassignment(
            partition_index=one.partition,
            replicas=one.replicas,
            adding_replicas=one.adding,
            removing_replicas=one.removing,
        )
        topics.setdefault(one.topic, []).append(row)
    return cls(
        error_message=None,
        topics=[
            cls.OngoingTopicReassignment(name=name, partitions=rows)
            for name, rows in topics.items()
        ],
    )
