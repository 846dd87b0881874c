"""The broker and its cluster at a glance, and what a client needs to reach them."""

from __future__ import annotations

from typing import Any

from kbroker.client.cluster_admin import ClusterState, describe_cluster
from kbroker.client.errors import ClientError
from kbroker.client.partition_admin import log_dirs
from kbroker.console.operation import Asked, Operation

# BOUND: partitions in trouble that are listed; all are counted.
LISTED_MAX = 100


def _overview(asked: Asked) -> dict[str, Any]:
    state = describe_cluster(asked.cluster)
    offline, under_replicated = state.offline(), state.under_replicated()
    return {
        "version": asked.broker.version,
        "broker": asked.broker.broker_id,
        "cluster": state.cluster_id,
        "controller": state.controller,
        "brokers": [row._asdict() for row in state.brokers],
        "listeners": [
            {"name": name, "protocol": protocol, "address": address}
            for name, protocol, address in asked.broker.listeners
        ],
        "topics": sum(not topic.internal for topic in state.topics),
        "internal_topics": sum(topic.internal for topic in state.topics),
        "partitions": sum(len(topic.partitions) for topic in state.topics),
        "offline": _listed(offline),
        "under_replicated": _listed(under_replicated),
        "health": asked.broker.processes(),
    }


def _listed(keys: list[tuple[str, int]]) -> dict[str, Any]:
    rows = [{"topic": topic, "partition": number} for topic, number in keys[:LISTED_MAX]]
    return {"count": len(keys), "partitions": rows}


def _log_dirs(asked: Asked) -> dict[str, Any]:
    state: ClusterState = describe_cluster(asked.cluster)
    rows: list[dict[str, Any]] = []
    for broker in state.brokers:
        try:
            found = log_dirs(asked.cluster, [broker.node])[broker.node]
        except ClientError as error:
            rows.append({"broker": broker.node, "error": str(error)})
            continue
        for each in found:
            sizes = [row.size for replicas in each.replicas.values() for row in replicas]
            row = {"broker": broker.node, "path": each.path, "error": None}
            if each.error is not None:
                row["error"] = str(each.error)
            else:
                row |= {"replicas": len(sizes), "bytes": sum(sizes)}
            rows.append(row)
    return {"log_dirs": rows}


OPERATIONS = (
    Operation("GET", "/overview", "The broker, its cluster, and partitions in trouble", _overview),
    Operation(
        "GET", "/log-dirs", "Log directories of all brokers, with what is in them", _log_dirs
    ),
)
