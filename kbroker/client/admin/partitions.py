"""Partitions of a cluster: replicas that may be elected, reassignments, elections, records that are
deleted, and log directories.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.controller_calls import ask_controller, check
from kbroker.client.connections.retry import Retry
from kbroker.client.errors import (
    ClientError,
    ConnectionLost,
    RejectedError,
    Timeout,
    UnreachableError,
    UnsupportedByBroker,
)
from kbroker.errors import ErrorCode

Row = TypeVar("Row")
# BOUND: topics or partitions in one request.
_AT_ONCE = 500


class Eligible(NamedTuple):
    """Replicas outside the ISR that may lead without loss (KIP-966): those eligible now, and those
    that were when there were last any. None: this broker does not tell.
    """

    replicas: list[int] | None
    last_known: list[int] | None


class Reassignment(NamedTuple):
    """A partition that is being moved. replicas: those of now, with the ones being added."""

    replicas: list[int]
    adding: list[int]
    removing: list[int]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The numbers of partitions by their topics."""
    numbers: dict[str, list[int]] = {}
    for topic, number in partitions:
        numbers.setdefault(topic, []).append(number)
    return numbers


def in_requests(rows: Sequence[Row], at_once: int = _AT_ONCE) -> Iterator[Sequence[Row]]:
    """Topics or partitions, as many at once as one request has."""
    for at in range(0, len(rows), at_once):
        yield rows[at : at + at_once]


def eligible_replicas(
    cluster: Cluster, names: Iterable[str], most: int | None = None
) -> dict[TopicPartition, Eligible]:
    """Of all partitions of these topics; empty before Kafka 3.8. most: partitions in a response."""
    from kbroker.protocol.messages.describe_topic_partitions import (
        DescribeTopicPartitionsRequest as Request,
    )

    eligible: dict[TopicPartition, Eligible] = {}
    cursor = None
    wanted = [Request.TopicRequest(name=name) for name in sorted(names)]
    while wanted:
        try:
            request = Request(topics=wanted, cursor=cursor)
            if most is not None:
                request.response_partition_limit = most
            response = cluster.call(None, request, what="describe partitions")
        except UnsupportedByBroker:
            return {}
        for topic in response.topics:
            for row in topic.partitions:
                eligible[topic.name, row.partition_index] = Eligible(
                    row.eligible_leader_replicas, row.last_known_elr
                )
        if response.next_cursor is None:
            break
        at = response.next_cursor
        cursor = Request.Cursor(topic_name=at.topic_name, partition_index=at.partition_index)
        wanted = [row for row in wanted if row.name >= at.topic_name]
    return eligible


def list_reassignments(
    cluster: Cluster, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Reassignment]:
    """The reassignments in progress, without ``partitions`` all. From Kafka 2.4. Raises
    RejectedError.
    """
    from kbroker.protocol.messages.list_partition_reassignments import (
        ListPartitionReassignmentsRequest as Request,
    )

    topics = None
    if partitions is not None:
        row = Request.ListPartitionReassignmentsTopics
        topics = [
            row(name=name, partition_indexes=numbers)
            for name, numbers in by_topic(partitions).items()
        ]
        if not topics:
            return {}
    response = ask_controller(
        cluster, Request(topics=topics), "list reassignments", lambda found: [found.error_code]
    )
    check(response, "list reassignments")
    return {
        (topic.name, row.partition_index): Reassignment(
            list(row.replicas), list(row.adding_replicas), list(row.removing_replicas)
        )
        for topic in response.topics
        for row in topic.partitions
    }


def delete_records(
    cluster: Cluster, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | ClientError]:
    """Delete the records below these offsets (-1: all); the new first offset, or the error, of each
    partition. From Kafka 0.11. A partition whose leader cannot be reached has that error, which is
    raised if there is no other partition.
    """
    results: dict[TopicPartition, int | ClientError] = {}
    left = dict(offsets)
    retry = cluster.retry("delete records")
    while left:
        troubles: dict[TopicPartition, ClientError] = {}
        for leader, led in _by_leader(cluster, left, troubles, retry).items():
            try:
                rows = _deleted(cluster, leader, led, retry)
            except ClientError as error:
                troubles.update(dict.fromkeys(led, error))
                continue
            results.update({key: row for key, row in rows.items() if key in left})
        for key, row in list(results.items()):
            if isinstance(row, ClientError) and row.code in _MOVED:
                troubles[key] = row
                cluster.forget_topic(key[0])
        left = {key: left[key] for key, error in troubles.items() if _is_asked_again(error)}
        results.update(troubles)
        if left:
            try:
                retry.pause(troubles[next(iter(left))])
            except ClientError as error:
                if len(left) == len(offsets):
                    raise
                results.update(dict.fromkeys(left, error))
                break
    return results


# Another broker leads, or will.
_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


def _is_asked_again(error: ClientError) -> bool:
    return error.code in _MOVED or isinstance(error, ConnectionLost | Timeout | UnreachableError)


def _by_leader(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    troubles: dict[TopicPartition, ClientError],
    retry: Retry,
) -> dict[int, dict[TopicPartition, int]]:
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    with suppress(ClientError):  # then each topic has its own error
        cluster.refresh_unknown((topic for topic, _ in wanted), retry)
    for key, offset in wanted.items():
        try:
            by_leader.setdefault(cluster.leader(*key, retry)[1], {})[key] = offset
        except ClientError as error:
            troubles[key] = error
    return by_leader


