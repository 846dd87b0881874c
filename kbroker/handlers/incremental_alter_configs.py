"""IncrementalAlterConfigs (44): versions 0 and 1. The controller changes single settings."""

from __future__ import annotations

from kbroker.config.dynamic import AlterOp
from kbroker.errors import WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.altered_configs import (
    REQUIREMENTS,
    all_failed,
    alter,
    own_name,
)
from kbroker.ipc.calls import (
    INCREMENTAL_ALTER_CONFIGS,
    IncrementalAlterConfigs,
    ResourceChanges,
)
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


def fail(
    ctx: RequestContext, request: IncrementalAlterConfigsRequest, error: WireError
) -> IncrementalAlterConfigsResponse:
    """The same error for every resource."""
    return all_failed(IncrementalAlterConfigsResponse, request, error)


@api(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1), fail=fail, authorize=REQUIREMENTS)
async def handle_incremental_alter_configs(
    ctx: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change settings of topics, of groups and of this broker."""
    return await alter(
        ctx,
        request,
        IncrementalAlterConfigsResponse,
        INCREMENTAL_ALTER_CONFIGS,
        IncrementalAlterConfigs,
        lambda resource: ResourceChanges(
            resource.resource_type,
            resource.resource_name,
            [
                AlterOp(own_name(resource, c.name), c.config_operation, c.value)
                for c in resource.configs
            ],
        ),
    )
