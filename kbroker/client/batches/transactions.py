"""Producer ids and transactions, by (transactional id, producer id, epoch) from any process.

A transaction that a task began can be ended by the driver: a ``ProducerIdentity`` pickles, and this
module remembers nothing between calls. In the second protocol (KIP-890, ``transaction.version`` 2)
partitions need not be added before they are written to, and each end raises the epoch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from kbroker.client.batches.offsets import GroupMetadata, TopicPartition, first_error, named_error
from kbroker.client.connections.cluster import GROUP, TRANSACTION, Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.errors import ClientError, RejectedError, UnsupportedByBroker
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kbroker.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from kbroker.protocol.messages.describe_transactions import DescribeTransactionsRequest
from kbroker.protocol.messages.end_txn import EndTxnRequest
from kbroker.protocol.messages.init_producer_id import InitProducerIdRequest
from kbroker.protocol.messages.list_transactions import ListTransactionsRequest
from kbroker.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

# The newest versions of the first protocol.
_END_TXN_1 = 4
_TXN_OFFSET_COMMIT_1 = 4
# From this version on a member says who it is (KIP-447).
_TXN_OFFSET_COMMIT_OF_MEMBERS = 3
# From this version of EndTxn on a broker uses the second protocol, if its feature level says so,
# too.
_END_TXN_2 = 5
_FEATURE = "transaction.version"
# The code alone is ambiguous (KIP-679): a principal without Write on any topic gets it, too.
_NEEDED = (
    "This needs Write on the topic and, before Kafka 2.8, IdempotentWrite on the cluster; "
    "without that, set enable.idempotence=false."
)
_NO_PRODUCER = -1


class ProducerIdentity(NamedTuple):
    """transactional_id: None for an idempotent producer. implicit: the second protocol is used."""

    transactional_id: str | None
    producer_id: int
    producer_epoch: int
    implicit: bool = False


def init_producer(
    cluster: Cluster,
    transactional_id: str | None = None,
    *,
    timeout_ms: int = 60_000,
    deadline: float | None = None,
) -> ProducerIdentity:
    """A producer id. With a transactional id: fences all producers that had it before, and aborts
    their open transaction.

    timeout_ms: after that a transaction which is not ended is aborted by the cluster.
    """
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
    )
    if transactional_id is not None:
        with cluster.within(deadline):
            response = _ask(cluster, transactional_id, request, "InitProducerId", deadline)
            implicit = _speaks_second(cluster, transactional_id, deadline)
        return ProducerIdentity(
            transactional_id, response.producer_id, response.producer_epoch, implicit
        )
    retry = cluster.retry("a producer id", deadline)
    while True:
        try:
            step = retry.step(cluster.request_timeout)
            response = cluster.connection(None, retry).call(request, step)
            if response.error_code:
                untold = response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                raise RejectedError(response.error_code, retry.what, _NEEDED if untold else None)
            return ProducerIdentity(None, response.producer_id, response.producer_epoch)
        except ClientError as error:
            retry.pause(error)


def _speaks_second(cluster: Cluster, transactional_id: str, deadline: float | None) -> bool:
    retry = cluster.retry("the coordinator's version", deadline)
    while True:
        try:
            node = cluster.coordinator(transactional_id, TRANSACTION, retry)
            connection = cluster.connection(node, retry)
            level = connection.finalized_features.get(_FEATURE, 0)
            return level >= 2 and connection.version_of(ApiKey.END_TXN) >= _END_TXN_2
        except ClientError as error:
            retry.pause(error)


def add_partitions(
    cluster: Cluster,
    identity: ProducerIdentity,
    partitions: Iterable[TopicPartition],
    *,
    deadline: float | None = None,
) -> None:
    """Add partitions to the transaction, before records are written to them (first protocol)."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        by_topic[topic].append(partition)
    assert identity.transactional_id is not None, "an idempotent producer has no transactions"
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=identity.transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=indexes)
            for name, indexes in by_topic.items()
        ],
    )

    what = f"add partitions to transaction {identity.transactional_id}"

    def error_of(response: Any) -> int:
        failed = [
            (row.partition_error_code, (topic.name, row.partition_index))
            for topic in response.results_by_topic_v3_and_below
            for row in topic.results_by_partition
            if row.partition_error_code
        ]
        # The others were not attempted because of this one.
        real = [one for one in failed if one[0] != ErrorCode.OPERATION_NOT_ATTEMPTED]
        return named_error(what, *(real or failed)[0]) if failed else 0

    assert identity.transactional_id is not None
    cluster.call_coordinator(
        identity.transactional_id,
        TRANSACTION,
        request,
        error_of,
        what=what,
        deadline=deadline,
    )


