"""Shared by AlterConfigs and IncrementalAlterConfigs.

Which resources may be changed, the call to the controller, and one response for each resource.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from kbroker.config.client_metrics_config import check_subscription_name
from kbroker.config.resource_types import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from kbroker.config.topic_config import setting_name
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.support.config_resources import (
    check_allowed,
    check_broker,
    check_group,
    existing_topic,
)
from kbroker.handlers.support.config_resources import unsupported as unsupported_type
from kbroker.handlers.support.requirements import each
from kbroker.ipc.calls import CallOperation, ConfigResult
from kbroker.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from kbroker.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kbroker.security.operations import AclOperation, Kind

Altered = AlterConfigsRequest | IncrementalAlterConfigsRequest
Asked = (
    AlterConfigsRequest.AlterConfigsResource | IncrementalAlterConfigsRequest.AlterConfigsResource
)
Q = TypeVar("Q")
R = TypeVar("R")
# The response of either API.
M = TypeVar("M", AlterConfigsResponse, IncrementalAlterConfigsResponse)

REQUIREMENTS = tuple(
    each(AclOperation.ALTER_CONFIGS, kind) for kind in (Kind.TOPIC, Kind.CLUSTER, Kind.GROUP)
)
# BOUND: resources per call, so that a large request does not block the controller.
CALL_RESOURCES_MAX = 100


async def alter(
    ctx: RequestContext,
    request: Altered,
    response: type[M],
    operation: CallOperation[Q, list[ConfigResult]],
    asked: Callable[[list[R], bool], Q],
    wanted: Callable[[Any], R],
) -> M:
    """Alter configs through the controller; returns a ``response`` with an entry for each resource.

    asked: the operation's request for some resources, which may be to validate only. wanted: the
    part of it for one resource.
    """
    resources: list[Asked] = [*request.resources]
    rejected: dict[int, WireError] = {}
    own: set[int] = set()  # served here, without error
    seen: dict[tuple[int, str], int] = {}
    async for position, resource in ctx.each(enumerate(resources)):
        place = resource.resource_type, resource.resource_name
        if place in seen:
            error = WireError(ErrorCode.INVALID_REQUEST, "List each resource only once.")
            rejected[position] = rejected[seen[place]] = error
            continue
        seen[place] = position
        try:
            check_allowed(ctx, AclOperation.ALTER_CONFIGS, *place)
            check_resource(ctx, *place)
            if resource.resource_type == BROKER_LOGGER:
                await alter_levels(ctx, resource, request.validate_only)
                own.add(position)
        except WireError as error:
            rejected[position] = error.bare()
    accepted = [r for n, r in enumerate(resources) if n not in rejected and n not in own]
    validate_only = request.validate_only
    results = iter(
        await call(ctx, operation, accepted, wanted, lambda part: asked(part, validate_only))
    )
    entries = []
    async for position, resource in ctx.each(enumerate(resources)):
        if position in own:
            entries.append(_entry(response, resource, 0, None))
        elif position in rejected:
            entries.append(_failed(response, resource, rejected[position]))
        else:
            result = next(results)
            entries.append(_entry(response, resource, result.error, result.message))
    return response(responses=entries)


async def alter_levels(ctx: RequestContext, resource: Asked, validate_only: bool) -> None:
    """Change the levels of loggers, which are no stored configs. Raises WireError."""
    if not isinstance(resource, IncrementalAlterConfigsRequest.AlterConfigsResource):
        raise WireError(
            ErrorCode.INVALID_REQUEST,
            "Levels of loggers are changed by IncrementalAlterConfigs only.",
        )
    from kbroker.handlers.support.broker_loggers import alter_loggers

    await alter_loggers(ctx, resource.configs, validate_only)


def all_failed(response: type[M], request: Altered, error: WireError) -> M:
    """A ``response`` with the same error for every resource."""
    return response(responses=[_failed(response, r, error) for r in request.resources])


def _failed(response: type[M], resource: Asked, error: WireError) -> Any:
    return _entry(response, resource, int(error.code), error.message)


def _entry(response: type[M], resource: Asked, code: int, message: str | None) -> Any:
    return response.AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


async def call(
    ctx: RequestContext,
    operation: CallOperation[Q, list[ConfigResult]],
    resources: list[Asked],
    wanted: Callable[[Any], R],
    asked: Callable[[list[R]], Q],
) -> list[ConfigResult]:
    """Alter the configs of these resources through the controller; results are in the same
    order.
    """
    results: list[ConfigResult] = []
    for first in range(0, len(resources), CALL_RESOURCES_MAX):
        part = [wanted(resource) for resource in resources[first : first + CALL_RESOURCES_MAX]]
        try:
            some = await ctx.controller(operation, asked(part))
        except WireError as error:
            if not results:
                raise
            # Earlier parts have been changed: only the rest has failed.
            failed = ConfigResult(int(error.code), error.message)
            return results + [failed] * (len(resources) - first)
        results += some
    return results


def own_name(resource: Asked, name: str) -> str:
    """The name of the resource's setting in kbroker."""
    return setting_name(name) if resource.resource_type == TOPIC else name


def check_resource(ctx: RequestContext, resource_type: int, name: str) -> None:
    """Reject resources early that the controller would not know."""
    if resource_type == TOPIC:
        existing_topic(ctx, name)
    elif resource_type == BROKER:
        check_broker(ctx, name)
    elif resource_type == GROUP:
        check_group(name)
    elif resource_type == BROKER_LOGGER:
        check_broker(ctx, name, or_all=False)
    elif resource_type == CLIENT_METRICS:
        check_subscription_name(name)
    else:
        raise unsupported_type(resource_type)
