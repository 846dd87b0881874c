"""Requests about several transactions: AddPartitionsToTxn (24), DescribeTransactions (65),
ListTransactions (66).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kbroker.coordinator.list_filters import transaction_filter, unfiltered_transactions
from kbroker.coordinator.partitioner import TRANSACTIONS_TOPIC
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.allowed_topics import divide
from kbroker.handlers.support.coordinated import ask_all, forward, split
from kbroker.handlers.support.requirements import Requirement, Requirements, each
from kbroker.handlers.support.stored_offsets import exists
from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message
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
from kbroker.security.operations import CLUSTER_NAME, AclOperation, Kind

Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
TopicRow = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult

# Brokers use version 4 and later, for transactions of others.
ADDING: Requirements = (
    Requirement(
        AclOperation.WRITE,
        Kind.TRANSACTIONAL_ID,
        lambda request: filter(None, (request.v3_and_below_transactional_id,)),
    ),
    Requirement(
        AclOperation.CLUSTER_ACTION,
        Kind.CLUSTER,
        lambda request: (CLUSTER_NAME,) if request.transactions else (),
    ),
    each(AclOperation.WRITE, Kind.TOPIC),
)


def failed_topics(topics: list[Topic], error: WireError) -> list[TopicRow]:
    """The error for each partition."""
    return [failed_topic(topic, lambda partition: error.code) for topic in topics]


def failed_topic(topic: Topic, code_of: Callable[[int], ErrorCode]) -> TopicRow:
    """The entry of a topic with a code for each partition."""
    partition = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
    return AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
        name=topic.name,
        results_by_partition=[
            partition(partition_index=p, partition_error_code=int(code_of(p)))
            for p in topic.partitions
        ],
    )


def transaction_failed(
    transaction: AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction, error: WireError
) -> AddPartitionsToTxnResponse.AddPartitionsToTxnResult:
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
    return AddPartitionsToTxnResponse(error_code=int(error.code))


@api(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    versions=ApiKey.ADD_PARTITIONS_TO_TXN.versions,
    fail=add_failed,
    authorize=ADDING,
)
async def handle_add_partitions_to_txn(
    ctx: RequestContext, request: AddPartitionsToTxnRequest
) -> Message | bytes:
    """Ask the coordinator of each transaction."""
    if ctx.api_version < 4:
        return await add_allowed(ctx, request)
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


async def add_allowed(ctx: RequestContext, request: AddPartitionsToTxnRequest) -> Message | bytes:
    """Up to version 3. All partitions of a request are added, or none."""
    topics = request.v3_and_below_topics
    _, denied = divide(ctx, AclOperation.WRITE, topics)
    if not denied:
        return await forward(ctx, TRANSACTIONS_TOPIC, request.v3_and_below_transactional_id)
    names = {topic.name for topic in denied}

    def code_of(topic: str, partition: int) -> ErrorCode:
        if topic in names:
            return Kind.TOPIC.error
        if exists(ctx, topic, partition):
            return ErrorCode.OPERATION_NOT_ATTEMPTED
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    rows = [failed_topic(t, partial(code_of, t.name)) for t in topics]
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=rows)


def state_failed(
    transactional_id: str, error: WireError
) -> DescribeTransactionsResponse.TransactionState:
    row = DescribeTransactionsResponse.TransactionState
    return row(transactional_id=transactional_id, error_code=int(error.code))


def describe_failed(
    ctx: RequestContext, request: DescribeTransactionsRequest, error: WireError
) -> DescribeTransactionsResponse:
    rows = [state_failed(i, error) for i in request.transactional_ids]
    return DescribeTransactionsResponse(transaction_states=rows)


@api(
    ApiKey.DESCRIBE_TRANSACTIONS,
    versions=(0, 0),
    fail=describe_failed,
    authorize=(
        each(AclOperation.DESCRIBE, Kind.TRANSACTIONAL_ID),
        each(AclOperation.DESCRIBE, Kind.TOPIC),
    ),
)
async def handle_describe_transactions(
    ctx: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Ask the coordinator of each transactional id; one named twice is in the response once."""
    ids = list(dict.fromkeys(request.transactional_ids))
    describable = ctx.allowed(AclOperation.DESCRIBE, Kind.TRANSACTIONAL_ID, ids)
    rows = await split(
        ctx,
        TRANSACTIONS_TOPIC,
        [i for i in ids if i in describable],
        str,
        lambda ids: DescribeTransactionsRequest(transactional_ids=ids),
        lambda response: list(response.transaction_states),
        state_failed,
    )
    for row in rows:
        names = [topic.topic for topic in row.topics]
        shown = ctx.allowed(AclOperation.DESCRIBE, Kind.TOPIC, names)
        row.topics = [topic for topic in row.topics if topic.topic in shown]
    denied = WireError(Kind.TRANSACTIONAL_ID.error)
    rows += [state_failed(i, denied) for i in ids if i not in describable]
    return DescribeTransactionsResponse(transaction_states=rows)


@api(
    ApiKey.LIST_TRANSACTIONS,
    versions=ApiKey.LIST_TRANSACTIONS.versions,
    unjoined=ErrorCode.COORDINATOR_NOT_AVAILABLE,
    authorize=each(AclOperation.DESCRIBE, Kind.TRANSACTIONAL_ID),
)
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
    ids = [t.transactional_id for t in response.transaction_states]
    kind = Kind.TRANSACTIONAL_ID
    describable = ctx.allowed(AclOperation.DESCRIBE, kind, ids, is_filter=True)
    response.transaction_states = [
        t for t in response.transaction_states if t.transactional_id in describable
    ]
    if response.error_code:
        response.transaction_states = []
    return response
