"""FindCoordinator (10): versions 0 to 6; from 4 on for several keys at once.

The coordinator of a key is the leader of the partition that the key hashes to. The internal topic
is created when it is first asked for, and the response waits for that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kbroker.coordinator.partitioner import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    coordinator_partition,
)
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import each
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kbroker.security.operations import AclOperation, Kind

# A coordinator's fields in either form of the response.
Fields = dict[str, Any]
NOWHERE: Fields = {"node_id": -1, "host": "", "port": -1}
# COMPAT: Kafka's message without an error, up to version 3. kafkajs rejects an empty one.
NO_ERROR = "NONE"


class KeyType(NamedTuple):
    """first_version: the first with this type. topic: None if there is no such coordinator."""

    name: str
    first_version: int
    topic: str | None
    kind: Kind | None


KEY_TYPES = {
    0: KeyType("consumer groups", 0, OFFSETS_TOPIC, Kind.GROUP),
    1: KeyType("transactions", 1, TRANSACTIONS_TOPIC, Kind.TRANSACTIONAL_ID),
    2: KeyType("share groups", 6, None, None),
}


def fail(
    ctx: RequestContext, request: FindCoordinatorRequest, error: WireError
) -> FindCoordinatorResponse:
    """The same error for every key."""
    problem = {**NOWHERE, "error_code": int(error.code), "error_message": error.message}
    if ctx.api_version < 4:
        return FindCoordinatorResponse(**problem)
    coordinator = FindCoordinatorResponse.Coordinator
    return FindCoordinatorResponse(
        coordinators=[coordinator(key=key, **problem) for key in request.coordinator_keys]
    )


@api(
    ApiKey.FIND_COORDINATOR,
    versions=(0, 6),
    fail=fail,
    unjoined=ErrorCode.COORDINATOR_NOT_AVAILABLE,
    authorize=(
        each(AclOperation.DESCRIBE, Kind.GROUP),
        each(AclOperation.DESCRIBE, Kind.TRANSACTIONAL_ID),
    ),
)
async def handle_find_coordinator(
    ctx: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Name the broker of each key."""
    kind = KEY_TYPES.get(request.key_type)
    if kind is None or ctx.api_version < kind.first_version:
        raise WireError(
            ErrorCode.INVALID_REQUEST,
            "This version of the request does not have that coordinator type.",
        )
    if kind.topic is None or kind.kind is None:
        raise WireError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"This broker does not serve {kind.name}."
        )
    keys = [request.key] if ctx.api_version < 4 else request.coordinator_keys
    allowed = ctx.allowed(AclOperation.DESCRIBE, kind.kind, keys)
    if not keys or any(key in allowed for key in keys):
        await ensure_topic(ctx, kind.topic)
    if ctx.api_version < 4:
        if request.key not in allowed:
            raise WireError(kind.kind.error)
        response = FindCoordinatorResponse(**locate(ctx, kind.topic, request.key))
        if not response.error_code:
            response.error_message = NO_ERROR
        return response
    coordinator = FindCoordinatorResponse.Coordinator
    return FindCoordinatorResponse(
        coordinators=[
            coordinator(
                key=key,
                **(locate(ctx, kind.topic, key) if key in allowed else denied(kind.kind)),
            )
            async for key in ctx.each(request.coordinator_keys)
        ]
    )


async def ensure_topic(ctx: RequestContext, topic: str) -> None:
    """Create the internal topic if it does not exist. COORDINATOR_NOT_AVAILABLE."""
    if topic in ctx.image.topics:
        return
    try:
        results = await ctx.create_automatically([topic])
    except WireError as error:
        # The controller is restarting or slow; the client retries.
        raise WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
    if results[0].error:
        raise WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE, results[0].message or "")


def denied(kind: Kind) -> Fields:
    """The entry of a key that the client may not describe."""
    return {**NOWHERE, "error_code": int(kind.error), "error_message": kind.error.message}


def locate(ctx: RequestContext, topic: str, key: str) -> Fields:
    """Find the broker of a key's coordinator."""
    known = ctx.image.topics.get(topic)
    if known is not None:
        partition = known.partitions[coordinator_partition(key, len(known.partitions))]
        broker = ctx.image.brokers.get(partition.leader)
        endpoint = None if broker is None else ctx.endpoint(broker)
        if broker is not None and endpoint is not None:
            address = {"host": endpoint.host, "port": endpoint.port}
            return {"error_code": 0, "node_id": broker.broker_id, **address}
    return {**NOWHERE, "error_code": int(ErrorCode.COORDINATOR_NOT_AVAILABLE)}
