"""DescribeConfigs (32): versions 0 to 4.

For topics, groups, subscriptions of client metrics, this broker and its loggers, and the settings
for all brokers.
"""

from __future__ import annotations

from kbroker.cluster.settings import DEFAULT
from kbroker.config.client_metrics_config import check_subscription_name
from kbroker.config.describe import (
    ConfigEntry,
    describe_broker,
    describe_broker_defaults,
    describe_client_metrics,
    describe_group,
    describe_topic,
    describe_unknown,
)
from kbroker.config.loader import ConfigSource
from kbroker.config.resource_types import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from kbroker.config.topic_config import TopicConfig, setting_name
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.config_resources import (
    DEFAULT_BROKER,
    check_allowed,
    check_broker,
    check_group,
    existing_topic,
    unsupported,
)
from kbroker.handlers.support.requirements import each
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from kbroker.security.operations import AclOperation, Kind

Asked = DescribeConfigsRequest.DescribeConfigsResource
# What resources with the same settings have in common.
Alike = tuple[object, ...]


def fail(
    ctx: RequestContext, request: DescribeConfigsRequest, error: WireError
) -> DescribeConfigsResponse:
    """The same error for every resource."""
    return DescribeConfigsResponse(
        results=[failed(resource, error) for resource in request.resources]
    )


@api(
    ApiKey.DESCRIBE_CONFIGS,
    versions=(0, 4),
    fail=fail,
    unjoined=ErrorCode.LEADER_NOT_AVAILABLE,
    authorize=(
        each(AclOperation.DESCRIBE_CONFIGS, Kind.TOPIC),
        each(AclOperation.DESCRIBE_CONFIGS, Kind.CLUSTER),
        each(AclOperation.DESCRIBE_CONFIGS, Kind.GROUP),
    ),
)
async def handle_describe_configs(
    ctx: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Describe each resource on its own, once: all settings of one may be a thousand times as long
    as its name.
    """
    response = DescribeConfigsResponse()
    alike: dict[Alike, list[DescribeConfigsResponse.DescribeConfigsResourceResult]] = {}
    seen: set[tuple[int, str]] = set()
    async for resource in ctx.each(request.resources):
        place = resource.resource_type, resource.resource_name
        try:
            if place in seen:
                raise WireError(ErrorCode.INVALID_REQUEST, "List each resource only once.")
            seen.add(place)
            check_allowed(ctx, AclOperation.DESCRIBE_CONFIGS, *place)
            kind = kind_of(ctx, resource)
            if kind not in alike:
                entries = settings(ctx, resource)
                alike[kind] = [describe(ctx, request, entry) for entry in entries]
        except WireError as error:
            response.results.append(failed(resource, error))
            continue
        response.results.append(
            DescribeConfigsResponse.DescribeConfigsResult(
                error_message="",  # COMPAT: as Kafka; a response to AlterConfigs has null
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=alike[kind],
            )
        )
    return response


def kind_of(ctx: RequestContext, resource: Asked) -> Alike:
    """Resources of the same kind have the same settings; thousands of topics have few kinds."""
    kind, name = resource.resource_type, resource.resource_name
    if kind == TOPIC:
        own = existing_topic(ctx, name).config
    elif kind == GROUP:
        check_group(name)
        own = ctx.image.group_config.get(name, {})
    else:
        return kind, name, keys_of(resource)
    return kind, tuple(sorted(own.items())), keys_of(resource)


def keys_of(resource: Asked) -> tuple[str, ...] | None:
    keys = resource.configuration_keys
    return None if keys is None else tuple(keys)


def settings(ctx: RequestContext, resource: Asked) -> list[ConfigEntry]:
    """The settings asked for."""
    name, wanted = resource.resource_name, resource.configuration_keys
    names = None if wanted is None else set(wanted)
    if resource.resource_type == TOPIC:
        topic = existing_topic(ctx, name)
        names = None if names is None else set(map(setting_name, names))
        return describe_topic(TopicConfig.stored(topic.config, ctx.config), ctx.config, names)
    if resource.resource_type == BROKER:
        check_broker(ctx, name)
        return settings_of_broker(ctx, name, names)
    if resource.resource_type == GROUP:
        check_group(name)
        return describe_group(ctx.image.group_config.get(name, {}), ctx.config, names)
    if resource.resource_type == BROKER_LOGGER:
        check_broker(ctx, name, or_all=False)
        from kbroker.handlers.support.broker_loggers import describe_loggers

        return describe_loggers(ctx, names)
    if resource.resource_type == CLIENT_METRICS:
        check_subscription_name(name)
        return describe_client_metrics(ctx.image.client_metrics.get(name, {}), names)
    raise unsupported(resource.resource_type)


def settings_of_broker(ctx: RequestContext, name: str, names: set[str] | None) -> list[ConfigEntry]:
    """Those of this broker, or of all of them; stored ones that nobody here knows, too."""
    stored = ctx.image.broker_config
    layers = [(int(ConfigSource.DYNAMIC_DEFAULT_BROKER), stored.get(DEFAULT, {}))]
    if name == DEFAULT_BROKER:
        described = describe_broker_defaults(ctx.config, names)
    else:
        described = describe_broker(ctx.config, names)
        layers.insert(0, (int(ConfigSource.DYNAMIC_BROKER), stored.get(name, {})))
    return described + describe_unknown(layers, names)


def describe(
    ctx: RequestContext, request: DescribeConfigsRequest, entry: ConfigEntry
) -> DescribeConfigsResponse.DescribeConfigsResourceResult:
    """A config, as in the response."""
    synonym = DescribeConfigsResponse.DescribeConfigsSynonym
    described = DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        is_default=entry.is_default and ctx.api_version == 0,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )
    if request.include_synonyms:
        described.synonyms = [
            synonym(name=name, value=value, source=source) for name, value, source in entry.synonyms
        ]
    return described


def failed(resource: Asked, error: WireError) -> DescribeConfigsResponse.DescribeConfigsResult:
    return DescribeConfigsResponse.DescribeConfigsResult(
        error_code=int(error.code),
        error_message=error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
