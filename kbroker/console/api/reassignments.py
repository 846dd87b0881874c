"""Partitions that move to other brokers: which, how far they are; begin and cancel."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.client.admin.partitions import Reassignment, list_reassignments, log_dirs
from kbroker.client.admin.reassignments import alter_reassignments
from kbroker.client.admin.topics import describe_topics
from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientError, RejectedError
from kbroker.console.answers import Move, Reassignments, TopicPartitionName
from kbroker.console.operation import (
    FLAG,
    INTEGER,
    INTEGERS,
    TEXT,
    Asked,
    Operation,
    Parameter,
    page_of,
    paging,
)
from kbroker.console.problems import BadRequest

TOPIC = Parameter("topic", TEXT, "Its name.", required=True, length_min=1, length_max=249)
PARTITION = Parameter("partition", INTEGER, "Its number.", required=True, high=(1 << 31) - 1)


def _list(asked: Asked) -> Reassignments:
    values = asked.values
    found = sorted(
        (key, row)
        for key, row in list_reassignments(asked.cluster).items()
        if values["search"] in key[0]
    )
    rows, after = page_of(found, values, lambda row: str(row[0]))
    page = dict(rows)
    sizes = _sizes(asked.cluster, page)
    return {
        "total": len(found),
        "reassignments": [
            {
                "topic": key[0],
                "partition": key[1],
                "replicas": row.replicas,
                "adding": row.adding,
                "removing": row.removing,
                "bytes": {str(node): sizes.get((key, node)) for node in row.replicas},
            }
            for key, row in page.items()
        ],
        "next_cursor": after,
    }


def _sizes(
    cluster: Cluster, moving: Mapping[TopicPartition, Reassignment]
) -> dict[tuple[TopicPartition, int], int]:
    """The bytes that each replica has, by partition and broker: how far the new ones are."""
    found: dict[tuple[TopicPartition, int], int] = {}
    for node in sorted({node for row in moving.values() for node in row.replicas}):
        try:
            dirs = log_dirs(cluster, [node])[node]
        except ClientError:
            continue  # gone, or without the right to describe the cluster
        for each in dirs:
            for key in moving.keys() & each.replicas.keys():
                for replica in each.replicas[key]:
                    if not replica.future:
                        found[key, node] = replica.size
    return found


def _begin(asked: Asked) -> Move:
    values = asked.values
    topic, number, replicas = values["topic"], values["partition"], values["replicas"]
    (state,) = describe_topics(asked.cluster, [topic])
    now = next((row.replicas for row in state.partitions if row.partition == number), None)
    if now is None:
        last = len(state.partitions) - 1
        raise BadRequest(f"the topic has no partition {number}, but 0 to {last}")
    if not replicas or len(set(replicas)) < len(replicas):
        raise BadRequest("replicas: name each broker once, the preferred leader first")
    nodes = asked.cluster.nodes()
    unknown = [node for node in replicas if node not in nodes]
    if unknown:
        known = ", ".join(str(node) for node in sorted(nodes))
        raise BadRequest(f"replicas: there is no broker {unknown[0]}, but {known}")
    if not values["dry_run"]:
        _alter(asked.cluster, (topic, number), replicas)
    return {
        "topic": topic,
        "partition": number,
        "from": now,
        "to": replicas,
        "dry_run": values["dry_run"],
    }


def _cancel(asked: Asked) -> TopicPartitionName:
    key = asked.values["topic"], asked.values["partition"]
    _alter(asked.cluster, key, None)
    return {"topic": key[0], "partition": key[1]}


def _alter(cluster: Cluster, key: TopicPartition, replicas: list[int] | None) -> None:
    error = alter_reassignments(cluster, {key: replicas})[key]
    if isinstance(error, RejectedError):
        raise error


OPERATIONS = (
    Operation(
        "GET",
        "/reassignments",
        "Partitions that move to other brokers",
        _list,
        Reassignments,
        (
            Parameter("search", TEXT, "Only topics whose name contains this.", "", length_max=249),
            *paging(100, 200),
        ),
        needs="DESCRIBE on the cluster",
    ),
    Operation(
        "POST",
        "/reassignments",
        "Move a partition to other brokers",
        _begin,
        Move,
        body=(
            TOPIC,
            PARTITION,
            Parameter(
                "replicas", INTEGERS, "Broker ids, the preferred leader first.", required=True
            ),
            Parameter("dry_run", FLAG, "Only check, and say what would move.", True),
        ),
        needs="ALTER on the cluster",
    ),
    Operation(
        "POST",
        "/reassignments/cancel",
        "Cancel the move of a partition",
        _cancel,
        TopicPartitionName,
        body=(TOPIC, PARTITION),
        needs="ALTER on the cluster",
    ),
)
