"""The state of one transactional id, and the records that change it.

Hard fields come from records alone (``apply``). The functions below decide nothing: they say which
record each step writes, given that it is allowed. Epochs and producer ids follow Kafka's second
transaction protocol (KIP-890): ending a transaction raises the epoch. Where no epoch is left, the
PREPARE record carries the next producer id, and the COMPLETE record takes it over.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from kbroker.coordinator.records.transaction_topic import TransactionLogValue

NO_PRODUCER_ID = NO_EPOCH = -1
NO_TIME = -1
# Recorded for a producer that takes part in two-phase commits (KIP-939): their coordinator decides,
# and no timeout aborts its transactions.
NO_TIMEOUT_MS = 2**31 - 1
EPOCH_MAX = 32767
# The last epoch a client gets; the one above is kept for fencing it.
CLIENT_EPOCH_MAX = EPOCH_MAX - 1
# transaction.version: recorded for clients of the first and of the second protocol.
VERSION_1, VERSION_2 = 0, 2

Partition = tuple[str, int]


class TransactionStatus(IntEnum):
    """The state of a transaction, as numbered in its records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


STATE_NAMES = {
    TransactionStatus.EMPTY: "Empty",
    TransactionStatus.ONGOING: "Ongoing",
    TransactionStatus.PREPARE_COMMIT: "PrepareCommit",
    TransactionStatus.PREPARE_ABORT: "PrepareAbort",
    TransactionStatus.COMPLETE_COMMIT: "CompleteCommit",
    TransactionStatus.COMPLETE_ABORT: "CompleteAbort",
    TransactionStatus.DEAD: "Dead",
    TransactionStatus.PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}
PREPARED = (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)
COMPLETE = (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)
# A transaction that has begun and whose markers are not all written.
OPEN = (TransactionStatus.ONGOING, *PREPARED)

_STATES = {int(state): state for state in TransactionStatus}
# Written by no broker; read as a state that frees the partitions the record may name.
_STATES[TransactionStatus.DEAD] = TransactionStatus.EMPTY
_STATES[TransactionStatus.PREPARE_EPOCH_FENCE] = TransactionStatus.PREPARE_ABORT


class Transaction:
    """The state of a transactional id.

    last_epoch: the epoch before the present one if the same producer raised it, else -1; soft, lost
    with the process. deadline_ms: when an ongoing transaction is aborted, on the monotonic clock.
    """

    __slots__ = (
        "client_version",
        "deadline_ms",
        "epoch",
        "last_epoch",
        "next_producer_id",
        "partitions",
        "previous_producer_id",
        "producer_id",
        "start_ms",
        "state",
        "timeout_ms",
        "transactional_id",
        "update_ms",
    )

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.producer_id = NO_PRODUCER_ID
        self.previous_producer_id = NO_PRODUCER_ID
        self.next_producer_id = NO_PRODUCER_ID
        self.epoch = self.last_epoch = NO_EPOCH
        self.timeout_ms = 0
        self.state = TransactionStatus.EMPTY
        self.partitions: frozenset[Partition] = frozenset()
        self.start_ms = self.update_ms = NO_TIME
        self.client_version = VERSION_1
        self.deadline_ms = 0

    def apply(self, value: TransactionLogValue) -> None:
        """Take over the state of the record; it replaces everything before."""
        state = _STATES.get(value.transaction_status, TransactionStatus.PREPARE_ABORT)
        self.last_epoch = self._last_epoch_after(value, state)
        self.producer_id = value.producer_id
        self.previous_producer_id = value.previous_producer_id
        self.next_producer_id = value.next_producer_id
        self.epoch = value.producer_epoch
        self.timeout_ms = value.transaction_timeout_ms
        self.state = state
        self.partitions = frozenset(
            (topic.topic, partition)
            for topic in value.transaction_partitions or ()
            for partition in topic.partition_ids
        )
        self.start_ms = value.transaction_start_timestamp_ms
        self.update_ms = value.transaction_last_update_timestamp_ms
        self.client_version = value.client_transaction_version

    def _last_epoch_after(self, value: TransactionLogValue, state: TransactionStatus) -> int:
        if value.producer_id != self.producer_id:
            return self.last_epoch if state in COMPLETE else NO_EPOCH
        if value.producer_epoch == self.epoch:
            return self.last_epoch
        if state in PREPARED and value.producer_epoch == self.epoch + 1:
            return self.epoch
        return NO_EPOCH

    @property
    def is_exhausted(self) -> bool:
        """Whether no epoch is left for a client."""
        return self.epoch >= CLIENT_EPOCH_MAX

    @property
    def identity(self) -> tuple[int, int]:
        """The producer id and epoch to continue with, even while the transaction is being
        completed.
        """
        if self.state in PREPARED and self.next_producer_id != NO_PRODUCER_ID:
            return self.next_producer_id, 0
        return self.producer_id, self.epoch


