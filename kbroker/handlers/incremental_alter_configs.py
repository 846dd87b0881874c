"""IncrementalAlterConfigs (44): versions 0 and 1. The controller changes single settings."""

from __future__ import annotations

from typing import Any

from kbroker.errors import WireError
from kbroker.handlers.altered_configs import alter
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


def fail(ctx: RequestContext, request: IncrementalAlterConfigsRequest, error: WireError) -> Any:
    """The same error for every resource."""
    return respond([(r, int(error.code), error.message) for r in request.resources])


@api(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1), fail=fail)
async def handle_incremental_alter_configs(
    ctx: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change settings of topics, of groups and of this broker."""
    return respond(
        await alter(
            ctx,
            request,
            "incremental_alter_configs",
            lambda resource: [[c.name, c.config_operation, c.value] for c in resource.configs],
        )
    )


def respond(outcomes: list[tuple[Any, int, str | None]]) -> IncrementalAlterConfigsResponse:
    entry = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    return IncrementalAlterConfigsResponse(
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
