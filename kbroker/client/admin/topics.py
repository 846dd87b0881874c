"""Topics of a cluster: list, describe, create, delete, and add partitions. Any Kafka from 0.11.

Calls for several topics return a result for each: one that is rejected does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, overload

from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.connections.controller_calls import ask_controller_for_each
from kbroker.client.errors import ClientError, RejectedError, UnsupportedByBroker
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse

# WIRE: the broker decides (KIP-464), from Kafka 2.4 on.
BROKER_DEFAULT = -1
# WIRE: the version of DeleteTopics in which a topic became a row; before, it is a name.
_FIRST_DELETE_BY_ROW = 6
# BOUND: topics in one response, for who reads one after the other.
_TOPICS_AT_ONCE = 100
_SKIP_MAX = (1 << 31) - 1  # WIRE: no cluster has as many
_NOT_THERE = frozenset({3, 17})  # UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION


class PartitionState(NamedTuple):
    """leader: a node id, None while there is none. replicas: the first is the preferred leader.
    isr: those in sync. offline: replicas of stopped brokers or on failed disks.
    """

    partition: int
    leader: int | None
    replicas: list[int]
    isr: list[int]
    offline: list[int]


class TopicState(NamedTuple):
    """id: 16 bytes, all zero where brokers have no topic ids. partitions: in order."""

    name: str
    id: bytes
    internal: bool
    partitions: list[PartitionState]

    @property
    def replication_factor(self) -> int:
        """Of the partition with the most replicas."""
        return max((len(row.replicas) for row in self.partitions), default=0)


class NewTopic(NamedTuple):
    """partitions, replication_factor: BROKER_DEFAULT leaves them to ``num.partitions`` and
    ``default.replication.factor``. replicas: for each partition the node ids instead of both.
    configs: settings of the topic.
    """

    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    replicas: list[list[int]] | None = None
    configs: Mapping[str, str] = {}


class CreatedTopic(NamedTuple):
    """partitions, replication_factor: -1 where brokers do not tell (before 2.4, or without the
    right to describe the topic's configs).
    """

    name: str
    partitions: int
    replication_factor: int


class FoundTopics(Sequence[TopicState]):
    """Sorted by name. Each is made when it is read, as a page of thousands shows few."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows = sorted(rows, key=lambda row: str(row.name))

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> TopicState: ...

    @overload
    def __getitem__(self, index: slice) -> list[TopicState]: ...

    def __getitem__(self, index: int | slice) -> TopicState | list[TopicState]:
        if isinstance(index, slice):
            return [_state(row) for row in self._rows[index]]
        return _state(self._rows[index])


class SearchedTopics(Sequence[TopicState]):
    """Topics whose names contain ``search``, sorted by name, of a broker that pages them: what is
    read is asked for, some at a time. Raises NotPaged where brokers do not, before anything else.
    """

    def __init__(self, cluster: Cluster, search: str, internal: bool) -> None:
        self._cluster = cluster
        self._search = search
        self._internal = internal
        self._total: int | None = None
        self._first = 0
        self._rows: list[TopicState] = []

    def __len__(self) -> int:
        if self._total is None:
            self._ask(0, 0)
        assert self._total is not None
        return self._total

    @overload
    def __getitem__(self, index: int) -> TopicState: ...

    @overload
    def __getitem__(self, index: slice) -> list[TopicState]: ...

    def __getitem__(self, index: int | slice) -> TopicState | list[TopicState]:
        if isinstance(index, slice):
            if index.step is not None or index.start is None or index.stop is None:
                return [self[at] for at in range(*index.indices(len(self)))]
            first = min(index.start, _SKIP_MAX)
            return self._ask(first, max(index.stop - index.start, 0))
        at = index if index >= 0 else len(self) + index
        if not self._first <= at < self._first + len(self._rows):
            self._first, self._rows = at, self._ask(at, _TOPICS_AT_ONCE)
        if not 0 <= at - self._first < len(self._rows):
            raise IndexError(index)
        return self._rows[at - self._first]

    def _ask(self, skip: int, count: int) -> list[TopicState]:
        """Partitions of one topic may be in several responses."""
        from kbroker.protocol.messages.describe_topic_partitions import (
            DescribeTopicPartitionsRequest as Request,
        )

        request = Request(
            search=self._search, with_internal=self._internal, skip=skip, topic_limit=count
        )
        found: dict[str, TopicState] = {}
        while True:
            try:
                response = self._cluster.call(None, request, what="topics")
            except UnsupportedByBroker as error:
                raise NotPaged from error
            if response.total < 0:
                raise NotPaged
            self._total = response.total
            for row in map(_state, response.topics):
                known = found.get(row.name)
                if known is not None:
                    row = row._replace(partitions=known.partitions + row.partitions)
                found[row.name] = row
            at = response.next_cursor
            if at is None:
                return list(found.values())
            request.cursor = Request.Cursor(
                topic_name=at.topic_name, partition_index=at.partition_index
            )


class NotPaged(Exception):
    """This broker does not page topics."""


def search_topics(cluster: Cluster, search: str, *, internal: bool) -> Sequence[TopicState]:
    """Topics whose name contains a text, sorted by name. Each is asked for, or made, when it is
    read. Raises UnreachableError, Timeout.
    """
    searched = SearchedTopics(cluster, search, internal)
    try:
        len(searched)
    except NotPaged:
        return find_topics(
            cluster, lambda name, is_internal: search in name and (internal or not is_internal)
        )
    return searched


def list_topics(cluster: Cluster) -> list[TopicState]:
    """All topics that this user may describe, sorted by name. Raises UnreachableError, Timeout."""
    return topics_of(_rows(cluster, None))


def find_topics(cluster: Cluster, matches: Callable[[str, bool], bool]) -> FoundTopics:
    """Those of ``list_topics`` of which ``matches(name, internal)`` is true."""
    rows = _rows(cluster, None)
    return FoundTopics(row for row in rows if matches(row.name, row.is_internal))


def describe_topics(cluster: Cluster, names: Iterable[str]) -> list[TopicState]:
    """These topics, in this order. Raises RejectedError, UNKNOWN_TOPIC_OR_PARTITION for the first
    that does not exist; never creates one.
    """
    wanted = list(dict.fromkeys(names))
    states = {row.name: _state(row) for row in _rows(cluster, wanted)} if wanted else {}
    for name in wanted:
        if name not in states:
            raise RejectedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}")
    return [states[name] for name in wanted]