def value_of(txn: Transaction, state: TransactionStatus, now_ms: int) -> TransactionLogValue:
    """A record with everything unchanged except the state."""
    return TransactionLogValue(
        producer_id=txn.producer_id,
        previous_producer_id=txn.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        producer_epoch=txn.epoch,
        transaction_timeout_ms=txn.timeout_ms,
        transaction_status=int(state),
        transaction_partitions=by_topic(txn.partitions),
        transaction_last_update_timestamp_ms=now_ms,
        transaction_start_timestamp_ms=txn.start_ms,
        client_transaction_version=txn.client_version,
    )


def by_topic(partitions: Iterable[Partition]) -> list[Any]:
    """A list of partitions for each topic, as in records."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    made = TransactionLogValue.PartitionsSchema
    return [made(topic=topic, partition_ids=ids) for topic, ids in topics.items()]


def initialized(
    txn: Transaction, producer_id: int, epoch: int, timeout_ms: int, now_ms: int
) -> TransactionLogValue:
    """A producer starts, with this id and epoch."""
    value = value_of(txn, TransactionStatus.EMPTY, now_ms)
    value.producer_id, value.producer_epoch = producer_id, epoch
    value.transaction_timeout_ms = timeout_ms
    value.transaction_partitions = []
    value.transaction_start_timestamp_ms = NO_TIME
    return value


def with_partitions(
    txn: Transaction, partitions: Iterable[Partition], version: int, now_ms: int
) -> TransactionLogValue:
    """Add partitions to the transaction; the first ones begin it."""
    value = value_of(txn, TransactionStatus.ONGOING, now_ms)
    if txn.state != TransactionStatus.ONGOING:
        value.transaction_start_timestamp_ms = now_ms
    value.transaction_partitions = by_topic(txn.partitions.union(partitions))
    value.client_transaction_version = version
    return value


def prepared(
    txn: Transaction, commit: bool, version: int, next_producer_id: int, now_ms: int
) -> TransactionLogValue:
    """The end is decided; from the second protocol on, this raises the epoch.

    next_producer_id: taken over when the transaction completes; -1 unless epochs are used up.
    """
    value = value_of(
        txn, TransactionStatus.PREPARE_COMMIT if commit else TransactionStatus.PREPARE_ABORT, now_ms
    )
    if version >= VERSION_2:
        value.producer_epoch = min(txn.epoch + 1, EPOCH_MAX)
        value.next_producer_id = next_producer_id
    if (
        txn.state != TransactionStatus.ONGOING
    ):  # an abort of nothing; a start is wanted nevertheless
        value.transaction_start_timestamp_ms = now_ms
    value.client_transaction_version = version
    return value


def completed(txn: Transaction, now_ms: int) -> TransactionLogValue:
    """All markers are written."""
    is_commit = txn.state == TransactionStatus.PREPARE_COMMIT
    value = value_of(
        txn,
        TransactionStatus.COMPLETE_COMMIT if is_commit else TransactionStatus.COMPLETE_ABORT,
        now_ms,
    )
    value.producer_id, value.producer_epoch = txn.identity
    value.transaction_partitions = []
    return value
