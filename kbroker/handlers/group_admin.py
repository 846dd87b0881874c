"""Administrative requests about groups.

DescribeGroups (15), ListGroups (16), DeleteGroups (42), ConsumerGroupDescribe (69).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from kbroker.coordinator.list_filters import group_filter, unfiltered_groups
from kbroker.coordinator.partitioner import OFFSETS_TOPIC
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.coordinated import ask_all, split
from kbroker.handlers.support.requirements import each
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from kbroker.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from kbroker.protocol.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from kbroker.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from kbroker.security.operations import AclOperation, Kind

R = TypeVar("R")
Described = DescribeGroupsResponse.DescribedGroup | ConsumerGroupDescribeResponse.DescribedGroup

HIDDEN_TOPICS = WireError(
    Kind.TOPIC.error, "The group uses topics that the client is not authorized to describe."
)


def divide(
    ctx: RequestContext,
    operation: AclOperation,
    groups: list[str],
    failed: Callable[[str, WireError], R],
    repeats: bool = False,
) -> tuple[list[str], list[R]]:
    """The groups for which the client is authorized, and the entries of the others.

    repeats: whether one that is named again is answered again.
    """
    ids = groups if repeats else list(dict.fromkeys(groups))
    allowed = ctx.allowed(operation, Kind.GROUP, ids)
    error = WireError(Kind.GROUP.error)
    return (
        [group for group in ids if group in allowed],
        [failed(group, error) for group in ids if group not in allowed],
    )


def show_operations(ctx: RequestContext, rows: Iterable[Described], include: bool) -> None:
    """Set the authorized operations; coordinators do not know the client and report all."""
    if include and not ctx.access.everything:
        for row in rows:
            if not row.error_code:
                row.authorized_operations = ctx.access.operations(Kind.GROUP, row.group_id)


def group_failed(group_id: str, error: WireError) -> DescribeGroupsResponse.DescribedGroup:
    return DescribeGroupsResponse.DescribedGroup(group_id=group_id, error_code=int(error.code))


def describe_failed(
    ctx: RequestContext, request: DescribeGroupsRequest, error: WireError
) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=[group_failed(g, error) for g in request.groups])


@api(
    ApiKey.DESCRIBE_GROUPS,
    versions=ApiKey.DESCRIBE_GROUPS.versions,
    fail=describe_failed,
    authorize=each(AclOperation.DESCRIBE, Kind.GROUP),
)
async def handle_describe_groups(
    ctx: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    """Ask the coordinator of each group; a group named twice is in the response once."""
    include = request.include_authorized_operations
    ids, denied = divide(ctx, AclOperation.DESCRIBE, request.groups, group_failed)
    rows = await split(
        ctx,
        OFFSETS_TOPIC,
        ids,
        str,
        lambda ids: DescribeGroupsRequest(groups=ids, include_authorized_operations=include),
        lambda response: list(response.groups),
        group_failed,
    )
    show_operations(ctx, rows, include)
    return DescribeGroupsResponse(groups=rows + denied)


def consumer_group_failed(
    group_id: str, error: WireError
) -> ConsumerGroupDescribeResponse.DescribedGroup:
    row = ConsumerGroupDescribeResponse.DescribedGroup
    return row(group_id=group_id, error_code=int(error.code), error_message=error.message)


def consumer_describe_failed(
    ctx: RequestContext, request: ConsumerGroupDescribeRequest, error: WireError
) -> ConsumerGroupDescribeResponse:
    rows = [consumer_group_failed(g, error) for g in request.group_ids]
    return ConsumerGroupDescribeResponse(groups=rows)


@api(
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    versions=ApiKey.CONSUMER_GROUP_DESCRIBE.versions,
    fail=consumer_describe_failed,
    authorize=(
        each(AclOperation.DESCRIBE, Kind.GROUP),
        each(AclOperation.DESCRIBE, Kind.TOPIC),
    ),
)
async def handle_consumer_group_describe(
    ctx: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Ask the coordinator of each group; a group named twice is in the response once."""
    include = request.include_authorized_operations
    ids, denied = divide(ctx, AclOperation.DESCRIBE, request.group_ids, consumer_group_failed)
    rows = await split(
        ctx,
        OFFSETS_TOPIC,
        ids,
        str,
        lambda ids: ConsumerGroupDescribeRequest(
            group_ids=ids, include_authorized_operations=include
        ),
        lambda response: list(response.groups),
        consumer_group_failed,
    )
    show_operations(ctx, rows, include)
    shown = [
        row if describes_topics(ctx, row) else consumer_group_failed(row.group_id, HIDDEN_TOPICS)
        for row in rows
    ]
    return ConsumerGroupDescribeResponse(groups=shown + denied)


