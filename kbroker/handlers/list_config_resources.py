"""ListConfigResources (74): versions 0 and 1. Version 0 asks for client metrics only."""

from __future__ import annotations

from kbroker.config.resource_types import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import on_cluster
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from kbroker.security.operations import AclOperation

TYPES = {TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP}


@api(
    ApiKey.LIST_CONFIG_RESOURCES,
    versions=(0, 1),
    unjoined=ErrorCode.LEADER_NOT_AVAILABLE,
    authorize=on_cluster(AclOperation.DESCRIBE_CONFIGS),
)
async def handle_list_config_resources(
    ctx: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """Topics, brokers, groups that have settings, and subscriptions; no types means all types."""
    wanted = {CLIENT_METRICS} if ctx.api_version == 0 else set(request.resource_types) or TYPES
    if not wanted <= TYPES:
        raise WireError(ErrorCode.UNSUPPORTED_VERSION)
    resources: list[tuple[str, int]] = []
    if TOPIC in wanted:
        resources += [(name, TOPIC) for name in ctx.image.topics]
    if BROKER in wanted:
        resources += [(str(broker_id), BROKER) for broker_id in ctx.image.brokers]
    if CLIENT_METRICS in wanted:
        resources += [(name, CLIENT_METRICS) for name in ctx.image.client_metrics]
    if GROUP in wanted:
        resources += [(group, GROUP) for group in ctx.image.group_config]
    entry = ListConfigResourcesResponse.ConfigResource
    return ListConfigResourcesResponse(
        config_resources=[
            entry(resource_name=name, resource_type=resource_type)
            async for name, resource_type in ctx.each(resources)
        ]
    )
