"""LeaderAndIsr (4), StopReplica (5), UpdateMetadata (6): a controller's requests to this broker.
ControlledShutdown (7), AlterIsr (56): requests of brokers to this one as the controller.
PeerStatus (20001): a question of another kbroker.

The versions are those of Kafka 2.7. The controller process decodes and serves them
(``hosting/control_server``, ``workers/controller/controller_server``); here they are authorized and
passed on as they came.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import on_cluster
from kbroker.ipc.calls import CONTROL_REQUEST, ControlMessage
from kbroker.protocol.api import ApiKey
from kbroker.security.operations import AclOperation

# BOUND: bytes of a control request. 200,000 partitions of three replicas take 20 MB.
CONTROL_BYTES_MAX = 32 << 20
# The controller process is restarting, or has not responded.
UNSERVED = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT)
BROKERS_ONLY = on_cluster(AclOperation.CLUSTER_ACTION)


@api(ApiKey.LEADER_AND_ISR, versions=(0, 4), authorize=BROKERS_ONLY, undecoded=True)
async def handle_leader_and_isr(ctx: RequestContext, body: bytes) -> bytes | None:
    """Lead and follow partitions."""
    return await pass_on(ctx, body)


@api(ApiKey.STOP_REPLICA, versions=(0, 3), authorize=BROKERS_ONLY, undecoded=True)
async def handle_stop_replica(ctx: RequestContext, body: bytes) -> bytes | None:
    """Give up partitions, and perhaps delete their logs."""
    return await pass_on(ctx, body)


@api(ApiKey.UPDATE_METADATA, versions=(0, 6), authorize=BROKERS_ONLY, undecoded=True)
async def handle_update_metadata(ctx: RequestContext, body: bytes) -> bytes | None:
    """Update the live brokers and the leaders of partitions."""
    return await pass_on(ctx, body)


@api(ApiKey.CONTROLLED_SHUTDOWN, versions=(0, 3), authorize=BROKERS_ONLY, undecoded=True)
async def handle_controlled_shutdown(ctx: RequestContext, body: bytes) -> bytes | None:
    """Move leadership away from a broker that is about to stop."""
    return await pass_on(ctx, body)


@api(ApiKey.ALTER_PARTITION, versions=(0, 0), authorize=BROKERS_ONLY, undecoded=True)
async def handle_alter_partition(ctx: RequestContext, body: bytes) -> bytes | None:
    """Change the ISR of partitions as their leader proposes."""
    return await pass_on(ctx, body)


@api(
    ApiKey.PEER_STATUS,
    versions=(0, 0),
    authorize=BROKERS_ONLY,
    undecoded=True,
    is_announced=False,
)
async def handle_peer_status(ctx: RequestContext, body: bytes) -> bytes | None:
    """Say who this broker is, and whether it hears from another one."""
    return await pass_on(ctx, body)


async def pass_on(ctx: RequestContext, body: bytes) -> bytes | None:
    """Forward the request to the controller process; returns the body of the response. None: the
    request cannot be decoded or nobody served it, and the connection is closed.

    COMPAT: whoever asks takes any response for the end of its request, and repeats it only when the
    connection is lost.
    """
    if len(body) > CONTROL_BYTES_MAX:
        text = f"A control request of {len(body)} bytes exceeds {CONTROL_BYTES_MAX}."
        raise WireError(ErrorCode.INVALID_REQUEST, text)
    with ctx.given_away():
        asked = ControlMessage(ctx.api_key, ctx.api_version, body)
        try:
            reply = await ctx.controller(CONTROL_REQUEST, asked)
        except WireError as error:
            if error.code not in UNSERVED:
                raise
            ctx.connection.close_reason = f"{ApiKey(ctx.api_key).name}: {error.message}"
            return None
    if reply.body is None:
        ctx.connection.close_reason = reply.reason
    return reply.body
