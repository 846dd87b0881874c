"""DescribeCluster (60): versions 0 to 2. There are no KRaft controllers.

Fenced is a broker that has replicas but is not registered: with the address that it had last, if
this process has seen it leave.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.broker_health import health_document
from kbroker.handlers.support.partition_totals import partition_totals
from kbroker.handlers.support.requirements import each
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from kbroker.security.operations import AclOperation, Kind
from kbroker.types import BrokerId

BROKERS, CONTROLLERS = 1, 2  # kinds of endpoint


def fail(
    ctx: RequestContext, request: DescribeClusterRequest, error: WireError
) -> DescribeClusterResponse:
    """The error alone; none while there is no broker to name, which Java clients would not try
    again.
    """
    if not ctx.image.brokers:
        raise error
    return DescribeClusterResponse(error_code=int(error.code), error_message=error.message)


@api(
    ApiKey.DESCRIBE_CLUSTER,
    versions=(0, 2),
    fail=fail,
    unjoined=ErrorCode.LEADER_NOT_AVAILABLE,
    authorize=(
        each(AclOperation.DESCRIBE, Kind.CLUSTER),
        each(AclOperation.DESCRIBE, Kind.TOPIC),
        each(AclOperation.DESCRIBE_CONFIGS, Kind.TOPIC),
    ),
)
async def handle_describe_cluster(
    ctx: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """The brokers this client can reach."""
    if request.endpoint_type == CONTROLLERS:
        raise WireError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "This is a broker: request the endpoints of brokers.",
        )
    if request.endpoint_type != BROKERS:
        raise WireError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)
    entry = DescribeClusterResponse.DescribeClusterBroker
    response = DescribeClusterResponse(
        cluster_id=ctx.image.cluster_id,
        controller_id=ctx.image.controller_id,
        brokers=[
            entry(
                broker_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
            )
            for broker in ctx.image.brokers.values()
            if (endpoint := ctx.endpoint(broker)) is not None
        ],
    )
    reachable = frozenset(BrokerId(broker.broker_id) for broker in response.brokers)
    if request.include_fenced_brokers:
        response.brokers += [_missing(ctx, broker_id) for broker_id in ctx.image.missing()]
    if request.include_partitions and ctx.api_version >= 2:
        await _add_totals(ctx, response, reachable)
    if request.include_health and ctx.allows(AclOperation.DESCRIBE, Kind.CLUSTER, is_filter=True):
        response.health = await health_document(ctx)
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = ctx.cluster_operations()
    return response


async def _add_totals(
    ctx: RequestContext, response: DescribeClusterResponse, reachable: frozenset[BrokerId]
) -> None:
    totals = await partition_totals(ctx, reachable)
    response.topics, response.internal_topics = totals.topics, totals.internal
    response.partitions, response.troubled = totals.partitions, totals.troubled
    for broker in response.brokers:
        broker.leads = totals.leads[BrokerId(broker.broker_id)]
        broker.replicas = totals.replicas[BrokerId(broker.broker_id)]


def _missing(
    ctx: RequestContext, broker_id: BrokerId
) -> DescribeClusterResponse.DescribeClusterBroker:
    """A broker that is not registered. Nobody knows its address: an empty host, and port -1."""
    entry = DescribeClusterResponse.DescribeClusterBroker(
        broker_id=broker_id, host="", port=-1, is_fenced=True
    )
    known = ctx.image.departed.get(broker_id)
    if known is not None:
        entry.fenced_since_ms = known.since_ms
        entry.rack = known.broker.rack
        endpoint = ctx.endpoint(known.broker)
        if endpoint is not None:
            entry.host, entry.port = endpoint.host, endpoint.port
    return entry
