"""Metadata (3): versions 0 to 13, served from this process's cluster image.

A request for all topics is an empty list in version 0, null later. A topic that does not exist is
created if the broker (auto.create.topics.enable) and the request allow it; versions 0 to 3 cannot
forbid it. The response then describes the finished topic, unless it was deleted just before: a
client that deletes a topic and looks for it finds that it is gone. From version 12 on a topic may
be named by its id alone.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from kbroker.cluster.control_requests import NO_LEADER
from kbroker.cluster.image import PartitionImage, TopicImage
from kbroker.controller.state.topics import check_name
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import each
from kbroker.ipc.rpc import run
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.protocol.primitives import NO_UUID
from kbroker.security.access import EVERYTHING
from kbroker.security.operations import AclOperation, Kind

Asked = MetadataRequest.MetadataRequestTopic
# A topic that there is, or the response's entry with an error.
Found = TopicImage | MetadataResponse.MetadataResponseTopic

# BOUND: encoded responses cached until the image changes, each of at least this many partitions.
KEPT_RESPONSES_MAX = 8
# How long a topic counts as recently deleted.
JUST_DELETED_S = 1.0
KEPT_PARTITIONS_MIN = 200


def fail(ctx: RequestContext, request: MetadataRequest, error: WireError) -> MetadataResponse:
    """Every topic with the error; if none was named, only version 13 has a field for it, at the
    top. Without brokers to name there is no response: clients take an empty list for the cluster.
    """
    if not ctx.image.brokers:
        raise error
    response = with_brokers(ctx)
    response.topics = [
        failed_topic(ctx, error.code, topic.name, topic.topic_id) for topic in request.topics or ()
    ]
    if ctx.api_version >= 13:
        response.error_code = int(error.code)
    elif not response.topics:
        raise error
    return response


@api(
    ApiKey.METADATA,
    versions=(0, 13),
    fail=fail,
    unjoined=ErrorCode.LEADER_NOT_AVAILABLE,
    authorize=(
        each(AclOperation.DESCRIBE, Kind.TOPIC),
        each(AclOperation.CREATE, Kind.CLUSTER),
        each(AclOperation.CREATE, Kind.TOPIC),
        each(AclOperation.DESCRIBE, Kind.CLUSTER),
    ),
)
async def handle_metadata(
    ctx: RequestContext, request: MetadataRequest
) -> MetadataResponse | bytes:
    """Brokers, and the requested topics."""
    image = ctx.image
    topics: list[Found]
    if request.topics is None or (ctx.api_version == 0 and not request.topics):
        shown = ctx.allowed(AclOperation.DESCRIBE, Kind.TOPIC, image.topics, is_filter=True)
        topics = list(image.topics.values())
        if shown is not EVERYTHING:
            topics = [topic for topic in topics if topic.name in shown]
    else:
        entries = unique(request.topics)
        check_entries(ctx, entries)
        describable = ctx.allowed(AclOperation.DESCRIBE, Kind.TOPIC, named(ctx, entries))
        failed = await create_missing(ctx, request, entries, describable)
        topics = [find(ctx, entry, failed, describable) async for entry in ctx.each(entries)]
    response = with_brokers(ctx)
    key = response_key(ctx, request, response, topics)
    if key is None:
        return await complete(ctx, request, response, topics)
    derived = image.derived
    if key not in derived:
        await complete(ctx, request, response, topics)
        out = bytearray()
        await ctx.slices.finish(codec.encode_steps(response, ctx.api_version, out))
        if len(derived) >= KEPT_RESPONSES_MAX:
            derived.clear()
        derived[key] = bytes(out)
    encoded: bytes = derived[key]
    return encoded


def response_key(
    ctx: RequestContext, request: MetadataRequest, response: MetadataResponse, topics: list[Found]
) -> tuple[object, ...] | None:
    """The cache key: all that a response depends on besides the image. None if caching is not worth
    it.

    Ten thousand partitions take tens of milliseconds, in which no other request is served.
    """
    partitions = 0
    for topic in topics:
        if not isinstance(topic, TopicImage):
            return None
        partitions += len(topic.partitions)
    if partitions < KEPT_PARTITIONS_MIN:
        return None
    return (
        "metadata",
        ctx.api_version,
        ctx.access.cache_key,
        request.include_topic_authorized_operations,
        request.include_cluster_authorized_operations,
        tuple((broker.node_id, broker.host, broker.port) for broker in response.brokers),
        tuple(topic.name for topic in topics),
    )


async def complete(
    ctx: RequestContext, request: MetadataRequest, response: MetadataResponse, topics: list[Found]
) -> MetadataResponse:
    """Add the topics, and the authorized operations if requested."""
    reachable = frozenset(broker.node_id for broker in response.brokers)
    response.topics = [
        describe(ctx, topic, reachable) if isinstance(topic, TopicImage) else topic
        async for topic in ctx.each(topics)
    ]
    if request.include_topic_authorized_operations:
        async for topic in ctx.each(response.topics):
            # COMPAT: also of a topic that does not exist, as far as the client may know that.
            if topic.name is not None and topic.error_code != Kind.TOPIC.error:
                operations = ctx.access.operations(Kind.TOPIC, topic.name)
                topic.topic_authorized_operations = operations
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = ctx.cluster_operations()
    return response


def unique(entries: list[Asked]) -> list[Asked]:
    """The entries without repetitions."""
    by_topic = {(entry.name, entry.topic_id): entry for entry in entries}
    return list(by_topic.values())


def check_entries(ctx: RequestContext, entries: list[Asked]) -> None:
    """INVALID_REQUEST if versions 10 and 11 use ids: they have the field, but may not set it."""
    if ctx.api_version < 12 and any(e.name is None or e.topic_id != NO_UUID for e in entries):
        raise WireError(ErrorCode.INVALID_REQUEST)


def named(ctx: RequestContext, entries: list[Asked]) -> Iterator[str]:
    """The names of the topics that entries mean."""
    for entry in entries:
        name = name_of(ctx, entry)
        if name is not None:
            yield name


def name_of(ctx: RequestContext, entry: Asked) -> str | None:
    """The topic's name; None for an unknown id."""
    if entry.name is not None and entry.topic_id == NO_UUID:
        name: str = entry.name
        return name
    topic = ctx.image.topics_by_id.get(entry.topic_id)
    return None if topic is None else topic.name


