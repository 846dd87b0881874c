"""The log directories of all brokers."""

from __future__ import annotations

from kbroker.client.admin.cluster import summarize_cluster
from kbroker.client.admin.partitions import LogDirTotal, log_dir_totals
from kbroker.client.errors import ClientError
from kbroker.console.move_answers import LogDirRow, LogDirs
from kbroker.console.operation import INTEGERS, CheckedRequest, Operation, Parameter
from kbroker.console.problems import NotThere
from kbroker.diagnosis.examination import missing_facts
from kbroker.health.cluster import missing_text


def _list(asked: CheckedRequest) -> LogDirs:
    nodes = list(asked.cluster.nodes())
    wanted = asked.values["brokers"] or nodes
    for node in wanted:
        if node not in nodes:
            raise NotThere(f"no broker {node}: there are {', '.join(map(str, nodes))}")
    rows: list[LogDirRow] = []
    for node in dict.fromkeys(wanted):
        try:
            rows += [_row(node, each) for each in log_dir_totals(asked.cluster, node)]
        except ClientError as error:
            rows.append(_unknown(node, None, str(error)))
    if not asked.values["brokers"]:
        for one in missing_facts(summarize_cluster(asked.cluster)):
            rows.append(_unknown(one.node, None, f"{missing_text(one)} is missing"))
    return {"log_dirs": rows}


def _row(node: int, total: LogDirTotal) -> LogDirRow:
    if total.error is not None:
        return _unknown(node, total.path, str(total.error))
    return {
        "broker": node,
        "path": total.path,
        "replicas": total.replicas,
        "bytes": total.size,
        "total_bytes": total.total_bytes,
        "usable_bytes": total.usable_bytes,
        "error": None,
    }


def _unknown(node: int, path: str | None, error: str) -> LogDirRow:
    return {
        "broker": node,
        "path": path,
        "replicas": None,
        "bytes": None,
        "total_bytes": None,
        "usable_bytes": None,
        "error": error,
    }


LIST = Operation(
    "GET",
    "/log-dirs",
    "Log directories of all brokers, with what is in them",
    _list,
    LogDirs,
    query=(Parameter("brokers", INTEGERS, "Only of these; all, if left out.", names="broker"),),
    needs="DESCRIBE on the cluster",
    verb="log-dir list",
    positional=("brokers",),
)

OPERATIONS = (LIST,)
