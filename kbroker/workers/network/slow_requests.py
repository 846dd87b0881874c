"""Logs requests that take longer than ``slow.request.log.ms``, as Kafka's request logger does."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker.handlers.support.peer import peer
from kbroker.protocol.api import ApiKey, title

if TYPE_CHECKING:
    from kbroker._ext.network.responses import Responses, SlowRequest

logger = logging.getLogger(__name__)

# BOUND: lines for each call of ``report``.
LINES_MAX = 10
STAGES = ("total", "queue", "local", "remote", "throttle", "response_queue", "send")


def report(responses: Responses, listeners: Sequence[str]) -> None:
    """Log the slow requests since the last call, the slowest first. listeners: by index."""
    slow, left_out = responses.take_slow()
    if not slow:
        return
    slow.sort(key=lambda request: -request[5][0])
    for request in slow[:LINES_MAX]:
        _log(request, listeners)
    left_out += max(0, len(slow) - LINES_MAX)
    if left_out:
        logger.warning("%d more requests were slow", left_out)


def _log(request: SlowRequest, listeners: Sequence[str]) -> None:
    connection, api_key, version, correlation_id, size, times_ns = request
    fields: dict[str, object] = {
        f"{stage}_ms": round(ns / 1e6, 3) for stage, ns in zip(STAGES, times_ns, strict=True)
    }
    software = b" ".join((connection.software, connection.software_version)).decode("ascii")
    fields |= {
        "api": title(ApiKey(api_key)),
        "version": version,
        "correlation_id": correlation_id,
        "client": peer(connection),
        "principal": str(connection.access.principal),
        "listener": listeners[connection.listener],
        "software": software.strip() or "unknown software",
        "response_bytes": size,
    }
    logger.warning(
        "a slow request: %(api)s %(version)d of %(client)s took %(total_ms)s ms: queue "
        "%(queue_ms)s, local %(local_ms)s, remote %(remote_ms)s, response queue "
        "%(response_queue_ms)s, send %(send_ms)s; throttle %(throttle_ms)s, correlation id "
        "%(correlation_id)d, %(response_bytes)d bytes in the response, %(principal)s at "
        "%(listener)s, %(software)s",
        fields,
    )
