"""Shared by AlterConfigs and IncrementalAlterConfigs.

Which resources may be changed, the call to the controller, and one answer for each resource.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.config.resource_types import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from kbroker.config.topic_config import setting_name
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.support.config_resources import check_broker, check_group, existing_topic
from kbroker.handlers.support.config_resources import unsupported as unsupported_type

TIMEOUT_MS = 10_000
# BOUND: resources in one call, so that a large request does not hold up the controller.
CALL_RESOURCES_MAX = 100


async def alter(
    ctx: RequestContext,
    request: Any,
    response: type,
    operation: str,
    configs: Callable[[Any], list[Any]],
) -> Any:
    """Have the controller change the settings; a ``response`` with an entry for each resource.

    configs: what the controller is to be told of one resource's settings.
    """
    refused: dict[int, WireError] = {}
    seen: dict[tuple[int, str], int] = {}
    async for position, resource in ctx.each(enumerate(request.resources)):
        place = resource.resource_type, resource.resource_name
        if place in seen:
            error = WireError(ErrorCode.INVALID_REQUEST, "Name each resource once.")
            refused[position] = refused[seen[place]] = error
            continue
        seen[place] = position
        try:
            check_resource(ctx, *place)
        except WireError as error:
            refused[position] = error.bare()
    accepted = [r for n, r in enumerate(request.resources) if n not in refused]
    results = iter(await call(ctx, request.validate_only, operation, accepted, configs))
    entries = []
    async for position, resource in ctx.each(enumerate(request.resources)):
        if position in refused:
            entries.append(_failed(response, resource, refused[position]))
        else:
            result = next(results)
            entries.append(_entry(response, resource, result["error"], result["message"]))
    return response(responses=entries)


def all_failed(response: type, request: Any, error: WireError) -> Any:
    """A ``response`` with the same error for every resource."""
    return response(responses=[_failed(response, r, error) for r in request.resources])


def _failed(response: Any, resource: Any, error: WireError) -> Any:
    return _entry(response, resource, int(error.code), error.message)


def _entry(response: Any, resource: Any, code: int, message: str | None) -> Any:
    return response.AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


async def call(
    ctx: RequestContext,
    validate_only: bool,
    operation: str,
    resources: list[Any],
    configs: Callable[[Any], list[Any]],
) -> list[dict[str, Any]]:
    """Have the controller change these; its results are in the same order."""
    results: list[dict[str, Any]] = []
    for first in range(0, len(resources), CALL_RESOURCES_MAX):
        documents = [
            {"type": r.resource_type, "name": r.resource_name, "configs": named(r, configs(r))}
            for r in resources[first : first + CALL_RESOURCES_MAX]
        ]
        try:
            results += await ctx.controller(
                operation, TIMEOUT_MS, resources=documents, validate_only=validate_only
            )
        except WireError as error:
            if not results:
                raise
            # What was changed before is: only the rest has failed.
            failed = {"error": int(error.code), "message": error.message}
            return results + [failed] * (len(resources) - first)
    return results


def named(resource: Any, configs: list[Any]) -> list[Any]:
    """The settings of a resource under their own names."""
    if resource.resource_type != TOPIC:
        return configs
    return [[setting_name(name), *rest] for name, *rest in configs]


def check_resource(ctx: RequestContext, resource_type: int, name: str) -> None:
    """Refuse early what the controller would not know."""
    if resource_type == TOPIC:
        existing_topic(ctx, name)
    elif resource_type == BROKER:
        check_broker(ctx, name)
    elif resource_type == GROUP:
        check_group(name)
    elif resource_type == BROKER_LOGGER:
        check_broker(ctx, name, or_all=False)
        raise WireError(
            ErrorCode.INVALID_CONFIG,
            "This broker has no such logger: what it logs is chosen at its start (--debug).",
        )
    elif resource_type == CLIENT_METRICS:
        raise WireError(ErrorCode.INVALID_REQUEST, "This broker does not collect client metrics.")
    else:
        raise unsupported_type(resource_type)