async def create_missing(
    ctx: RequestContext,
    request: MetadataRequest,
    entries: list[Asked],
    describable: Container[str],
) -> dict[str, int]:
    """Auto-create topics where allowed; returns the error codes by name."""
    allowed = request.allow_auto_topic_creation or ctx.api_version < 4
    if not (allowed and ctx.config["auto.create.topics.enable"]):
        return {}
    names = [
        entry.name
        async for entry in ctx.each(entries)
        if entry.topic_id == NO_UUID
        and entry.name is not None
        and entry.name not in ctx.image.topics
        and entry.name in describable
        and is_legal(entry.name)
    ]
    creatable = ctx.creatable(names)
    denied = {name: int(Kind.TOPIC.error) for name in names if name not in creatable}
    names = [name for name in names if name in creatable]
    # COMPAT: Kafka does not wait for the creation; its topic exists some 30 ms later.
    gone = {name for name in names if ctx.image.went_away(name, JUST_DELETED_S)}
    if gone:
        run(ctx.create_automatically(sorted(gone)))
        names = [name for name in names if name not in gone]
    if not names:
        return denied
    try:
        results = await ctx.create_automatically(names)
    except WireError:
        # The controller is restarting or slow; the client retries.
        return denied | dict.fromkeys(names, int(ErrorCode.LEADER_NOT_AVAILABLE))
    # If another broker is the controller, a topic may exist that this broker does not know yet.
    absent = int(ErrorCode.LEADER_NOT_AVAILABLE)
    return denied | {str(result.name): result.error or absent for result in results}


def is_legal(name: str) -> bool:
    try:
        check_name(name)
    except WireError:
        return False
    return True


def find(
    ctx: RequestContext, entry: Asked, failed: dict[str, int], describable: Container[str]
) -> Found:
    """The topic of a request's entry, or the response's entry with the error.

    Of a topic that the client may not describe nothing is said but what it knows: not even whether
    there is such a topic, if it was named.
    """
    name = entry.name
    meant = name_of(ctx, entry)
    if meant is not None and meant not in describable:
        known = name if entry.topic_id == NO_UUID else None
        return failed_topic(ctx, Kind.TOPIC.error, known, entry.topic_id)
    if name is None or entry.topic_id != NO_UUID:
        topic = ctx.image.topics_by_id.get(entry.topic_id)
        code = int(ErrorCode.UNKNOWN_TOPIC_ID)
    else:
        topic = ctx.image.topics.get(name)
        code = failed.get(name) or int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic is None and not is_legal(name):
            code = int(ErrorCode.INVALID_TOPIC_EXCEPTION)
    return topic or failed_topic(ctx, code, name, entry.topic_id)


def failed_topic(
    ctx: RequestContext, code: int, name: str | None, topic_id: bytes
) -> MetadataResponse.MetadataResponseTopic:
    if name is None and ctx.api_version < 12:
        name = ""
    return MetadataResponse.MetadataResponseTopic(
        error_code=int(code), name=name, topic_id=topic_id
    )


def with_brokers(ctx: RequestContext) -> MetadataResponse:
    """The part of the response that does not depend on the request."""
    image = ctx.image
    entry = MetadataResponse.MetadataResponseBroker
    return MetadataResponse(
        brokers=[
            entry(
                node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
            )
            for broker in image.brokers.values()
            if (endpoint := ctx.endpoint(broker)) is not None
        ],
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
    )


def describe(
    ctx: RequestContext, topic: TopicImage, reachable: frozenset[int]
) -> MetadataResponse.MetadataResponseTopic:
    """A topic with all its partitions."""
    entry = MetadataResponse.MetadataResponsePartition
    return MetadataResponse.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            entry(
                error_code=leader_error(ctx, partition, reachable),
                partition_index=number,
                # COMPAT: as in Kafka, a leader that is not in the response's brokers is none.
                leader_id=partition.leader if partition.leader in reachable else NO_LEADER,
                leader_epoch=partition.leader_epoch,
                replica_nodes=partition.replicas,
                isr_nodes=partition.isr,
                offline_replicas=ctx.image.offline_replicas(partition),
            )
            for number, partition in enumerate(topic.partitions)
        ],
    )


def leader_error(ctx: RequestContext, partition: PartitionImage, reachable: frozenset[int]) -> int:
    """Whether there is a leader, and this client can reach it by its listener."""
    if partition.leader in reachable:
        return 0
    if partition.leader in ctx.image.brokers and ctx.api_version >= 6:
        return int(ErrorCode.LISTENER_NOT_FOUND)
    return int(ErrorCode.LEADER_NOT_AVAILABLE)