def _deleted(
    cluster: Cluster, leader: int, offsets: Mapping[TopicPartition, int], retry: Retry
) -> dict[TopicPartition, int | ClientError]:
    """One attempt. Raises ClientError."""
    from kbroker.protocol.messages.delete_records import DeleteRecordsRequest as Request

    part = Request.DeleteRecordsPartition
    request = Request(
        topics=[
            Request.DeleteRecordsTopic(
                name=name,
                partitions=[part(partition_index=n, offset=offsets[name, n]) for n in numbers],
            )
            for name, numbers in by_topic(offsets).items()
        ],
        timeout_ms=int(cluster.request_timeout * 1000),
    )
    connection = cluster.connection(leader, retry)
    response = connection.call(request, retry.step(cluster.request_timeout))
    return {
        (topic.name, row.partition_index): RejectedError(
            row.error_code, f"delete records of {topic.name}-{row.partition_index}"
        )
        if row.error_code
        else row.low_watermark
        for topic in response.topics
        for row in topic.partitions
    }


class LogDir(NamedTuple):
    """A log directory of a broker. error: None if it works. replicas: with what they are."""

    path: str
    error: RejectedError | None
    replicas: dict[TopicPartition, list[Replica]]


class Replica(NamedTuple):
    """size: in bytes. lag: how far behind, in offsets. future: it is what the replica moves to."""

    size: int
    lag: int
    future: bool


def log_dirs(cluster: Cluster, nodes: Iterable[int]) -> dict[int, list[LogDir]]:
    """The log directories of brokers with all their replicas. From Kafka 1.0. Raises
    RejectedError, UnreachableError, Timeout.
    """
    return {node: [_log_dir(row) for row in _ask_log_dirs(cluster, node)] for node in nodes}


def _ask_log_dirs(cluster: Cluster, node: int, *, only_totals: bool = False) -> list[Any]:
    """only_totals: only of brokers of kbroker; others tell of each replica."""
    from kbroker.protocol.messages.describe_log_dirs import DescribeLogDirsRequest

    request = DescribeLogDirsRequest(topics=None, only_totals=only_totals)
    response = cluster.call(node, request, what="log directories")
    if getattr(response, "error_code", 0):
        raise RejectedError(response.error_code, f"log directories of broker {node}")
    return list(response.results)


class LogDirTotal(NamedTuple):
    """A log directory without each of its replicas. error: why it is offline; then there is nothing
    in it. total_bytes, usable_bytes: of its file system, from Kafka 3.3; None if the broker does
    not say.
    """

    path: str
    error: RejectedError | None
    replicas: int
    size: int
    total_bytes: int | None
    usable_bytes: int | None


def log_dir_totals(cluster: Cluster, node: int) -> list[LogDirTotal]:
    """How many replicas the log directories of a broker have, and their bytes. Raises as
    ``log_dirs``.
    """
    return [_total(row) for row in _ask_log_dirs(cluster, node, only_totals=True)]


def _total(row: Any) -> LogDirTotal:
    sizes = [part.partition_size for topic in row.topics for part in topic.partitions]
    error = RejectedError(row.error_code, _named(row)) if row.error_code else None
    total, usable = (
        value if value >= 0 else None
        for value in (getattr(row, "total_bytes", -1), getattr(row, "usable_bytes", -1))
    )
    count, size = row.replica_count, row.replica_bytes
    if count < 0:
        count, size = len(sizes), sum(sizes)
    return LogDirTotal(row.log_dir, error, count, size, total, usable)


def _named(row: Any) -> str:
    return f"log directory {row.log_dir}"


def _log_dir(row: Any) -> LogDir:
    error = RejectedError(row.error_code, _named(row)) if row.error_code else None
    replicas: dict[TopicPartition, list[Replica]] = {}
    for topic in row.topics:
        for part in topic.partitions:
            replicas.setdefault((topic.name, part.partition_index), []).append(
                Replica(part.partition_size, part.offset_lag, part.is_future_key)
            )
    return LogDir(row.log_dir, error, replicas)


def elect_leaders(
    cluster: Cluster, partitions: Iterable[TopicPartition] | None, *, unclean: bool = False
) -> dict[TopicPartition, RejectedError | None]:
    """Let the preferred replica lead, or with ``unclean`` any live one where there is no leader,
    which may lose records; the error of each partition. From Kafka 2.4.

    partitions: None: all; those that need no election are then left out. Raises RejectedError.
    """
    from kbroker.protocol.messages.elect_leaders import ElectLeadersRequest as Request

    topics = None
    if partitions is not None:
        topics = [
            Request.TopicPartitions(topic=name, partitions=numbers)
            for name, numbers in by_topic(partitions).items()
        ]
    request = Request(
        election_type=int(unclean),
        topic_partitions=topics,
        timeout_ms=int(cluster.request_timeout * 1000),
    )
    response = ask_controller(cluster, request, "elect leaders", lambda found: [found.error_code])
    check(response, "elect leaders")
    return {
        (topic.topic, row.partition_id): RejectedError(
            row.error_code,
            f"elect a leader of {topic.topic}-{row.partition_id}",
            row.error_message,
        )
        if row.error_code
        else None
        for topic in response.replica_election_results
        for row in topic.partition_result
    }
