"""The lag of groups, which is not in shared memory: the exporter is asked, unless it is stuck."""

from __future__ import annotations

import json
import time
from typing import Any

from kbroker.cli.local.attached import AttachedBroker
from kbroker.ipc.process_kinds import ProcessKind

# An exporter is neither waited for that long, nor at all if it has shown no sign of life for so
# long: what is said of a broker that is stuck must not come later for it.
TIMEOUT_S = 2.0
# BOUND: bytes of a response.
BYTES_MAX = 64 << 20


def exporter_text(broker: AttachedBroker, path: str, of_failure: bool = False) -> str | None:
    """What the exporter answers; None if it does not in time, or there is none. Raises Failed.

    of_failure: also what it answers with an error.
    """
    import http.client

    address = broker.status["metrics"]
    if address is None or _is_silent(broker):
        return None
    host, _, port = address.rpartition(":")
    try:
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)
    except (ValueError, http.client.HTTPException):
        return None
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read(BYTES_MAX)
        wanted = of_failure or response.status == 200
        return body.decode("utf-8", "replace") if wanted else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _is_silent(broker: AttachedBroker) -> bool:
    return any(
        time.monotonic_ns() - int(row["heartbeat_ns"]) > TIMEOUT_S * 1e9
        for one, row in broker.processes().items()
        if one.kind == ProcessKind.EXPORTER
    )


def groups(broker: AttachedBroker) -> list[dict[str, Any]] | None:
    """Groups that this broker coordinates, the largest lag first; None if nobody answers."""
    text = exporter_text(broker, "/groups")
    if text is None:
        return None
    try:
        rows: list[dict[str, Any]] = json.loads(text)["groups"]
    except (ValueError, KeyError):
        return None
    for row in rows:
        row["topics"] = len(row["topics"])
    rows.sort(key=lambda row: (-(row["lag"] or 0), row["group"]))
    return rows