def _rows(cluster: Cluster, names: list[str] | None) -> list[Any]:
    """Topics of a Metadata response, all of them without ``names``. Raises RejectedError."""
    retry = cluster.retry("metadata")
    row = MetadataRequest.MetadataRequestTopic
    request = MetadataRequest(
        topics=None if names is None else [row(name=name) for name in names],
        allow_auto_topic_creation=False,
    )
    while True:
        try:
            connection = cluster.connection(None, retry)
            response = connection.call(request, retry.step(cluster.request_timeout))
            cluster.adopt_brokers(response.brokers)
            return rows_of(response)
        except ClientError as error:
            retry.pause(error)


def topics_of(rows: Iterable[Any]) -> list[TopicState]:
    """The topics of ``rows_of``, sorted."""
    return sorted(map(_state, rows))


def rows_of(response: MetadataResponse) -> list[Any]:
    """The rows of a Metadata response whose topics are there. Raises RejectedError."""
    return [row for row in response.topics if _is_there(row)]


def _is_there(row: Any) -> bool:
    if row.error_code in _NOT_THERE:
        return False
    if row.error_code and row.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
        raise RejectedError(row.error_code, f"topic {row.name}")
    return True


def _state(row: Any) -> TopicState:
    partitions = [
        PartitionState(
            part.partition_index,
            part.leader_id if part.leader_id >= 0 else None,
            list(part.replica_nodes),
            list(part.isr_nodes),
            list(part.offline_replicas),
        )
        for part in sorted(row.partitions, key=lambda part: int(part.partition_index))
    ]
    return TopicState(row.name, bytes(row.topic_id), row.is_internal, partitions)


