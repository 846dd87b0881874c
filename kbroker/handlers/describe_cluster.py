"""DescribeCluster (60): versions 0 to 2. There are no fenced brokers and no KRaft controllers."""

from __future__ import annotations

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import each
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from kbroker.security.operations import AclOperation, Kind

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
    authorize=each(AclOperation.DESCRIBE, Kind.CLUSTER),
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
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = ctx.cluster_operations()
    return response
