"""The log directories of all brokers."""

from __future__ import annotations

from typing import Any

from kbroker.client.admin.partitions import LogDirTotal, log_dir_totals
from kbroker.client.errors import ClientError
from kbroker.console.operation import INTEGERS, Asked, Operation, Parameter
from kbroker.console.problems import NotThere


def _list(asked: Asked) -> dict[str, Any]:
    nodes = list(asked.cluster.nodes())
    wanted = asked.values["brokers"] or nodes
    for node in wanted:
        if node not in nodes:
            raise NotThere(f"no broker {node}: there are {', '.join(map(str, nodes))}")
    rows: list[dict[str, Any]] = []
    for node in dict.fromkeys(wanted):
        try:
            rows += [_row(node, each) for each in log_dir_totals(asked.cluster, node)]
        except ClientError as error:
            rows.append({**_NOTHING, "broker": node, "error": str(error)})
    return {"log_dirs": rows}


_NOTHING = dict.fromkeys(
    ("broker", "path", "replicas", "bytes", "total_bytes", "usable_bytes", "error")
)


def _row(node: int, found: LogDirTotal) -> dict[str, Any]:
    row = {**_NOTHING, "broker": node, "path": found.path}
    if found.error is not None:
        return {**row, "error": str(found.error)}
    return {
        **row,
        "replicas": found.replicas,
        "bytes": found.size,
        "total_bytes": found.total_bytes,
        "usable_bytes": found.usable_bytes,
    }


LIST = Operation(
    "GET",
    "/log-dirs",
    "Log directories of all brokers, with what is in them",
    _list,
    query=(Parameter("brokers", INTEGERS, "Only of these; all, if left out.", names="broker"),),
    answer={
        "log_dirs": [
            {
                "broker": "integer",
                "path": "string?",
                "replicas": "integer?",
                "bytes": "integer?",
                "total_bytes": "integer?",
                "usable_bytes": "integer?",
                "error": "string?",
            }
        ]
    },
    needs="DESCRIBE on the cluster",
    verb="log-dir list",
    positional=("brokers",),
)

OPERATIONS = (LIST,)