def describes_topics(
    ctx: RequestContext, row: ConsumerGroupDescribeResponse.DescribedGroup
) -> bool:
    """Whether the client may describe all topics that members are assigned or subscribe to."""
    names = {
        assigned.topic_name
        for member in row.members
        for assignment in (member.assignment, member.target_assignment)
        for assigned in assignment.topic_partitions
    }
    names.update(name for member in row.members for name in member.subscribed_topic_names)
    describable = ctx.allowed(AclOperation.DESCRIBE, Kind.TOPIC, names)
    return all(name in describable for name in names)


def deletion_failed(group_id: str, error: WireError) -> DeleteGroupsResponse.DeletableGroupResult:
    row = DeleteGroupsResponse.DeletableGroupResult
    return row(group_id=group_id, error_code=int(error.code))


def delete_failed(
    ctx: RequestContext, request: DeleteGroupsRequest, error: WireError
) -> DeleteGroupsResponse:
    rows = [deletion_failed(g, error) for g in request.groups_names]
    return DeleteGroupsResponse(results=rows)


@api(
    ApiKey.DELETE_GROUPS,
    versions=ApiKey.DELETE_GROUPS.versions,
    fail=delete_failed,
    authorize=each(AclOperation.DELETE, Kind.GROUP),
)
async def handle_delete_groups(
    ctx: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    """Ask the coordinator of each group."""
    ids, denied = divide(
        ctx, AclOperation.DELETE, request.groups_names, deletion_failed, repeats=True
    )
    rows = await split(
        ctx,
        OFFSETS_TOPIC,
        ids,
        str,
        lambda ids: DeleteGroupsRequest(groups_names=ids),
        lambda response: list(response.results),
        deletion_failed,
    )
    return DeleteGroupsResponse(results=rows + denied)


@api(
    ApiKey.LIST_GROUPS,
    versions=ApiKey.LIST_GROUPS.versions,
    unjoined=ErrorCode.COORDINATOR_NOT_AVAILABLE,
    authorize=(
        each(AclOperation.DESCRIBE, Kind.CLUSTER),
        each(AclOperation.DESCRIBE, Kind.GROUP),
    ),
)
async def handle_list_groups(ctx: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    """The groups of every coordinator of this broker; an error if one of them is loading."""
    response = ListGroupsResponse()
    unfiltered = unfiltered_groups(request)
    for part in await ask_all(ctx, OFFSETS_TOPIC, unfiltered):
        if isinstance(part, WireError):
            response.error_code = int(part.code)
        else:
            response.error_code = response.error_code or part.error_code
            response.groups += part.groups
    if unfiltered is not None:
        is_listed = group_filter(request)
        response.groups = [g for g in response.groups if is_listed(g.group_state, g.group_type)]
    if not ctx.allows(AclOperation.DESCRIBE, Kind.CLUSTER, is_filter=True):
        ids = [g.group_id for g in response.groups]
        describable = ctx.allowed(AclOperation.DESCRIBE, Kind.GROUP, ids, is_filter=True)
        response.groups = [g for g in response.groups if g.group_id in describable]
    return response
