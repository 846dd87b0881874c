"""Which requests are allowed on a transaction, as error codes; nothing here changes state.

CONCURRENT_TRANSACTIONS always means: the request is right, but the last transaction is still being
ended.
"""

from __future__ import annotations

from kbroker.coordinator.transaction.state import (
    CLIENT_EPOCH_MAX,
    COMPLETE,
    NO_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    VERSION_2,
    Partition,
    Transaction,
    TransactionStatus,
)
from kbroker.errors import ErrorCode

# From this version on a client knows PRODUCER_FENCED.
FIRST_WITH_PRODUCER_FENCED = {"init": 4, "add_partitions": 2, "add_offsets": 2, "end": 2}


def for_version(code: ErrorCode, request: str, version: int) -> ErrorCode:
    """The code that clients of an older version understand."""
    if code == ErrorCode.PRODUCER_FENCED and version < FIRST_WITH_PRODUCER_FENCED[request]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def judge_producer(txn: Transaction | None, producer_id: int, epoch: int) -> ErrorCode:
    """Whether this producer may use the transactional id now."""
    if txn is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if txn.state in PREPARED and (producer_id, epoch) == txn.identity:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if producer_id != txn.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if epoch != txn.epoch:
        return ErrorCode.PRODUCER_FENCED
    if txn.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.NONE


def judge_write(
    txn: Transaction | None, producer_id: int, epoch: int, partition: Partition
) -> ErrorCode:
    """Whether this producer may write to the partition, which it should have added."""
    code = judge_producer(txn, producer_id, epoch)
    if code == ErrorCode.NONE and txn is not None and partition not in txn.partitions:
        return ErrorCode.TRANSACTION_ABORTABLE
    return code


def judge_init(txn: Transaction, producer_id: int, epoch: int) -> ErrorCode:
    """Whether a producer may start that claims this id and epoch (-1: none) (KIP-360)."""
    if txn.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if producer_id == NO_PRODUCER_ID:
        return ErrorCode.NONE
    if (producer_id, epoch) == (txn.producer_id, txn.epoch):
        return ErrorCode.NONE
    return ErrorCode.NONE if is_init_retry(txn, producer_id, epoch) else ErrorCode.PRODUCER_FENCED


def is_init_retry(txn: Transaction, producer_id: int, epoch: int) -> bool:
    """Whether the producer has been given the present epoch, but lost the response.

    COMPAT: Kafka lets any epoch of the right producer id abort an ongoing transaction. Here a
    producer that was fenced does not reach the transaction of the one that fenced it.
    """
    if txn.state == TransactionStatus.ONGOING or epoch == NO_EPOCH or epoch != txn.last_epoch:
        return False
    if producer_id == txn.producer_id:
        return True
    return producer_id == txn.previous_producer_id and epoch >= CLIENT_EPOCH_MAX


def judge_end(
    txn: Transaction | None, producer_id: int, epoch: int, commit: bool, version: int
) -> ErrorCode | None:
    """Whether the transaction may be ended this way. NONE: it already is. None: go ahead.

    version: of the transaction protocol.
    """
    if txn is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if version >= VERSION_2:
        return _judge_end_2(txn, producer_id, epoch, commit)
    if producer_id != txn.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if epoch != txn.epoch:
        return ErrorCode.PRODUCER_FENCED
    if txn.state == TransactionStatus.ONGOING:
        return None
    return _same_end(txn, commit)


def _judge_end_2(txn: Transaction, producer_id: int, epoch: int, commit: bool) -> ErrorCode | None:
    """In the second protocol, the epoch distinguishes a retried request from one for the next
    transaction.

    COMPAT: an abort of a transaction that never began is carried out, it raises the epoch. If the
    one before it is still being completed, as in a cluster without a leader for some partition, the
    producer asks again; Kafka fences it, which is fatal to its client.
    """
    if txn.state in PREPARED and (producer_id, epoch) == txn.identity:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if producer_id != txn.producer_id:
        # The transaction used up the epochs, and the producer did not receive its new id.
        is_repeated = (
            txn.state in COMPLETE
            and producer_id == txn.previous_producer_id
            and (epoch, txn.epoch) == (CLIENT_EPOCH_MAX, 0)
        )
        return _same_end(txn, commit) if is_repeated else ErrorCode.INVALID_PRODUCER_ID_MAPPING
    is_repeated = epoch + 1 == txn.epoch
    is_current = epoch == txn.epoch
    if txn.state == TransactionStatus.ONGOING:
        return None if is_current else ErrorCode.PRODUCER_FENCED
    if txn.state == TransactionStatus.EMPTY or not is_repeated:
        if txn.state in PREPARED or not is_current:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.INVALID_TXN_STATE if commit else None
    return _same_end(txn, commit)


def _same_end(txn: Transaction, commit: bool) -> ErrorCode:
    """Whether the transaction was ended the same way."""
    match txn.state:
        case TransactionStatus.PREPARE_COMMIT if commit:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        case TransactionStatus.PREPARE_ABORT if not commit:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        case TransactionStatus.COMPLETE_COMMIT if commit:
            return ErrorCode.NONE
        case TransactionStatus.COMPLETE_ABORT if not commit:
            return ErrorCode.NONE
    return ErrorCode.INVALID_TXN_STATE
