"""Transactions of a cluster: list, describe and end those of others, and producers of partitions.

From Kafka 3.0; abort from 0.11.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.client.admin.partitions import by_topic, in_requests
from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.connections.cluster import TRANSACTION, Cluster
from kbroker.client.connections.metadata import Topic
from kbroker.client.errors import ClientError, RejectedError
from kbroker.errors import ErrorCode

_NONE = -1
# Of a producer that is only initialized, to fence others.
_FENCING_TIMEOUT_MS = 1


class ListedTransaction(NamedTuple):
    """coordinator: a node id. state: such as Ongoing or CompleteCommit."""

    coordinator: int
    transactional_id: str
    producer_id: int
    state: str


class TransactionState(NamedTuple):
    """started_ms: when the open transaction began, None without one. partitions: those that are in
    it, and wait for its end.
    """

    coordinator: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int | None
    partitions: list[TopicPartition]


class ActiveProducer(NamedTuple):
    """A producer that has written to a partition. last_timestamp: of its last batch, in ms.
    coordinator_epoch: of its last marker, -1 without one. open_from: the first offset of its open
    transaction, None without one.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp: int
    open_from: int | None


def list_transactions(
    cluster: Cluster,
    *,
    producer_ids: Iterable[int] = (),
    longer_than_ms: int = _NONE,
    pattern: str | None = None,
) -> list[ListedTransaction]:
    """Transactional ids with their last transaction, by node.

    longer_than_ms: only those open for longer, from Kafka 3.8; pattern: a regular expression for
    the whole id, from Kafka 4.1. Raises RejectedError, UnsupportedByBroker.
    """
    from kbroker.protocol.messages.list_transactions import ListTransactionsRequest

    request = ListTransactionsRequest(
        producer_id_filters=list(producer_ids),
        duration_filter=longer_than_ms,
        transactional_id_pattern=pattern,
    )
    listed = []
    for node in cluster.nodes():
        response = cluster.call(node, request, what="list transactions")
        if response.error_code:
            raise RejectedError(response.error_code, f"list transactions of broker {node}")
        listed += [
            ListedTransaction(node, row.transactional_id, row.producer_id, row.transaction_state)
            for row in response.transaction_states
        ]
    return listed


def describe_transaction(cluster: Cluster, transactional_id: str) -> TransactionState:
    """Raises RejectedError, TRANSACTIONAL_ID_NOT_FOUND for one that no producer has used."""
    from kbroker.protocol.messages.describe_transactions import DescribeTransactionsRequest

    what = f"describe transactional id {transactional_id}"
    response = cluster.call_coordinator(
        transactional_id,
        TRANSACTION,
        DescribeTransactionsRequest(transactional_ids=[transactional_id]),
        lambda found: int(found.transaction_states[0].error_code),
        what=what,
    )
    (row,) = response.transaction_states
    node = cluster.coordinator(transactional_id, TRANSACTION, cluster.retry(what))
    return TransactionState(
        node,
        row.transactional_id,
        row.producer_id,
        row.producer_epoch,
        row.transaction_state,
        row.transaction_timeout_ms,
        None if row.transaction_start_time_ms < 0 else row.transaction_start_time_ms,
        [(topic.topic, number) for topic in row.topics for number in topic.partitions],
    )


def describe_producers(
    cluster: Cluster, partitions: Iterable[TopicPartition], node: int | None = None
) -> dict[TopicPartition, list[ActiveProducer]]:
    """Producers of partitions, as their leaders know them, or as this broker does. Raises
    RejectedError for the first partition that has an error.
    """
    from kbroker.protocol.messages.describe_producers import DescribeProducersRequest as Request

    producers: dict[TopicPartition, list[ActiveProducer]] = {}
    left = list(partitions)
    retry = cluster.retry("describe producers")
    while left:
        try:
            by_node: dict[int, list[TopicPartition]] = {}
            if node is None:
                cluster.refresh_unknown((topic for topic, _ in left), retry)
            for key in left:
                by_node.setdefault(_place(cluster, key, node, retry), []).append(key)
            for place, keys in by_node.items():
                topics = [
                    Request.TopicRequest(name=name, partition_indexes=numbers)
                    for name, numbers in by_topic(keys).items()
                ]
                connection = cluster.connection(place, retry)
                response = connection.call(
                    Request(topics=topics), retry.step(cluster.request_timeout)
                )
                for topic in response.topics:
                    for row in topic.partitions:
                        key = topic.name, row.partition_index
                        _check_partition(cluster, key, row)
                        producers[key] = [_producer(each) for each in row.active_producers]
            left = [key for key in left if key not in producers]
        except ClientError as error:
            if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            retry.pause(error)
    return producers


def _place(cluster: Cluster, key: TopicPartition, node: int | None, retry: Any) -> int:
    return cluster.leader(*key, retry)[1] if node is None else node


def _check_partition(cluster: Cluster, key: TopicPartition, row: Any) -> None:
    if row.error_code:
        cluster.forget_topic(key[0])
        what = f"describe producers of {key[0]}-{key[1]}"
        raise RejectedError(row.error_code, what, row.error_message)


