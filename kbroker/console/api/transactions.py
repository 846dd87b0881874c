"""Transactions: which are open, since when and where; and an end for one that hangs."""

from __future__ import annotations

import time
from contextlib import suppress

from kbroker.client.admin.rights import sees_all_transactions
from kbroker.client.admin.topics import describe_topics
from kbroker.client.admin.transactions import (
    ActiveProducer,
    abort_in_partition,
    describe_producers,
    describe_transaction,
    force_terminate,
    hanging_transactions,
    list_transactions,
)
from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.errors import UnsupportedByBroker
from kbroker.console.answers import (
    AbortedInPartition,
    HangingTransactions,
    Terminated,
    TransactionDescription,
    Transactions,
)
from kbroker.console.operation import (
    INTEGER,
    TEXT,
    CheckedRequest,
    Operation,
    Parameter,
    page_of,
    paging,
)
from kbroker.console.problems import NotThere, check_partition

_OPEN = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
ID = Parameter(
    "id",
    TEXT,
    "Its transactional id.",
    required=True,
    length_min=1,
    length_max=1000,
    names="transactional-id",
)


def _list(asked: CheckedRequest) -> Transactions:
    values = asked.values
    transactions = [
        row
        for row in list_transactions(asked.cluster)
        if values["search"] in row.transactional_id
        and (not values["state"] or row.state == values["state"])
    ]
    transactions.sort(key=lambda row: (row.state not in _OPEN, row.transactional_id))
    page, after = page_of(transactions, values, lambda row: row.transactional_id)
    return {
        "total": len(transactions),
        "open": sum(row.state in _OPEN for row in transactions),
        "transactions": [
            {
                "coordinator": row.coordinator,
                "transactional_id": row.transactional_id,
                "producer_id": row.producer_id,
                "state": row.state,
            }
            for row in page
        ],
        "sees_all": None
        if transactions or values["search"]
        else sees_all_transactions(asked.cluster),
        "next_cursor": after,
    }


def _describe(asked: CheckedRequest) -> TransactionDescription:
    transaction = describe_transaction(asked.cluster, asked.values["id"])
    started = transaction.started_ms
    return {
        "coordinator": transaction.coordinator,
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "state": transaction.state,
        "timeout_ms": transaction.timeout_ms,
        "started_ms": started,
        "open_seconds": None if started is None else max(time.time() - started / 1000, 0.0),
        "partitions": [
            {"topic": topic, "partition": number} for topic, number in transaction.partitions
        ],
    }


def _terminate(asked: CheckedRequest) -> Terminated:
    """Of an id that is there: to fence it would make another."""
    with suppress(UnsupportedByBroker):
        describe_transaction(asked.cluster, asked.values["id"])
    force_terminate(asked.cluster, asked.values["id"])
    return {"terminated": asked.values["id"]}


def _hanging(asked: CheckedRequest) -> HangingTransactions:
    values = asked.values
    cluster, name = asked.cluster, values["topic"]
    keys = None
    if name:
        (topic,) = describe_topics(cluster, [name])
        keys = [(topic.name, row.partition) for row in topic.partitions]
    latest_ms = int(time.time() * 1000) - values["minutes"] * 60_000
    return {
        "transactions": [
            {
                "topic": key[0],
                "partition": key[1],
                "offset": row.open_from,
                "producer_id": row.producer_id,
                "producer_epoch": row.producer_epoch,
                "last_timestamp": row.last_timestamp,
            }
            for key, row in hanging_transactions(cluster, keys, latest_ms)
            if row.open_from is not None
        ]
    }


def _abort(asked: CheckedRequest) -> AbortedInPartition:
    values = asked.values
    key = values["topic"], values["partition"]
    row = _open_at(asked, key, values["offset"])
    coordinator_epoch = max(row.coordinator_epoch, 0)
    abort_in_partition(asked.cluster, key, row.producer_id, row.producer_epoch, coordinator_epoch)
    return {
        "topic": key[0],
        "partition": key[1],
        "offset": values["offset"],
        "producer_id": row.producer_id,
    }


def _open_at(asked: CheckedRequest, key: TopicPartition, offset: int) -> ActiveProducer:
    """Raises NotThere, BadRequest."""
    (topic,) = describe_topics(asked.cluster, [key[0]])
    check_partition(key[1], {row.partition for row in topic.partitions})
    producers = describe_producers(asked.cluster, [key])[key]
    producer = next((row for row in producers if row.open_from == offset), None)
    if producer is None:
        began = sorted(row.open_from for row in producers if row.open_from is not None)
        at = f"; open ones begin at {', '.join(map(str, began))}" if began else ""
        raise NotThere(f"no transaction of {key[0]}-{key[1]} begins at offset {offset}{at}")
    return producer


_DESCRIBE = "DESCRIBE on the transactional id"

OPERATIONS = (
    Operation(
        "GET",
        "/transactions",
        "Transactional ids with their last transaction, open ones first",
        _list,
        Transactions,
        query=(
            Parameter("search", TEXT, "Only ids that contain this.", "", length_max=1000),
            Parameter(
                "state", TEXT, "Only those in this state, such as Ongoing.", "", length_max=40
            ),
            *paging(),
        ),
        needs=_DESCRIBE,
        verb="transaction list",
    ),
    Operation(
        "GET",
        "/transaction",
        "A transaction with its partitions",
        _describe,
        TransactionDescription,
        query=(ID,),
        needs=_DESCRIBE,
        verb="transaction describe",
        positional=("id",),
    ),
    Operation(
        "POST",
        "/transaction/terminate",
        "Abort the open transaction of an id, and fence its producer",
        _terminate,
        Terminated,
        body=(ID,),
        needs="WRITE on the transactional id",
        verb="transaction abort",
        positional=("id",),
        asks="transactional id {id}: its open transaction is aborted, and its producer ends",
    ),
    Operation(
        "GET",
        "/transactions/hanging",
        "Transactions in partitions that nobody will end: their coordinator knows nothing of them",
        _hanging,
        HangingTransactions,
        query=(
            Parameter(
                "topic",
                TEXT,
                "Only in this topic; all, if left out.",
                "",
                length_max=249,
                names="topic",
            ),
            Parameter(
                "minutes",
                INTEGER,
                "Open for longer than this; transaction.max.timeout.ms has 15.",
                15,
                high=1 << 31,
            ),
        ),
        needs="READ on the topics, DESCRIBE on the transactional ids",
        verb="transaction hanging",
    ),
    Operation(
        "POST",
        "/transactions/hanging/abort",
        "Abort a transaction in a partition, whatever its coordinator says: only if it hangs",
        _abort,
        AbortedInPartition,
        body=(
            Parameter("topic", TEXT, "Its name.", required=True, length_max=249, names="topic"),
            Parameter("partition", INTEGER, "Its number.", required=True, high=(1 << 31) - 1),
            Parameter("offset", INTEGER, "Where the transaction begins.", required=True),
        ),
        needs="ALTER on the cluster",
        verb="transaction abort-hanging",
        positional=("topic", "partition", "offset"),
        asks="the transaction of {topic}-{partition} from offset {offset} on: its records are lost",
    ),
)
