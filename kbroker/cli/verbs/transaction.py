"""``kbroker transaction``: list, describe and end transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.cli.arguments import table_text
from kbroker.cli.operation_verbs import VerbView, actions_of
from kbroker.cli.times import time_text
from kbroker.console.api.transactions import OPERATIONS
from kbroker.wording import shown

_ID = {
    "transactional_id": "TRANSACTIONAL ID",
    "producer_id": "PRODUCER",
    "state": "STATE",
    "coordinator": "COORDINATOR",
}
_HANGING = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "offset": "OFFSET",
    "producer_id": "PRODUCER",
    "producer_epoch": "EPOCH",
    "last": "LAST RECORD",
}
_EPILOG = """\
A transaction hangs if records of it are in a partition, but its coordinator does not know of it and
will never end it: consumers that read committed records do not get beyond it.

examples:
  kbroker transaction list --state Ongoing
  kbroker transaction abort billing-3                 as its producer does not come back
  kbroker transaction hanging --topic orders
  kbroker transaction abort-hanging orders 0 1234"""


def _listed(document: Mapping[str, Any]) -> str:
    rows = document["transactions"]
    return table_text(_ID, rows) if rows else "no transactions"


def _described(row: Mapping[str, Any]) -> str:
    parts = [
        f"transactional id {row['transactional_id']}: {row['state']}",
        f"producer {row['producer_id']} in epoch {row['producer_epoch']}",
        f"timeout {row['timeout_ms'] / 1000:g} s",
        f"coordinator {row['coordinator']}",
    ]
    if row["open_seconds"] is not None:
        parts.insert(1, f"open for {row['open_seconds']:.0f} s")
    line = ", ".join(map(shown, parts))
    columns = {"topic": "TOPIC", "partition": "PARTITION"}
    return f"{line}\n{table_text(columns, row['partitions'])}" if row["partitions"] else line


def _hanging(document: Mapping[str, Any]) -> str:
    rows = [
        {**row, "last": time_text(max(row["last_timestamp"], 0))}
        for row in document["transactions"]
    ]
    return table_text(_HANGING, rows) if rows else "no transaction hangs"


ACTIONS = actions_of(
    OPERATIONS,
    {
        "list": VerbView(_listed),
        "describe": VerbView(_described),
        "abort": VerbView(
            lambda row: f"aborted the open transaction of {shown(row['terminated'])}", _EPILOG
        ),
        "hanging": VerbView(_hanging, _EPILOG),
        "abort-hanging": VerbView(
            lambda row: (
                f"aborted the transaction of {shown(row['topic'])}-{row['partition']} "
                f"from offset {row['offset']} on"
            ),
            _EPILOG,
        ),
    },
)
