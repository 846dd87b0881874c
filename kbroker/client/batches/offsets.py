"""Offsets: those of logs by time, those that groups have committed, and the sizes of logs.

Each call asks every broker concerned once, all of them before it waits for the first response.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from kbroker.client.connections.cluster import GROUP, Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.connections.retry import Retry
from kbroker.client.errors import (
    ClientError,
    ConnectionLost,
    RejectedError,
    Timeout,
    UnsupportedByBroker,
)
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.describe_configs import DescribeConfigsRequest
from kbroker.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from kbroker.protocol.messages.list_offsets import EARLIEST as EARLIEST  # what callers ask for
from kbroker.protocol.messages.list_offsets import LATEST as LATEST
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest

NO_OFFSET = -1
_FIRST_STABLE = 7  # version of OffsetFetch
_BROKER = 4  # a type of resources
_OF_PARTITIONS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
}
_RETENTION_MINUTES = "offsets.retention.minutes"

TopicPartition = tuple[str, int]


class Offset(NamedTuple):
    """offset: NO_OFFSET when no record is at or after the requested time.

    timestamp: of the record, -1 for EARLIEST and LATEST. leader_epoch: -1 if not told.
    """

    offset: int
    timestamp: int
    leader_epoch: int


class GroupMetadata(NamedTuple):
    """Who a consumer is in its group. generation_id: or its epoch; -1: it is no member."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class Committed(NamedTuple):
    offset: int
    metadata: str
    leader_epoch: int


