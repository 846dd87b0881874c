"""GetTelemetrySubscriptions (71) and PushTelemetry (72): version 0 (KIP-714)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext, now_ms
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import NOTHING
from kbroker.ipc.calls import ClientSeries
from kbroker.protocol.api import ApiKey
from kbroker.protocol.codec import DecodeError

if TYPE_CHECKING:
    from kbroker.handlers.support.client_telemetry import ClientTelemetry
    from kbroker.protocol.messages.get_telemetry_subscriptions import (
        GetTelemetrySubscriptionsRequest,
        GetTelemetrySubscriptionsResponse,
    )
    from kbroker.protocol.messages.push_telemetry import (
        PushTelemetryRequest,
        PushTelemetryResponse,
    )

# In the order in which clients should choose.
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
COMPRESSIONS = [ZSTD, LZ4, GZIP, SNAPPY]
# BOUND: what a push may decompress to, in telemetry.max.bytes.
DECOMPRESSED_FACTOR = 8


def telemetry(ctx: RequestContext) -> ClientTelemetry:
    """That of the process, from the first request on."""
    process = ctx.process
    if process.telemetry is None:
        from kbroker.handlers.support.client_telemetry import ClientTelemetry

        process.telemetry = ClientTelemetry(ctx.image.client_metrics)
    return process.telemetry


def pushed_series(state: ClientTelemetry | None) -> ClientSeries:
    """For the exporter."""
    return ClientSeries([], [], 0) if state is None else state.figures()


def known_by(ctx: RequestContext) -> dict[str, str]:
    """What subscriptions may select a client by."""
    connection = ctx.connection
    return {
        "client_id": ctx.client_id or "",
        "client_software_name": connection.software.decode("ascii"),
        "client_software_version": connection.software_version.decode("ascii"),
        "client_source_address": connection.peer_host,
        "client_source_port": str(connection.peer_port),
    }


@api(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, versions=(0, 0), authorize=NOTHING)
async def handle_get_telemetry_subscriptions(
    ctx: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    """Tell a client what to push, and how often."""
    instance_id, subscription = telemetry(ctx).subscribe(
        request.client_instance_id, known_by(ctx), now_ms()
    )
    from kbroker.protocol.messages import get_telemetry_subscriptions as messages

    return messages.GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=subscription.number,
        accepted_compression_types=COMPRESSIONS,
        push_interval_ms=subscription.interval_ms,
        telemetry_max_bytes=ctx.config["telemetry.max.bytes"],
        delta_temporality=True,
        requested_metrics=list(subscription.prefixes),
    )


@api(ApiKey.PUSH_TELEMETRY, versions=(0, 0), authorize=NOTHING)
async def handle_push_telemetry(
    ctx: RequestContext, request: PushTelemetryRequest
) -> PushTelemetryResponse:
    """Take the metrics of a client."""
    state, by, instance_id = telemetry(ctx), known_by(ctx), request.client_instance_id
    state.begin_push(instance_id, by, request.subscription_id, request.terminating, now_ms())
    most = ctx.config["telemetry.max.bytes"]
    if len(request.metrics) > most:
        raise WireError(ErrorCode.TELEMETRY_TOO_LARGE)
    if request.compression_type not in (NONE, *COMPRESSIONS):
        raise WireError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    from kbroker.batch_errors import DecompressionError
    from kbroker.protocol.messages import push_telemetry as messages
    from kbroker.protocol.otlp import read_metrics
    from kbroker.record.compression import decompress

    data = bytes(request.metrics)
    try:
        if request.compression_type and data:
            data = decompress(request.compression_type, data, DECOMPRESSED_FACTOR * most)
        pushed = await ctx.slices.finish(read_metrics(data))
    except (DecodeError, DecompressionError) as error:
        raise WireError(ErrorCode.INVALID_RECORD, str(error)) from None
    state.take(instance_id, by, pushed, state.subscription(instance_id, by).prefixes)
    return messages.PushTelemetryResponse()
