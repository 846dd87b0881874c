"""Requests about several transactions: AddPartitionsToTxn (24), DescribeTransactions (65),
ListTransactions (66).
"""

from __future__ import annotations

from typing import Any

from kbroker.coordinator.list_filters import transaction_filter, unfiltered_transactions
from kbroker.coordinator.partitioner import TRANSACTIONS_TOPIC
from kbroker.errors import WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.coordinated import ask_all, forward, split
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from kbroker.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from kbroker.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)


def failed_topics(topics: Any, error: WireError) -> list[Any]:
    """The error for each partition."""
    topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    partition = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
    return [
        topic(
            name=t.name,
            results_by_partition=[
                partition(partition_index=p, partition_error_code=int(error.code))
                for p in t.partitions
            ],
        )
        for t in topics
    ]


def transaction_failed(transaction: Any, error: WireError) -> Any:
    row = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
    return row(
        transactional_id=transaction.transactional_id,
        topic_results=failed_topics(transaction.topics, error),
    )


def add_failed(
    ctx: RequestContext, request: AddPartitionsToTxnRequest, error: WireError
) -> AddPartitionsToTxnResponse:
    if ctx.api_version < 4:
        topics = failed_topics(request.v3_and_below_topics, error)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)
    rows = [transaction_failed(t, error) for t in request.transactions]
    return AddPartitionsToTxnResponse(results_by_transaction=rows)


@api(ApiKey.ADD_PARTITIONS_TO_TXN, versions=ApiKey.ADD_PARTITIONS_TO_TXN.versions, fail=add_failed)
async def handle_add_partitions_to_txn(
    ctx: RequestContext, request: AddPartitionsToTxnRequest
) -> Any:
    """Ask the coordinator of each transaction."""
    if ctx.api_version < 4:
        return await forward(ctx, TRANSACTIONS_TOPIC, request.v3_and_below_transactional_id)
    rows = await split(
        ctx,
        TRANSACTIONS_TOPIC,
        request.transactions,
        lambda transaction: str(transaction.transactional_id),
        lambda some: AddPartitionsToTxnRequest(transactions=some),
        lambda response: list(response.results_by_transaction),
        transaction_failed,
    )
    return AddPartitionsToTxnResponse(results_by_transaction=rows)


def state_failed(transactional_id: str, error: WireError) -> Any:
    row = DescribeTransactionsResponse.TransactionState
    return row(transactional_id=transactional_id, error_code=int(error.code))


def describe_failed(
    ctx: RequestContext, request: DescribeTransactionsRequest, error: WireError
) -> DescribeTransactionsResponse:
    rows = [state_failed(i, error) for i in request.transactional_ids]
    return DescribeTransactionsResponse(transaction_states=rows)


@api(ApiKey.DESCRIBE_TRANSACTIONS, versions=(0, 0), fail=describe_failed)
async def handle_describe_transactions(
    ctx: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Ask the coordinator of each transaction; one that is named again is answered once."""
    rows = await split(
        ctx,
        TRANSACTIONS_TOPIC,
        list(dict.fromkeys(request.transactional_ids)),
        str,
        lambda ids: DescribeTransactionsRequest(transactional_ids=ids),
        lambda response: list(response.transaction_states),
        state_failed,
    )
    return DescribeTransactionsResponse(transaction_states=rows)


@api(ApiKey.LIST_TRANSACTIONS, versions=ApiKey.LIST_TRANSACTIONS.versions)
async def handle_list_transactions(
    ctx: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """The transactions of every coordinator of this broker; an error if one of them is loading."""
    response = ListTransactionsResponse()
    unfiltered = unfiltered_transactions(request)
    for part in await ask_all(ctx, TRANSACTIONS_TOPIC, unfiltered):
        if isinstance(part, WireError):
            response.error_code = int(part.code)
        else:
            response.error_code = response.error_code or part.error_code
            response.unknown_state_filters = part.unknown_state_filters
            response.transaction_states += part.transaction_states
    if unfiltered is not None and not response.error_code:
        from kbroker.coordinator.transaction.listing import unknown_states  # rarely needed

        is_listed = transaction_filter(request)
        response.unknown_state_filters = unknown_states(request)
        response.transaction_states = [
            t for t in response.transaction_states if is_listed(t.transaction_state, t.producer_id)
        ]
    if response.error_code:
        response.transaction_states = []
    return response
