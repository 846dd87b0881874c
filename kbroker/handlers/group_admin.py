"""Requests of operators about groups.

DescribeGroups (15), ListGroups (16), DeleteGroups (42), ConsumerGroupDescribe (69).
"""

from __future__ import annotations

from typing import Any

from kbroker.coordinator.list_filters import group_filter, unfiltered_groups
from kbroker.coordinator.partitioner import OFFSETS_TOPIC
from kbroker.errors import WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.coordinated import ask_all, split
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


def group_failed(group_id: str, error: WireError) -> Any:
    return DescribeGroupsResponse.DescribedGroup(group_id=group_id, error_code=int(error.code))


def describe_failed(
    ctx: RequestContext, request: DescribeGroupsRequest, error: WireError
) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=[group_failed(g, error) for g in request.groups])


@api(ApiKey.DESCRIBE_GROUPS, versions=ApiKey.DESCRIBE_GROUPS.versions, fail=describe_failed)
async def handle_describe_groups(
    ctx: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    """Ask the coordinator of each group; one that is named again is answered once."""
    include = request.include_authorized_operations
    rows = await split(
        ctx,
        OFFSETS_TOPIC,
        list(dict.fromkeys(request.groups)),
        str,
        lambda ids: DescribeGroupsRequest(groups=ids, include_authorized_operations=include),
        lambda response: list(response.groups),
        group_failed,
    )
    return DescribeGroupsResponse(groups=rows)


def consumer_group_failed(group_id: str, error: WireError) -> Any:
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
)
async def handle_consumer_group_describe(
    ctx: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Ask the coordinator of each group; one that is named again is answered once."""
    include = request.include_authorized_operations
    rows = await split(
        ctx,
        OFFSETS_TOPIC,
        list(dict.fromkeys(request.group_ids)),
        str,
        lambda ids: ConsumerGroupDescribeRequest(
            group_ids=ids, include_authorized_operations=include
        ),
        lambda response: list(response.groups),
        consumer_group_failed,
    )
    return ConsumerGroupDescribeResponse(groups=rows)


def deletion_failed(group_id: str, error: WireError) -> Any:
    row = DeleteGroupsResponse.DeletableGroupResult
    return row(group_id=group_id, error_code=int(error.code))


def delete_failed(
    ctx: RequestContext, request: DeleteGroupsRequest, error: WireError
) -> DeleteGroupsResponse:
    rows = [deletion_failed(g, error) for g in request.groups_names]
    return DeleteGroupsResponse(results=rows)


@api(ApiKey.DELETE_GROUPS, versions=ApiKey.DELETE_GROUPS.versions, fail=delete_failed)
async def handle_delete_groups(
    ctx: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    """Ask the coordinator of each group."""
    rows = await split(
        ctx,
        OFFSETS_TOPIC,
        request.groups_names,
        str,
        lambda ids: DeleteGroupsRequest(groups_names=ids),
        lambda response: list(response.results),
        deletion_failed,
    )
    return DeleteGroupsResponse(results=rows)


@api(ApiKey.LIST_GROUPS, versions=ApiKey.LIST_GROUPS.versions)
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
    return response