def create_topics(
    cluster: Cluster, topics: Iterable[NewTopic], *, validate_only: bool = False
) -> dict[str, CreatedTopic | RejectedError]:
    """Create topics; the result of each by its name. validate_only: only check whether it could.

    A connection that fails after the request was sent makes the next attempt report
    TOPIC_ALREADY_EXISTS. Raises Timeout, UnreachableError, ...
    """
    from kbroker.protocol.messages.create_topics import CreateTopicsRequest

    def request(
        connection: Connection, left: Mapping[str, NewTopic], timeout_ms: int
    ) -> CreateTopicsRequest:
        return CreateTopicsRequest(
            topics=[_creation(CreateTopicsRequest, topic) for topic in left.values()],
            timeout_ms=timeout_ms,
            validate_only=validate_only,
        )

    rows = ask_controller_for_each(
        cluster,
        {topic.name: topic for topic in topics},
        request,
        lambda response: [(row.name, row) for row in response.topics],
        "create topics",
    )
    return {
        name: _error(row, f"topic {name}")
        or CreatedTopic(name, row.num_partitions, row.replication_factor)
        for name, row in rows.items()
    }


def _creation(message: Any, topic: NewTopic) -> Any:
    replicas = topic.replicas
    return message.CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions if replicas is None else BROKER_DEFAULT,
        replication_factor=topic.replication_factor if replicas is None else BROKER_DEFAULT,
        assignments=[
            message.CreatableReplicaAssignment(partition_index=number, broker_ids=nodes)
            for number, nodes in enumerate(replicas or ())
        ],
        configs=[
            message.CreatableTopicConfig(name=name, value=value)
            for name, value in topic.configs.items()
        ],
    )


def delete_topics(cluster: Cluster, names: Iterable[str]) -> dict[str, RejectedError | None]:
    """Delete topics with their records; the error of each by its name. Raises Timeout, ..."""
    from kbroker.protocol.messages.delete_topics import DeleteTopicsRequest

    def request(
        connection: Connection, left: Mapping[str, None], timeout_ms: int
    ) -> DeleteTopicsRequest:
        if connection.version_of(ApiKey.DELETE_TOPICS) < _FIRST_DELETE_BY_ROW:
            return DeleteTopicsRequest(topic_names=list(left), timeout_ms=timeout_ms)
        row = DeleteTopicsRequest.DeleteTopicState
        return DeleteTopicsRequest(topics=[row(name=name) for name in left], timeout_ms=timeout_ms)

    rows = ask_controller_for_each(
        cluster,
        dict.fromkeys(names),
        request,
        lambda response: [(row.name, row) for row in response.responses],
        "delete topics",
    )
    return {name: _error(row, f"topic {name}") for name, row in rows.items()}


def add_partitions(
    cluster: Cluster,
    counts: Mapping[str, int],
    *,
    validate_only: bool = False,
    assignments: Mapping[str, list[list[int]]] | None = None,
) -> dict[str, RejectedError | None]:
    """Give topics more partitions; the error of each by its name. Keys may then be in another
    partition than before.

    counts: how many partitions each shall have, more than now. assignments: by topic, the node ids
    of each new partition; the brokers choose for other topics. Raises Timeout, ...
    """
    from kbroker.protocol.messages.create_partitions import CreatePartitionsRequest

    def replicas_of(name: str) -> list[Any] | None:
        if name not in (assignments or {}):
            return None
        assert assignments is not None
        row = CreatePartitionsRequest.CreatePartitionsAssignment
        return [row(broker_ids=nodes) for nodes in assignments[name]]

    def request(
        connection: Connection, left: Mapping[str, int], timeout_ms: int
    ) -> CreatePartitionsRequest:
        row = CreatePartitionsRequest.CreatePartitionsTopic
        return CreatePartitionsRequest(
            topics=[
                row(name=name, count=count, assignments=replicas_of(name))
                for name, count in left.items()
            ],
            timeout_ms=timeout_ms,
            validate_only=validate_only,
        )

    rows = ask_controller_for_each(
        cluster,
        counts,
        request,
        lambda response: [(row.name, row) for row in response.results],
        "add partitions",
    )
    return {name: _error(row, f"topic {name}") for name, row in rows.items()}


def _error(row: Any, what: str) -> RejectedError | None:
    if not row.error_code:
        return None
    return RejectedError(row.error_code, what, getattr(row, "error_message", None))