def commit_offsets(
    cluster: Cluster,
    identity: ProducerIdentity,
    group: str | GroupMetadata,
    offsets: Mapping[TopicPartition, tuple[int, str] | tuple[int, str, int]],
    *,
    deadline: float | None = None,
) -> None:
    """Commit a group's offsets within the transaction: they count when it is committed.

    offsets: with the epoch of the leader of the record before, if that is known (KIP-320). group:
    or a member of it, which brokers from Kafka 2.5 reject once the group has given its
    partitions to others (KIP-447).
    """
    member = GroupMetadata(group) if isinstance(group, str) else group
    with cluster.within(deadline):
        if not identity.implicit:
            _add_offsets(cluster, identity, member.group_id, deadline)
        _commit_offsets(cluster, identity, member, offsets, deadline)


def _add_offsets(
    cluster: Cluster, identity: ProducerIdentity, group: str, deadline: float | None
) -> None:
    """First protocol."""
    assert identity.transactional_id is not None, "an idempotent producer has no transactions"
    request = AddOffsetsToTxnRequest(
        transactional_id=identity.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        group_id=group,
    )
    _ask(cluster, identity.transactional_id, request, "AddOffsetsToTxn", deadline)


def _commit_offsets(
    cluster: Cluster,
    identity: ProducerIdentity,
    member: GroupMetadata,
    offsets: Mapping[TopicPartition, tuple[int, str] | tuple[int, str, int]],
    deadline: float | None,
) -> None:
    group = member.group_id
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for (topic, partition), (offset, metadata, *epoch) in offsets.items():
        by_topic[topic].append(
            TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=epoch[0] if epoch else -1,
                committed_metadata=metadata,
            )
        )
    topics = [
        TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=name, partitions=rows)
        for name, rows in by_topic.items()
    ]
    at_most = None if identity.implicit else _TXN_OFFSET_COMMIT_1
    transactional_id = identity.transactional_id
    assert transactional_id is not None, "an idempotent producer has no transactions"

    def commit(connection: Connection, node: int) -> TxnOffsetCommitRequest:
        request = TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=member.group_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            topics=topics,
        )
        version = connection.version_of(ApiKey.TXN_OFFSET_COMMIT, at_most)
        if version >= _TXN_OFFSET_COMMIT_OF_MEMBERS:
            request.generation_id = member.generation_id
            request.member_id = member.member_id
            request.group_instance_id = member.group_instance_id
        return request

    what = f"commit offsets of group {group} in transaction {identity.transactional_id}"
    cluster.call_coordinator(
        group,
        GROUP,
        commit,
        partial(first_error, what),
        what=what,
        deadline=deadline,
        at_most=at_most,
    )


class Outcome(Enum):
    """How a transaction ended. UNKNOWN: another producer has its id by now, or the id has expired.
    UNTOLD: the broker does not report it (before Kafka 3.0).
    """

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    UNTOLD = "untold"


def outcome(
    cluster: Cluster, identity: ProducerIdentity, *, deadline: float | None = None
) -> Outcome:
    """How a transaction ended. The broker knows only the last one of an id, so ask before another
    producer uses the id.
    """
    assert identity.transactional_id is not None
    request = DescribeTransactionsRequest(transactional_ids=[identity.transactional_id])
    try:
        response = cluster.call_coordinator(
            identity.transactional_id,
            TRANSACTION,
            request,
            lambda response: int(response.transaction_states[0].error_code),
            what=f"state of transactional id {identity.transactional_id}",
            deadline=deadline,
        )
    except UnsupportedByBroker:
        return Outcome.UNTOLD
    except RejectedError as error:
        if error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return Outcome.UNKNOWN
        raise
    (state,) = response.transaction_states
    if state.producer_id != identity.producer_id:
        return Outcome.UNKNOWN
    # A broker that ends a transaction bumps the epoch, and so does EndTxn of the second protocol.
    raised = state.producer_epoch - identity.producer_epoch
    last = _OUTCOMES.get(state.transaction_state, Outcome.UNKNOWN)
    return last if raised in ((0,) if last is Outcome.OPEN else (0, 1, 2)) else Outcome.UNKNOWN


