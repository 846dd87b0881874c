"""CreateTopics (19): versions 0 to 7. The controller decides; it replies when the topic is served.

From version 5 on the response describes the new topic: partitions, replicas, all settings.
"""

from __future__ import annotations

from kbroker.config.describe import describe_topic
from kbroker.config.topic_config import TopicConfig, setting_name
from kbroker.errors import WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import each
from kbroker.ipc.calls import (
    CREATE_TOPICS,
    Assigned,
    CreateTopics,
    SettingValue,
    TopicResult,
    TopicToCreate,
)
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.security.operations import AclOperation, Kind

# What topics with the same settings have in common.
Alike = tuple[object, ...]


def fail(
    ctx: RequestContext, request: CreateTopicsRequest, error: WireError
) -> CreateTopicsResponse:
    """The same error for every topic."""
    entry = CreateTopicsResponse.CreatableTopicResult
    names = dict.fromkeys(topic.name for topic in request.topics)
    code = int(error.code)
    return CreateTopicsResponse(
        topics=[entry(name=name, error_code=code, error_message=error.message) for name in names]
    )


@api(
    ApiKey.CREATE_TOPICS,
    versions=(0, 7),
    fail=fail,
    authorize=(
        each(AclOperation.CREATE, Kind.CLUSTER),
        each(AclOperation.CREATE, Kind.TOPIC),
        each(AclOperation.DESCRIBE_CONFIGS, Kind.TOPIC),
    ),
)
async def handle_create_topics(
    ctx: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    """Create topics, or with ``validate_only`` check whether that would work."""
    if not request.topics:
        return CreateTopicsResponse()
    named: dict[str, list[TopicToCreate]] = {}
    creatable = ctx.creatable(topic.name for topic in request.topics)
    by_name: dict[str, TopicResult] = {}
    async for topic in ctx.each(request.topics):
        if topic.name not in creatable:
            by_name[topic.name] = denied(topic.name)
            continue
        of_name = named.setdefault(topic.name, [])
        if len(of_name) < 2:  # to say that it is named twice
            of_name.append(wanted(topic))
    results = await ctx.change_in_parts(
        CREATE_TOPICS,
        request.timeout_ms,
        list(named.values()),
        lambda topics, within_ms: CreateTopics(topics, request.validate_only, within_ms),
    )
    # A topic named twice has the same result twice; the response has it once.
    by_name |= {str(result.name): result for result in results}
    operation = AclOperation.DESCRIBE_CONFIGS
    describable = ctx.allowed(operation, Kind.TOPIC, by_name, is_filter=True)
    configs = {topic.name: topic.configs for topic in request.topics}
    alike: dict[Alike, list[CreateTopicsResponse.CreatableTopicConfigs]] = {}
    return CreateTopicsResponse(
        topics=[
            topic_result(ctx, result, configs[name], alike, name in describable)
            async for name, result in ctx.each(by_name.items())
        ]
    )


def denied(name: str) -> TopicResult:
    """A result like the controller's, for a topic that the client may not create."""
    error = Kind.TOPIC.error
    return TopicResult(name, int(error), error.message)


def wanted(topic: CreateTopicsRequest.CreatableTopic) -> TopicToCreate:
    """A topic, as an argument of the controller's operation."""
    return TopicToCreate(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [Assigned(a.partition_index, a.broker_ids) for a in topic.assignments],
        [SettingValue(setting_name(config.name), config.value) for config in topic.configs],
    )


def topic_result(
    ctx: RequestContext,
    result: TopicResult,
    configs: list[CreateTopicsRequest.CreatableTopicConfig],
    alike: dict[Alike, list[CreateTopicsResponse.CreatableTopicConfigs]],
    shows_settings: bool,
) -> CreateTopicsResponse.CreatableTopicResult:
    """The response's entry of one topic.

    alike: settings by the topic's own ones. A request for thousands of topics has few kinds.
    shows_settings: whether the client may know them, and how large the topic is.
    """
    entry = CreateTopicsResponse.CreatableTopicResult(
        name=result.name or "", error_code=result.error, error_message=result.message
    )
    if result.error:
        entry.configs = None if ctx.api_version >= 5 else []
        return entry
    if result.topic_id is not None:
        entry.topic_id = result.topic_id
    if ctx.api_version >= 5 and not shows_settings:
        entry.configs = None
        entry.topic_config_error_code = int(Kind.TOPIC.error)
    elif ctx.api_version >= 5:
        entry.num_partitions = result.partitions
        entry.replication_factor = result.replication_factor
        overrides = {
            setting_name(config.name): config.value
            for config in configs
            if config.value is not None
        }
        kind = tuple(sorted(overrides.items()))
        if kind not in alike:
            alike[kind] = settings(ctx, overrides)
        entry.configs = alike[kind]
    return entry


def settings(
    ctx: RequestContext, overrides: dict[str, str]
) -> list[CreateTopicsResponse.CreatableTopicConfigs]:
    """Every setting of a topic with these overrides."""
    entry = CreateTopicsResponse.CreatableTopicConfigs
    return [
        entry(
            name=setting.name,
            value=setting.value,
            read_only=setting.read_only,
            config_source=setting.source,
            is_sensitive=setting.sensitive,
        )
        for setting in describe_topic(TopicConfig(overrides, ctx.config), ctx.config)
    ]
