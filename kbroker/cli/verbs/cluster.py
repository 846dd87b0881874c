"""``kbroker cluster``: move replicas by intent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kbroker.cli.arguments import table_text
from kbroker.cli.operation_verbs import VerbView, actions_of
from kbroker.console.api.rebalancing import OPERATIONS
from kbroker.wording import counted, shown, size_text

# BOUND: moves in the table for people; -o json has all.
_LISTED_MAX = 20
_BROKERS = {
    "broker": "BROKER",
    "rack": "RACK",
    "replicas": "REPLICAS",
    "leads": "LEADS",
    "sends": "SENDS",
    "receives": "RECEIVES",
}
_MOVES = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "from": "FROM",
    "to": "TO",
    "bytes": "BYTES",
    "in_sync": "IN SYNC",
    "min_in_sync": "MIN IN SYNC",
}
_EPILOG = """\
Without --execute nothing is moved: the plan is only shown. Replicas keep to different racks, and as
few bytes as possible are copied. The old replicas stay until the new ones are in sync; IN SYNC is
the fewest that a partition has meanwhile. kbroker reassignment wait follows it to its end, and then
removes the throttle. What has not arrived is undone by cancelling it.

examples:
  kbroker cluster drain 3 --throttle 50MB             the plan, and how long it takes
  kbroker cluster drain 3 --throttle 50MB --execute
  kbroker cluster drain --rack us-1a --execute
  kbroker cluster balance
  kbroker cluster spread orders invoices --execute
  kbroker cluster replication 3 'orders-*' --execute
  kbroker reassignment cancel --all"""


def plan_text(document: Mapping[str, Any]) -> str:
    """A plan for people."""
    if not document["partitions"]:
        return f"{document['intent']}: nothing has to move"
    lines = [_summary(document), ""]
    brokers, running = document["brokers"], document["running"]
    lines.append(table_text(_BROKERS, [_broker_row(row, running) for row in brokers]))
    moves = document["moves"]
    lines += ["", table_text(_MOVES, list(map(_move_row, moves[:_LISTED_MAX])))]
    if len(moves) > _LISTED_MAX:
        lines.append(f"and {len(moves) - _LISTED_MAX} more; -o json has all")
    if document["below_min_in_sync"]:
        few = counted(document["below_min_in_sync"], "partition")
        lines += ["", f"{few} will have fewer replicas in sync than min.insync.replicas meanwhile"]
    if not document["dry_run"]:
        lines += ["", "begun; kbroker reassignment wait follows it to its end"]
    return "\n".join(lines)


def _summary(document: Mapping[str, Any]) -> str:
    """What, how much, how long."""
    size = "an unknown number of bytes"
    if document["bytes"] is not None:
        size = size_text(document["bytes"])
    text = f"{document['intent']}: {counted(document['partitions'], 'partition')}, {size} to copy"
    if document["throttle"] is None:
        return f"{shown(text)}, without a throttle"
    rate = f"{size_text(document['throttle'])}/s"
    if document["seconds"] is None:
        return f"{shown(text)} at {rate}"
    return f"{shown(text)}, at least {_duration(document['seconds'])} at {rate}"


def _duration(seconds: float) -> str:
    whole = max(round(seconds), 1)
    if whole < 120:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def _broker_row(row: Mapping[str, Any], running: Collection[int]) -> dict[str, Any]:
    broker = row["broker"]
    return {
        **row,
        "broker": broker if broker in running else f"{broker} (missing)",
        "replicas": _change(row["replicas"], row["replicas_then"]),
        "leads": _change(row["leads"], row["leads_then"]),
        "sends": size_text(row["sends"]) if row["sends"] else None,
        "receives": size_text(row["receives"]) if row["receives"] else None,
    }


def _change(now: int, then: int) -> str:
    return str(now) if now == then else f"{now} -> {then}"


def _move_row(row: Mapping[str, Any]) -> dict[str, Any]:
    size = "order only" if sorted(row["from"]) == sorted(row["to"]) else None
    if size is None and row["bytes"] is not None:
        size = size_text(row["bytes"])
    return {**row, "bytes": size}


ACTIONS = actions_of(
    OPERATIONS,
    dict.fromkeys(("drain", "balance", "spread", "replication"), VerbView(plan_text, _EPILOG)),
)
