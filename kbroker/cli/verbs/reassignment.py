"""``kbroker reassignment``: partitions that move between brokers."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any

from kbroker.cli.arguments import Action, table_text
from kbroker.cli.connecting import add_connection, connected
from kbroker.cli.operation_verbs import VerbView, actions_of
from kbroker.console.api.reassignments import FINISH, LIST, OPERATIONS
from kbroker.console.operation import LONG_MAX, asked_by_command
from kbroker.wording import counted, size_text

_COLUMNS = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "replicas": "REPLICAS",
    "removing": "GOING",
    "coming": "COMING",
}
# How often it is asked how far moves are.
_INTERVAL_S = 2.0
_EPILOG = """\
examples:
  kbroker reassignment list                       how far moves are
  kbroker reassignment begin orders 0 2 3         partition 0 to brokers 2 (leads) and 3: the plan
  kbroker reassignment begin orders 0 2 3 --execute
  kbroker reassignment wait                       until all have arrived, then remove throttles
  kbroker reassignment cancel orders 0
  kbroker reassignment cancel --all"""


def _listed(document: Mapping[str, Any]) -> str:
    rows = [
        {
            **row,
            "removing": row["removing"] or None,
            "coming": [f"{node}: {_arrived(row, node)}" for node in row["adding"]] or None,
        }
        for row in document["reassignments"]
    ]
    return table_text(_COLUMNS, rows) if rows else "nothing moves"


def _arrived(row: Mapping[str, Any], node: int) -> str:
    size = row["bytes"][str(node)]
    return f"{'?' if size is None else size_text(size)} of {size_text(_whole(row))}"


def _whole(row: Mapping[str, Any]) -> int:
    return max((size for size in row["bytes"].values() if size is not None), default=0)


def _begun(row: Mapping[str, Any]) -> str:
    word = "could move" if row["dry_run"] else "moves"
    now, then = (",".join(map(str, row[name])) for name in ("from", "to"))
    return f"{row['topic']}-{row['partition']} {word} from brokers {now} to {then}"


def _cancelled(document: Mapping[str, Any]) -> str:
    rows = document["cancelled"]
    return "\n".join(f"cancelled {row['topic']}-{row['partition']}" for row in rows) or (
        "nothing moves"
    )


def _finished(document: Mapping[str, Any]) -> str:
    lines = []
    if document["topics"] or document["brokers"]:
        lines.append(
            f"removed the throttles of {counted(len(document['topics']), 'topic')} and "
            f"{counted(len(document['brokers']), 'broker')}"
        )
    if document["elected"]:
        lines.append(f"{counted(document['elected'], 'partition')} got their preferred leaders")
    if document["moving"]:
        lines.append(f"{counted(document['moving'], 'partition')} still move")
    return "\n".join(lines) or "there were no throttles"


# -- wait


def _describe_wait(parser: argparse.ArgumentParser) -> None:
    add_connection(parser)


def _wait(given: argparse.Namespace) -> None:
    """Says how far it is when that has changed."""
    paged = {"search": "", "limit": LONG_MAX, "skip": 0, "cursor": ""}
    said = ""
    with connected(given) as cluster:
        while document := LIST.serve(asked_by_command(cluster, paged)):
            if not document["total"]:
                break
            line = _progress(document)
            if line != said:
                print(line, file=sys.stderr, flush=True)
            said = line
            time.sleep(_INTERVAL_S)
        document = FINISH.serve(asked_by_command(cluster, {"elect": True}))
    print("nothing moves" if not said else "all has arrived")
    if document["topics"] or document["brokers"] or document["elected"]:
        print(_finished(document))


def _progress(document: Mapping[str, Any]) -> str:
    rows = document["reassignments"]
    whole = sum(_whole(row) * len(row["adding"]) for row in rows)
    arrived = sum(row["bytes"][str(node)] or 0 for row in rows for node in row["adding"])
    return (
        f"{counted(document['total'], 'partition')} move: {size_text(arrived)} of "
        f"{size_text(whole)} have arrived"
    )


ACTIONS = actions_of(
    OPERATIONS,
    {
        "list": VerbView(_listed),
        "begin": VerbView(_begun, _EPILOG),
        "cancel": VerbView(_cancelled, _EPILOG),
        "finish": VerbView(_finished),
    },
)
ACTIONS["wait"] = Action(
    "wait until all has arrived, then remove throttles and let preferred replicas lead",
    _describe_wait,
    _wait,
)
