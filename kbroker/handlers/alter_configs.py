"""AlterConfigs (33): versions 0 to 2. The controller replaces all settings of a resource."""

from __future__ import annotations

from typing import Any

from kbroker.errors import WireError
from kbroker.handlers.altered_configs import alter
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse


def fail(ctx: RequestContext, request: AlterConfigsRequest, error: WireError) -> Any:
    """The same error for every resource."""
    return respond([(r, int(error.code), error.message) for r in request.resources])


@api(ApiKey.ALTER_CONFIGS, versions=(0, 2), fail=fail)
async def handle_alter_configs(
    ctx: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """Replace the settings of topics, of groups and of this broker."""
    return respond(
        await alter(
            ctx,
            request,
            "alter_configs",
            lambda resource: [[config.name, config.value] for config in resource.configs],
        )
    )


def respond(outcomes: list[tuple[Any, int, str | None]]) -> AlterConfigsResponse:
    entry = AlterConfigsResponse.AlterConfigsResourceResponse
    return AlterConfigsResponse(
        responses=[
            entry(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, code, message in outcomes
        ]
    )