def _producer(row: Any) -> ActiveProducer:
    return ActiveProducer(
        row.producer_id,
        row.producer_epoch,
        row.coordinator_epoch,
        row.last_sequence,
        row.last_timestamp,
        None if row.current_txn_start_offset < 0 else row.current_txn_start_offset,
    )


LateRows = list[tuple[TopicPartition, ActiveProducer]]


def hanging_transactions(
    cluster: Cluster,
    partitions: Sequence[TopicPartition] | None,
    latest_ms: int,
    node: int | None = None,
) -> LateRows:
    """Transactions whose last record is older than ``latest_ms``, in a partition for which no
    coordinator will write a marker: the last stable offset stays there. partitions: None: all that
    the user may see. node: as in ``describe_producers``. Raises RejectedError, UnsupportedByBroker.
    """
    if partitions is None:
        candidates = _all_late(cluster, latest_ms, node)
    else:
        candidates = _late_in(cluster, partitions, latest_ms, node)
    if not candidates:
        return []
    producers = {row.producer_id for _, row in candidates}
    waiting: dict[int, set[TopicPartition]] = {}
    for listed in list_transactions(cluster, producer_ids=producers):
        try:
            state = describe_transaction(cluster, listed.transactional_id)
        except RejectedError as error:
            if error.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
        else:
            waiting.setdefault(listed.producer_id, set()).update(state.partitions)
    return [(key, row) for key, row in candidates if key not in waiting.get(row.producer_id, ())]


def _late_in(
    cluster: Cluster, partitions: Sequence[TopicPartition], latest_ms: int, node: int | None
) -> LateRows:
    """Open transactions without a record since ``latest_ms``, in these partitions."""
    return [
        (key, row)
        for some in in_requests(partitions)
        for key, rows in describe_producers(cluster, some, node).items()
        for row in rows
        if row.open_from is not None and row.last_timestamp < latest_ms
    ]


def _all_late(cluster: Cluster, latest_ms: int, node: int | None) -> LateRows:
    """The same in all partitions, one request to each broker. Brokers of Kafka, which have to be
    asked for each partition, are asked so.
    """
    nodes = cluster.nodes() if node is None else [node]
    answers = {place: _late_at(cluster, place, latest_ms) for place in nodes}
    rows = [(place, key, row) for place, late in answers.items() for key, row in late or ()]
    if node is None and rows:
        topics = cluster.topics({key[0] for _, key, _ in rows})
        rows = [each for each in rows if _leader(topics, each[1]) == each[0]]
    found = [(key, row) for _, key, row in rows]
    if others := {place for place, late in answers.items() if late is None}:
        found += _late_in(cluster, _partitions_of(cluster, others, node), latest_ms, node)
    return found


def _late_at(cluster: Cluster, node: int, latest_ms: int) -> LateRows | None:
    """In the replicas of a broker; None if it has to be asked for each."""
    from kbroker.protocol.messages.describe_producers import DescribeProducersRequest

    request = DescribeProducersRequest(late_before=max(latest_ms, 0))
    response = cluster.call(node, request, what="describe producers")
    if not response.only_late:
        return None
    late: LateRows = []
    for topic in response.topics:
        for part in topic.partitions:
            key = topic.name, part.partition_index
            _check_partition(cluster, key, part)
            late += [(key, _producer(row)) for row in part.active_producers]
    return late


def _leader(topics: Mapping[str, Topic], key: TopicPartition) -> int | None:
    topic = topics.get(key[0])
    known = None if topic is None else topic.partitions.get(key[1])
    return None if known is None else known.leader


def _partitions_of(
    cluster: Cluster, nodes: Collection[int], node: int | None
) -> list[TopicPartition]:
    """Those that these brokers lead; with ``node``, those that it has replicas of."""
    return [
        (name, number)
        for name, topic in cluster.topics().items()
        for number, row in topic.partitions.items()
        if (row.leader in nodes if node is None else node in row.replicas)
    ]


def abort_in_partition(
    cluster: Cluster,
    partition: TopicPartition,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
) -> None:
    """End the open transaction of a producer in one partition with an abort, whatever its
    coordinator says: only for a transaction that hangs. Raises RejectedError.
    """
    from kbroker.protocol.messages.write_txn_markers import WriteTxnMarkersRequest as Request

    topic, number = partition
    marker = Request.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        transaction_result=False,
        topics=[Request.WritableTxnMarkerTopic(name=topic, partition_indexes=[number])],
    )
    what = f"abort the transaction of producer {producer_id} in {topic}-{number}"
    retry = cluster.retry(what)
    while True:
        try:
            node = cluster.leader(topic, number, retry)[1]
            connection = cluster.connection(node, retry)
            response = connection.call(
                Request(markers=[marker]), retry.step(cluster.request_timeout)
            )
            for row in (
                row
                for each in response.markers
                for topic_row in each.topics
                for row in topic_row.partitions
            ):
                if row.error_code:
                    raise RejectedError(row.error_code, what)
            return
        except ClientError as error:
            if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            cluster.forget_topic(topic)
            retry.pause(error)


def force_terminate(cluster: Cluster, transactional_id: str) -> None:
    """Abort the open transaction of an id, and fence its producer. Raises RejectedError."""
    from kbroker.client.batches.transactions import init_producer

    init_producer(cluster, transactional_id, timeout_ms=_FENCING_TIMEOUT_MS)
