"""``kbroker log-dir``: the log directories of brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.cli.arguments import table_text
from kbroker.cli.operation_verbs import VerbView, actions_of
from kbroker.console.api.log_dirs import OPERATIONS
from kbroker.wording import size_text

_COLUMNS = {
    "broker": "BROKER",
    "path": "PATH",
    "replicas": "REPLICAS",
    "bytes": "SIZE",
    "free": "FREE",
    "state": "STATE",
}


def _listed(document: Mapping[str, Any]) -> str:
    return table_text(_COLUMNS, list(map(_row, document["log_dirs"])))


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    free = None
    if row["usable_bytes"] is not None and row["total_bytes"]:
        share = row["usable_bytes"] / row["total_bytes"]
        free = f"{size_text(row['usable_bytes'])} ({share:.0%})"
    size = None if row["bytes"] is None else size_text(row["bytes"])
    return {**row, "bytes": size, "free": free, "state": row["error"] or "online"}


ACTIONS = actions_of(OPERATIONS, {"list": VerbView(_listed)})
