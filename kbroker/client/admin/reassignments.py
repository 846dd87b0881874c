"""Replicas that move: partitions to other brokers, and replicas to other log directories.

Partitions from Kafka 2.4, log directories from 1.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.client.admin.partitions import by_topic, log_dirs
from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.controller_calls import ask_controller, check
from kbroker.client.errors import RejectedError


class PartitionReplica(NamedTuple):
    """A replica of a partition. node: the broker that has it."""

    topic: str
    partition: int
    node: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}-{self.node}"


class ReplicaDirs(NamedTuple):
    """In which log directories a replica is. current: None if it is in none that works. future: the
    one that it moves to, None if it does not move.
    """

    current: str | None
    future: str | None


def alter_reassignments(
    cluster: Cluster,
    replicas: Mapping[TopicPartition, Sequence[int] | None],
    *,
    factor_may_change: bool = True,
) -> dict[TopicPartition, RejectedError | None]:
    """Begin to move partitions to these nodes, the preferred leader first; None cancels what is in
    progress. The error of each partition.

    factor_may_change: False, from Kafka 4.1, rejects another number of replicas than now. Raises
    RejectedError.
    """
    from kbroker.protocol.messages.alter_partition_reassignments import (
        AlterPartitionReassignmentsRequest as Request,
    )

    part = Request.ReassignablePartition
    topics = [
        Request.ReassignableTopic(
            name=name,
            partitions=[
                part(partition_index=number, replicas=_nodes(replicas[name, number]))
                for number in numbers
            ],
        )
        for name, numbers in by_topic(replicas).items()
    ]
    request = Request(
        topics=topics,
        timeout_ms=int(cluster.request_timeout * 1000),
        allow_replication_factor_change=factor_may_change,
    )
    what = "alter reassignments"
    response = ask_controller(cluster, request, what, lambda found: [found.error_code])
    check(response, what)
    return {
        (topic.name, row.partition_index): RejectedError(
            row.error_code, f"reassign {topic.name}-{row.partition_index}", row.error_message
        )
        if row.error_code
        else None
        for topic in response.responses
        for row in topic.partitions
    }


def _nodes(given: Sequence[int] | None) -> list[int] | None:
    return None if given is None else list(given)


def alter_replica_log_dirs(
    cluster: Cluster, paths: Mapping[PartitionReplica, str]
) -> dict[PartitionReplica, RejectedError | None]:
    """Begin to move replicas to these log directories; the error of each. One that is where it
    shall be is not moved, or not any more. Raises Timeout, UnreachableError.
    """
    from kbroker.protocol.messages.alter_replica_log_dirs import (
        AlterReplicaLogDirsRequest as Request,
    )

    results: dict[PartitionReplica, RejectedError | None] = {}
    for node in sorted({replica.node for replica in paths}):
        by_path: dict[str, list[TopicPartition]] = {}
        for replica, path in paths.items():
            if replica.node == node:
                by_path.setdefault(path, []).append((replica.topic, replica.partition))
        topic_row = Request.AlterReplicaLogDirTopic
        dirs = [
            Request.AlterReplicaLogDir(
                path=path,
                topics=[
                    topic_row(name=name, partitions=numbers)
                    for name, numbers in by_topic(partitions).items()
                ],
            )
            for path, partitions in by_path.items()
        ]
        response = cluster.call(node, Request(dirs=dirs), what="alter log directories")
        for topic in response.results:
            for row in topic.partitions:
                key = PartitionReplica(topic.topic_name, row.partition_index, node)
                results[key] = _dir_error(key, row)
    return results


def _dir_error(replica: PartitionReplica, row: Any) -> RejectedError | None:
    return RejectedError(row.error_code, f"move {replica}") if row.error_code else None


def replica_dirs(
    cluster: Cluster, replicas: Iterable[PartitionReplica]
) -> dict[PartitionReplica, ReplicaDirs]:
    """Where these are. Raises Timeout, UnreachableError, RejectedError."""
    wanted = list(replicas)
    dirs = log_dirs(cluster, sorted({replica.node for replica in wanted}))
    places: dict[PartitionReplica, ReplicaDirs] = {}
    for replica in wanted:
        current = future = None
        for row in dirs[replica.node]:
            for each in row.replicas.get((replica.topic, replica.partition), ()):
                if each.future:
                    future = row.path
                else:
                    current = row.path
        places[replica] = ReplicaDirs(current, future)
    return places
