"""``kbroker health``: whether all partitions can be read and written, as an exit code."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from kbroker.cli.arguments import Action, Failed, add_format, printed, printed_document
from kbroker.cli.connecting import add_connection, connected, seconds

if TYPE_CHECKING:
    from kbroker.client.connections.cluster import Cluster

# BOUND: partitions that a line names.
_NAMED_MAX = 5
_PAUSE_S = 0.2
_COLUMNS = {"check": "CHECK", "healthy": "HEALTHY", "detail": "DETAIL"}
_EPILOG = "exit codes: 0 healthy, 1 not healthy or not reachable, 2 wrong usage"


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait",
        nargs="?",
        type=seconds,
        const=0.0,
        metavar="SECONDS",
        help="wait until it is healthy, for so long at most, or for --timeout",
    )
    parser.add_argument(
        "--brokers", type=_count, default=1, metavar="N", help="how many brokers it must have (1)"
    )
    add_format(parser)
    add_connection(parser)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of brokers")
    return int(text)


def _health(found: argparse.Namespace) -> None:
    found.timeout = found.wait or found.timeout
    deadline = time.monotonic() + found.timeout
    with connected(found) as cluster:
        while True:
            rows = _checks(cluster, found.brokers)
            healthy = all(row["healthy"] for row in rows)
            if healthy or found.wait is None or time.monotonic() + _PAUSE_S > deadline:
                break
            time.sleep(_PAUSE_S)
    if found.output == "table":
        shown = [{**row, "healthy": "yes" if row["healthy"] else "no"} for row in rows]
        printed(found.output, _COLUMNS, shown)
    else:
        printed_document(found.output, rows)
    if not healthy:
        failing = [str(row["check"]) for row in rows if not row["healthy"]]
        raise Failed(f"not healthy: {', '.join(failing)}")


def _checks(cluster: Cluster, brokers: int) -> list[dict[str, str | bool | None]]:
    from kbroker.client.admin.cluster import summarize_cluster

    state = summarize_cluster(cluster)
    offline, behind = state.offline, state.under_replicated
    count = len(state.brokers)
    return [
        _row("brokers", count >= brokers, f"{count} of {brokers}"),
        _row(
            "controller",
            state.controller is not None,
            "none" if state.controller is None else f"broker {state.controller}",
        ),
        _row("partitions have a leader", not offline, _named(offline)),
        _row("replicas are in sync", not behind, _named(behind)),
    ]


def _row(check: str, healthy: bool, detail: str | None) -> dict[str, str | bool | None]:
    return {"check": check, "healthy": healthy, "detail": detail}


def _named(partitions: list[tuple[str, int]]) -> str | None:
    if not partitions:
        return None
    more = len(partitions) - _NAMED_MAX
    names = [f"{topic}-{number}" for topic, number in partitions[:_NAMED_MAX]]
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


ACTION = Action("check brokers and partitions", _describe, _health, _EPILOG)
