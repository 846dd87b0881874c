"""Partitions that move to other brokers: which, how far they are; begin and cancel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kbroker.client.admin.partitions import (
    Reassignment,
    elect_leaders,
    in_requests,
    list_reassignments,
    log_dirs,
)
from kbroker.client.admin.reassignments import alter_reassignments
from kbroker.client.admin.throttles import (
    RATES,
    alter_brokers,
    release_topics,
    throttled_brokers,
    throttled_topics,
)
from kbroker.client.admin.topics import describe_topics, list_topics
from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientError, RejectedError
from kbroker.console.move_answers import (
    BegunMove,
    CancelledMoves,
    FinishedMoves,
    Reassignments,
)
from kbroker.console.operation import (
    FLAG,
    INTEGER,
    INTEGERS,
    TEXT,
    CheckedRequest,
    Operation,
    Parameter,
    page_of,
    paging,
)
from kbroker.console.problems import BadRequest, Problem, check_partition
from kbroker.errors import ErrorCode

TOPIC = Parameter(
    "topic", TEXT, "Its name.", required=True, length_min=1, length_max=249, names="topic"
)
PARTITION = Parameter("partition", INTEGER, "Its number.", required=True, high=(1 << 31) - 1)


def _list(asked: CheckedRequest) -> Reassignments:
    values = asked.values
    moves = sorted(
        (key, row)
        for key, row in list_reassignments(asked.cluster).items()
        if values["search"] in key[0]
    )
    rows, after = page_of(moves, values, lambda row: str(row[0]))
    page = dict(rows)
    sizes = _sizes(asked.cluster, page)
    return {
        "total": len(moves),
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
    sizes: dict[tuple[TopicPartition, int], int] = {}
    for node in sorted({node for row in moving.values() for node in row.replicas}):
        try:
            dirs = log_dirs(cluster, [node])[node]
        except ClientError:
            continue  # gone, or without the right to describe the cluster
        for each in dirs:
            for key in moving.keys() & each.replicas.keys():
                for replica in each.replicas[key]:
                    if not replica.future:
                        sizes[key, node] = replica.size
    return sizes


def _begin(asked: CheckedRequest) -> BegunMove:
    values = asked.values
    topic, number, replicas = values["topic"], values["partition"], values["replicas"]
    (state,) = describe_topics(asked.cluster, [topic])
    now = {row.partition: row.replicas for row in state.partitions}
    check_partition(number, now)
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
        "from": now[number],
        "to": replicas,
        "dry_run": values["dry_run"],
    }


def _alter(cluster: Cluster, key: TopicPartition, replicas: list[int]) -> None:
    error = alter_reassignments(cluster, {key: replicas})[key]
    if isinstance(error, RejectedError):
        raise error


def _cancel(asked: CheckedRequest) -> CancelledMoves:
    values = asked.values
    topic, number = values["topic"], values["partition"]
    if values["all"] == (topic is not None):
        raise BadRequest("which? Name a topic and perhaps a partition, or all")
    if number is not None and topic is None:
        raise BadRequest("partition needs topic")
    keys = [
        key
        for key in sorted(list_reassignments(asked.cluster))
        if values["all"] or (topic == key[0] and number in (None, key[1]))
    ]
    if topic is not None and not keys:
        what = f"topic {topic[:249]}" if number is None else f"{topic[:249]}-{number}"
        raise Problem(404, "NO_REASSIGNMENT_IN_PROGRESS", f"nothing of {what} is being moved")
    for some in in_requests(keys):
        errors = alter_reassignments(asked.cluster, dict.fromkeys(some))
        for error in errors.values():
            # It has ended by itself in between.
            if error is not None and error.code != ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
                raise error
    return {"cancelled": [{"topic": topic, "partition": number} for topic, number in keys]}


def _finish(asked: CheckedRequest) -> FinishedMoves:
    """What is still moving keeps its throttle."""
    cluster = asked.cluster
    moving = list_reassignments(cluster)
    names = [topic.name for topic in list_topics(cluster)]
    still = {topic for topic, _ in moving}
    released = [name for name in throttled_topics(cluster, names) if name not in still]
    release_topics(cluster, released)
    brokers: list[int] = []
    if not moving:
        brokers = throttled_brokers(cluster)
        alter_brokers(cluster, brokers, dict.fromkeys(RATES))
    elected = 0
    if asked.values["elect"]:
        errors = elect_leaders(cluster, None)
        elected = sum(error is None for error in errors.values())
    return {"moving": len(moving), "topics": released, "brokers": brokers, "elected": elected}


_ALTER = "ALTER on the cluster"

LIST = Operation(
    "GET",
    "/reassignments",
    "Partitions that move to other brokers",
    _list,
    Reassignments,
    query=(
        Parameter("search", TEXT, "Only topics whose name contains this.", "", length_max=249),
        *paging(100, 200),
    ),
    needs="DESCRIBE on the cluster",
    verb="reassignment list",
)

FINISH = Operation(
    "POST",
    "/reassignments/finish",
    "Remove the throttles of what has moved, and let preferred replicas lead",
    _finish,
    FinishedMoves,
    body=(
        Parameter(
            "elect",
            FLAG,
            "Also let the preferred replica of each partition lead.",
            False,
        ),
    ),
    needs="ALTER and ALTER_CONFIGS on the cluster, ALTER_CONFIGS on the topics",
    verb="reassignment finish",
)

OPERATIONS = (
    LIST,
    Operation(
        "POST",
        "/reassignments",
        "Move a partition to other brokers",
        _begin,
        BegunMove,
        body=(
            TOPIC,
            PARTITION,
            Parameter(
                "replicas",
                INTEGERS,
                "Broker ids, the preferred leader first.",
                required=True,
                names="broker",
            ),
            Parameter("dry_run", FLAG, "Only check, and say what would move.", True),
        ),
        needs=_ALTER,
        verb="reassignment begin",
        positional=("topic", "partition", "replicas"),
    ),
    Operation(
        "POST",
        "/reassignments/cancel",
        "Cancel moves: of a partition, of a topic, or all; partitions stay where they were",
        _cancel,
        CancelledMoves,
        body=(
            replace(TOPIC, required=False),
            replace(PARTITION, text="Only this one of the topic.", required=False),
            Parameter("all", FLAG, "All that move.", False),
        ),
        needs=_ALTER,
        verb="reassignment cancel",
        positional=("topic", "partition"),
    ),
    FINISH,
)
