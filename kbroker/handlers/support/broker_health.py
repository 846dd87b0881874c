"""What this broker says of its own health, for whoever asks about the whole cluster."""

from __future__ import annotations

import json
import time

from kbroker.errors import WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.support.endangered_topics import dangers_of
from kbroker.health.broker import findings
from kbroker.ipc.calls import QUOTA_FIGURES, Nothing
from kbroker.ipc.health_facts import HealthFacts
from kbroker.ipc.log_dir_table import LogDirTable
from kbroker.ipc.process_table import ProcessKind

# BOUND: clients that are named.
CLIENTS_MAX = 100


async def health_document(ctx: RequestContext) -> str:
    """JSON: ``broker``, ``clock_ms``, ``findings`` (``Finding.document``), ``throttled``: quota and
    name of clients that have to wait now, and ``dangers`` of topics (``dangers_of``).
    """
    process = ctx.process.context
    paths = process.config.log_dirs
    facts = HealthFacts(
        process.processes,
        process.address,
        process.parent_pid,
        ctx.broker_id,
        LogDirTable(process.failed_log_dirs, len(paths)),
        paths,
    ).facts()
    throttled = await _throttled(ctx)
    return json.dumps(
        {
            "broker": ctx.broker_id,
            "clock_ms": int(time.time() * 1000),
            "findings": [finding.document for finding in findings(facts)],
            "throttled": throttled,
            "dangers": dangers_of(ctx),
        }
    )


async def _throttled(ctx: RequestContext) -> list[dict[str, object]]:
    if not ctx.image.quotas:
        return []
    rpc, processes = ctx.process.rpc, ctx.process.context.processes
    asked = [
        rpc.call(address, QUOTA_FIGURES, Nothing())
        for address in processes.of_kind(ProcessKind.NETWORK)
    ]
    throttled = set()
    for call in asked:
        try:
            figures = await call
        except WireError:
            continue  # it is stuck, which is among the findings
        for one in figures:
            if one.throttle_ms > 0:
                of = (one.user and f"user {one.user}", one.client_id and f"client {one.client_id}")
                throttled.add((one.quota, ", ".join(filter(None, of))))
    return [{"quota": quota, "name": name} for quota, name in sorted(throttled)[:CLIENTS_MAX]]