_OUTCOMES = {
    "Ongoing": Outcome.OPEN,
    "PrepareCommit": Outcome.COMMITTED,
    "CompleteCommit": Outcome.COMMITTED,
    "PrepareAbort": Outcome.ABORTED,
    "PrepareEpochFence": Outcome.ABORTED,
    "CompleteAbort": Outcome.ABORTED,
}


def is_open(cluster: Cluster, identity: ProducerIdentity, *, deadline: float | None = None) -> bool:
    """Whether the transaction can still be committed, as far as the broker can tell."""
    return outcome(cluster, identity, deadline=deadline) in (Outcome.OPEN, Outcome.UNTOLD)


def open_transactional_ids(cluster: Cluster, *, deadline: float | None = None) -> list[str]:
    """Transactional ids of all brokers that have an open transaction; of brokers before Kafka 3.0
    none."""
    request = ListTransactionsRequest(state_filters=["Ongoing"])
    ids: list[str] = []
    with cluster.within(deadline):
        for node in cluster.nodes(deadline=deadline):
            try:
                response = cluster.call(node, request, what="open transactions", deadline=deadline)
            except UnsupportedByBroker:
                continue
            if response.error_code:
                raise RejectedError(response.error_code, f"open transactions of node {node}")
            ids += [row.transactional_id for row in response.transaction_states]
    return ids


def end_transaction(
    cluster: Cluster,
    identity: ProducerIdentity,
    *,
    commit: bool,
    deadline: float | None = None,
) -> ProducerIdentity:
    """Commit or abort the transaction; returns the identity for the next one.

    May be repeated, also after it succeeded, until the id begins another transaction. Raises
    RejectedError: INVALID_PRODUCER_EPOCH or PRODUCER_FENCED when somebody else has the id by now,
    INVALID_TXN_STATE when it was ended the other way.
    """
    assert identity.transactional_id is not None
    request = EndTxnRequest(
        transactional_id=identity.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        committed=commit,
    )
    response = _ask(
        cluster,
        identity.transactional_id,
        request,
        "commit" if commit else "abort",
        deadline,
        at_most=None if identity.implicit else _END_TXN_1,
    )
    if identity.implicit and response.producer_id != _NO_PRODUCER:
        return identity._replace(
            producer_id=response.producer_id, producer_epoch=response.producer_epoch
        )
    return identity


def abort_transaction(
    cluster: Cluster,
    identity: ProducerIdentity,
    *,
    sure: bool,
    deadline: float | None = None,
) -> ProducerIdentity | None:
    """Abort the transaction; returns the identity for the next one, None if that needs another
    epoch (``init_producer``): something that was sent may still arrive.

    sure: that nothing can, and that the sequence numbers have no gap. Only once it is certain that
    the id is still this producer's may the epoch be raised, as that fences every other one. Raises
    as ``end_transaction``.
    """
    try:
        after = end_transaction(cluster, identity, commit=False, deadline=deadline)
    except RejectedError as error:
        # No record has arrived yet, so the coordinator knows of no transaction.
        if error.code != ErrorCode.INVALID_TXN_STATE:
            raise
        return identity if sure else None
    return after if sure or identity.implicit else None


def _ask(
    cluster: Cluster,
    transactional_id: str,
    request: Any,
    doing: str,
    deadline: float | None,
    *,
    at_most: int | None = None,
) -> Any:
    return cluster.call_coordinator(
        transactional_id,
        TRANSACTION,
        request,
        lambda response: int(response.error_code),
        what=f"{doing} of transactional id {transactional_id}",
        deadline=deadline,
        at_most=at_most,
    )
