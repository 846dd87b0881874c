"""DescribeTransactions (65, version 0) and ListTransactions (66, versions 0 to 2), for the
transactional ids of one partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.coordinator.list_filters import transaction_filter
from kbroker.coordinator.patterns import PatternError, compile_pattern
from kbroker.coordinator.transaction.state import (
    NO_TIME,
    OPEN,
    STATE_NAMES,
    Transaction,
    by_topic,
)
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from kbroker.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)


def describe(
    transactions: Mapping[str, Transaction], request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """The state of each requested id."""
    return DescribeTransactionsResponse(
        transaction_states=[
            _describe_one(transactional_id, transactions.get(transactional_id))
            for transactional_id in request.transactional_ids
        ]
    )


def _describe_one(transactional_id: str, txn: Transaction | None) -> Any:
    made = DescribeTransactionsResponse.TransactionState
    if txn is None:
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        if not transactional_id:
            code = ErrorCode.INVALID_REQUEST
        return made(error_code=int(code), transactional_id=transactional_id)
    topic_data = DescribeTransactionsResponse.TopicData
    return made(
        transactional_id=transactional_id,
        transaction_state=STATE_NAMES[txn.state],
        transaction_timeout_ms=txn.timeout_ms,
        transaction_start_time_ms=txn.start_ms,
        producer_id=txn.producer_id,
        producer_epoch=txn.epoch,
        topics=[
            topic_data(topic=topic.topic, partitions=topic.partition_ids)
            for topic in by_topic(txn.partitions)
        ],
    )


def list_matching(
    transactions: Iterable[Transaction], request: ListTransactionsRequest, now_ms: int
) -> ListTransactionsResponse:
    """The ids that pass every filter of the request; now_ms: wall clock."""
    is_listed = transaction_filter(request)
    pattern = request.transactional_id_pattern
    try:
        matches = compile_pattern(pattern) if pattern else None
    except PatternError:
        return ListTransactionsResponse(error_code=int(ErrorCode.INVALID_REGULAR_EXPRESSION))
    longest = request.duration_filter

    def is_wanted(txn: Transaction) -> bool:
        if not is_listed(STATE_NAMES[txn.state], txn.producer_id):
            return False
        if longest >= 0 and not _runs_longer(txn, longest, now_ms):
            return False
        return matches is None or matches(txn.transactional_id) is not None

    made = ListTransactionsResponse.TransactionState
    return ListTransactionsResponse(
        unknown_state_filters=unknown_states(request),
        transaction_states=[
            made(
                transactional_id=txn.transactional_id,
                producer_id=txn.producer_id,
                transaction_state=STATE_NAMES[txn.state],
            )
            for txn in transactions
            if is_wanted(txn)
        ],
    )


def unknown_states(request: ListTransactionsRequest) -> list[str]:
    """The states of the filter that do not exist."""
    known = set(STATE_NAMES.values())
    return [name for name in request.state_filters if name not in known]


def _runs_longer(txn: Transaction, duration_ms: int, now_ms: int) -> bool:
    # COMPAT: Kafka also lists transactional ids without a transaction, by the start time of the
    # last one.
    return txn.state in OPEN and txn.start_ms != NO_TIME and now_ms - txn.start_ms > duration_ms
