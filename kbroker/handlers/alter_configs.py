"""AlterConfigs (33): versions 0 to 2. The controller replaces all settings of a resource."""

from __future__ import annotations

from kbroker.errors import WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.altered_configs import REQUIREMENTS, all_failed, alter, own_name
from kbroker.ipc.calls import ALTER_CONFIGS, AlterConfigs, ResourceSettings, SettingValue
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse


def fail(
    ctx: RequestContext, request: AlterConfigsRequest, error: WireError
) -> AlterConfigsResponse:
    """The same error for every resource."""
    return all_failed(AlterConfigsResponse, request, error)


@api(ApiKey.ALTER_CONFIGS, versions=(0, 2), fail=fail, authorize=REQUIREMENTS)
async def handle_alter_configs(
    ctx: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """Replace the settings of topics, of groups and of this broker."""
    return await alter(
        ctx,
        request,
        AlterConfigsResponse,
        ALTER_CONFIGS,
        AlterConfigs,
        lambda resource: ResourceSettings(
            resource.resource_type,
            resource.resource_name,
            [SettingValue(own_name(resource, c.name), c.value) for c in resource.configs],
        ),
    )
