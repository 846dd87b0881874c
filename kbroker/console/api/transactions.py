"""Transactions: which are open, since when and where; and an end for one that hangs."""

from __future__ import annotations

import time

from kbroker.client.admin.rights import sees_all_transactions
from kbroker.client.admin.transactions import (
    describe_transaction,
    force_terminate,
    list_transactions,
)
from kbroker.console.answers import Terminated, TransactionDescription, Transactions
from kbroker.console.operation import TEXT, Asked, Operation, Parameter, page_of, paging

_OPEN = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
ID = Parameter("id", TEXT, "Its transactional id.", required=True, length_min=1, length_max=1000)


def _list(asked: Asked) -> Transactions:
    values = asked.values
    found = [
        row
        for row in list_transactions(asked.cluster)
        if values["search"] in row.transactional_id
        and (not values["state"] or row.state == values["state"])
    ]
    found.sort(key=lambda row: (row.state not in _OPEN, row.transactional_id))
    page, after = page_of(found, values, lambda row: row.transactional_id)
    return {
        "total": len(found),
        "open": sum(row.state in _OPEN for row in found),
        "transactions": [
            {
                "coordinator": row.coordinator,
                "transactional_id": row.transactional_id,
                "producer_id": row.producer_id,
                "state": row.state,
            }
            for row in page
        ],
        "sees_all": None if found or values["search"] else sees_all_transactions(asked.cluster),
        "next_cursor": after,
    }


def _describe(asked: Asked) -> TransactionDescription:
    found = describe_transaction(asked.cluster, asked.values["id"])
    started = found.started_ms
    return {
        "coordinator": found.coordinator,
        "transactional_id": found.transactional_id,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "state": found.state,
        "timeout_ms": found.timeout_ms,
        "started_ms": started,
        "open_seconds": None if started is None else max(time.time() - started / 1000, 0.0),
        "partitions": [{"topic": topic, "partition": number} for topic, number in found.partitions],
    }


def _terminate(asked: Asked) -> Terminated:
    force_terminate(asked.cluster, asked.values["id"])
    return {"terminated": asked.values["id"]}


OPERATIONS = (
    Operation(
        "GET",
        "/transactions",
        "Transactional ids with their last transaction, open ones first",
        _list,
        Transactions,
        (
            Parameter("search", TEXT, "Only ids that contain this.", "", length_max=1000),
            Parameter(
                "state", TEXT, "Only those in this state, such as Ongoing.", "", length_max=40
            ),
            *paging(),
        ),
    ),
    Operation(
        "GET",
        "/transaction",
        "A transaction with its partitions",
        _describe,
        TransactionDescription,
        (ID,),
        needs="DESCRIBE on the transactional id",
    ),
    Operation(
        "POST",
        "/transaction/terminate",
        "Abort the open transaction of an id, and fence its producer",
        _terminate,
        Terminated,
        body=(ID,),
        needs="WRITE on the transactional id",
    ),
)