def ends_of_existing(
    cluster: Cluster, keys: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Of the partitions that still exist and have a leader. Raises as ``list_offsets``."""
    known = cluster.topics({topic for topic, _ in keys})
    there = {
        key: LATEST
        for key in keys
        if key[0] in known
        and (row := known[key[0]].partitions.get(key[1])) is not None
        and row.leader is not None
    }
    return {key: row.offset for key, row in list_offsets(cluster, there).items()} if there else {}


def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    deadline: float | None = None,
) -> dict[TopicPartition, Offset]:
    """The first offset at or after a time, for each partition.

    wanted: (topic, partition) -> milliseconds, or EARLIEST or LATEST (exclusive: the offset that
    the next record gets, with ``read_committed`` that of the first undecided one).
    Raises RejectedError for a partition that does not exist, UnreachableError, Timeout.
    """
    retry = cluster.retry("offsets", deadline)
    offsets: dict[TopicPartition, Offset] = {}
    left = dict(wanted)
    while left:
        try:
            listed = _list_once(cluster, left, read_committed, retry)
        except ClientError as error:
            for topic, _ in left:
                cluster.forget_topic(topic)
            retry.pause(error)
            continue
        offsets.update(listed.found)
        for key in listed.found:
            del left[key]
        if listed.errors:
            for topic, _ in listed.errors:
                cluster.forget_topic(topic)
            retry.pause(_worst(listed.errors))
    return offsets


class ListedOffsets:
    """What brokers have said: each partition is in one of both."""

    __slots__ = ("errors", "found")

    def __init__(self) -> None:
        self.found: dict[TopicPartition, Offset] = {}
        self.errors: dict[TopicPartition, ClientError] = {}


def _worst(errors: Mapping[Any, ClientError]) -> ClientError:
    """The error to report: one that is not retriable, if there is any."""
    return min(errors.values(), key=lambda error: error.retriable)


def _list_once(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], read_committed: bool, retry: Retry
) -> ListedOffsets:
    listed = ListedOffsets()
    by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
    cluster.refresh_unknown((topic for topic, _ in wanted), retry)
    for (topic, partition), timestamp in wanted.items():
        try:
            _, leader = cluster.leader(topic, partition, retry)
            by_leader[leader][topic, partition] = timestamp
        except RejectedError as error:
            # A missing topic is reported at once; a missing leader is waited for.
            if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                error.retriable = False
            listed.errors[topic, partition] = error
    # All connections are opened before the first request: connecting may send a request over
    # another connection, which must not have a response in flight.
    connected: list[tuple[Connection, dict[TopicPartition, int]]] = []
    for leader, rows in by_leader.items():
        try:
            connected.append((cluster.connection(leader, retry), rows))
        except (ConnectionLost, Timeout) as error:
            listed.errors.update(dict.fromkeys(rows, error))
    try:
        _ask_leaders(cluster, connected, read_committed, retry, listed)
    except BaseException:
        # An unread response would be taken for the next one.
        for connection, _ in connected:
            if connection.in_flight:
                connection.close()
        raise
    return listed


def offsets_of_leader(
    cluster: Cluster,
    leader: int,
    wanted: Mapping[TopicPartition, int],
    read_committed: bool,
    retry: Retry,
) -> ListedOffsets:
    """As ``list_offsets``, of partitions whose leader is known. One attempt. Raises ClientError."""
    listed = ListedOffsets()
    connected = [(cluster.connection(leader, retry), dict(wanted))]
    _ask_leaders(cluster, connected, read_committed, retry, listed)
    return listed


def _ask_leaders(
    cluster: Cluster,
    connected: list[tuple[Connection, dict[TopicPartition, int]]],
    read_committed: bool,
    retry: Retry,
    listed: ListedOffsets,
) -> None:
    sent: list[tuple[Connection, Any, dict[TopicPartition, int]]] = []
    for connection, rows in connected:
        try:
            request = _list_request(rows, read_committed)
            step = retry.step(cluster.request_timeout)
            sent.append((connection, connection.send(request, step), rows))
        except (ConnectionLost, Timeout) as error:
            listed.errors.update(dict.fromkeys(rows, error))
    for connection, pending, rows in sent:
        try:
            response = connection.receive(pending, retry.step(cluster.request_timeout))
            _take_offsets(response, pending.version, listed)
        except (ConnectionLost, Timeout) as error:
            listed.errors.update(dict.fromkeys(rows, error))


def _list_request(rows: Mapping[TopicPartition, int], read_committed: bool) -> ListOffsetsRequest:
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for (topic, partition), timestamp in rows.items():
        by_topic[topic].append(
            ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        )
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(read_committed),
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=parts)
            for name, parts in by_topic.items()
        ],
        timeout_ms=30_000,
    )


def _take_offsets(response: Any, version: int, listed: ListedOffsets) -> None:
    for topic in response.topics:
        for row in topic.partitions:
            key = topic.name, row.partition_index
            if row.error_code:
                listed.errors[key] = RejectedError(
                    row.error_code, f"offsets of {topic.name}-{row.partition_index}"
                )
            elif version == 0:
                first = row.old_style_offsets[0] if row.old_style_offsets else NO_OFFSET
                listed.found[key] = Offset(first, -1, -1)
            else:
                listed.found[key] = Offset(row.offset, row.timestamp, row.leader_epoch)


# -- groups


def committed(
    cluster: Cluster,
    group: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    stable: bool = True,
    deadline: float | None = None,
    once: bool = False,
) -> dict[TopicPartition, Committed]:
    """The committed offsets of a group, without ``partitions`` those of all partitions.

    Partitions without a committed offset are left out. Waits until the offsets of open transactions
    are decided (KIP-447); if ``stable`` is False, returns those committed before instead.
    once: make one attempt, and raise its error.
    """
    by_topic: dict[str, list[int]] | None = None
    if partitions is not None:
        by_topic = defaultdict(list)
        for topic, partition in partitions:
            by_topic[topic].append(partition)
        if not by_topic:
            return {}

    def request(connection: Connection, node: int) -> OffsetFetchRequest:
        row = OffsetFetchRequest.OffsetFetchRequestTopic
        named = (by_topic or {}).items()
        topics = [row(name=name, partition_indexes=indexes) for name, indexes in named]
        waits = stable and connection.version_of(ApiKey.OFFSET_FETCH) >= _FIRST_STABLE
        return OffsetFetchRequest(
            group_id=group,
            topics=None if by_topic is None else topics,
            require_stable=waits,
        )

    response = _ask_group(cluster, group, request, "read offsets", deadline, once)
    return {
        (topic.name, row.partition_index): Committed(
            row.committed_offset, row.metadata or "", row.committed_leader_epoch
        )
        for topic in response.topics
        for row in topic.partitions
        if row.committed_offset >= 0
    }


def commit(
    cluster: Cluster,
    group: str,
    offsets: Mapping[TopicPartition, tuple[int, str]],
    *,
    deadline: float | None = None,
    once: bool = False,
) -> None:
    """Commit (offset, metadata) for partitions, without being a member of the group.

    once: make one attempt, and raise its error. Raises RejectedError, UNKNOWN_MEMBER_ID when the
    group has live members.
    """
    if not offsets:
        return
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for (topic, partition), (offset, metadata) in offsets.items():
        by_topic[topic].append(
            OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=metadata
            )
        )
    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=rows)
            for name, rows in by_topic.items()
        ],
    )
    _ask_group(cluster, group, request, "commit offsets", deadline, once)


def retention_of(cluster: Cluster, group: str, *, deadline: float | None = None) -> float | None:
    """The retention of a group's offsets in seconds after it becomes empty; None if the coordinator
    does not report it (before Kafka 0.11, or without authorization).
    """

    def request(connection: Connection, node: int) -> DescribeConfigsRequest:
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_BROKER,
            resource_name=str(node),
            configuration_keys=[_RETENTION_MINUTES],
        )
        return DescribeConfigsRequest(resources=[resource])

    what = f"read the offset retention of group {group}"
    try:
        response = cluster.call_coordinator(
            group, GROUP, request, lambda response: 0, what=what, deadline=deadline
        )
    except UnsupportedByBroker:
        return None
    values = [
        row.value
        for result in response.results
        if not result.error_code
        for row in result.configs
        if row.name == _RETENTION_MINUTES and row.value
    ]
    return int(values[0]) * 60.0 if values else None


def first_error(what: str, response: Any) -> int:
    """The first error of a response or of its topics[].partitions[], 0 if there is none. Raises it
    as ``named_error`` does."""
    code = int(getattr(response, "error_code", 0))
    for topic in response.topics:
        for row in topic.partitions:
            if row.error_code and not code:
                code = named_error(what, row.error_code, (topic.name, row.partition_index))
    return code


def named_error(what: str, code: int, partition: TopicPartition) -> int:
    """A partition's error code in a response. Raises RejectedError that names the
    partition where the code is about it; others are about the whole request."""
    if code in _OF_PARTITIONS:
        topic, number = partition
        raise RejectedError(code, f"{what}: {topic}-{number}")
    return code


def _ask_group(
    cluster: Cluster,
    group: str,
    request: Any,
    doing: str,
    deadline: float | None,
    once: bool = False,
) -> Any:
    what = f"{doing} of group {group}"
    return cluster.call_coordinator(
        group, GROUP, request, partial(first_error, what), what=what, deadline=deadline, once=once
    )


# -- sizes


def log_dir_sizes(
    cluster: Cluster, topics: Iterable[str], *, deadline: float | None = None
) -> dict[TopicPartition, int]:
    """Size in bytes of each partition's leader; partitions of brokers that do not report it are
    left out (before 1.0, or without the right to describe the cluster).
    """
    retry = cluster.retry("sizes of logs", deadline)
    known = cluster.topics(topics, deadline=deadline)
    leaders: dict[int, set[TopicPartition]] = defaultdict(set)
    for topic in known.values():
        for partition, row in topic.partitions.items():
            if row.leader is not None:
                leaders[row.leader].add((topic.name, partition))
    sizes: dict[TopicPartition, int] = {}
    for leader, led in leaders.items():
        sizes.update(_sizes_of(cluster, leader, led, retry))
    return sizes


def _sizes_of(
    cluster: Cluster, leader: int, led: set[TopicPartition], retry: Retry
) -> dict[TopicPartition, int]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in led:
        by_topic[topic].append(partition)
    request = DescribeLogDirsRequest(
        topics=[
            DescribeLogDirsRequest.DescribableLogDirTopic(topic=name, partitions=partitions)
            for name, partitions in by_topic.items()
        ]
    )
    try:
        connection = cluster.connection(leader, retry)
        if not connection.speaks(ApiKey.DESCRIBE_LOG_DIRS):
            return {}
        response = connection.call(request, retry.step(cluster.request_timeout))
    except (ConnectionLost, Timeout):
        return {}  # a hint for planning, not worth a failure
    return {
        (topic.name, row.partition_index): row.partition_size
        for place in response.results
        if not place.error_code
        for topic in place.topics
        for row in topic.partitions
        if not row.is_future_key and (topic.name, row.partition_index) in led
    }
