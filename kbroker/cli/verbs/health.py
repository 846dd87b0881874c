"""``kbroker health``: whether a broker, or its whole cluster, is well, as an exit code."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kbroker.cli.arguments import (
    Action,
    CommandFailed,
    Usage,
    add_format,
    printed,
    printed_document,
)
from kbroker.cli.connecting import add_connection, connected, timeout_seconds
from kbroker.hosts import address_text

if TYPE_CHECKING:
    from kbroker.client.connections.cluster import Cluster
    from kbroker.health.broker import BrokerFacts

# BOUND: partitions that a line names.
_NAMED_MAX = 5
_PAUSE_S = 0.2
_COLUMNS = {"check": "CHECK", "healthy": "HEALTHY", "detail": "DETAIL"}
_EPILOG = """\
Without --cluster it speaks of one broker: the first bootstrap address that answers. Of a broker on
this machine it also says whether all processes serve, if this user may look at them. What another
broker of the cluster does is no matter of this one: ask with --cluster.

exit codes: 0 healthy, 1 not healthy or not reachable, 2 wrong usage"""

Row = dict[str, str | bool | None]


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait",
        nargs="?",
        type=timeout_seconds,
        const=0.0,
        metavar="SECONDS",
        help="wait until it is healthy, for so long at most, or for --timeout",
    )
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="check the cluster: its brokers, its controller, leaders and replicas of partitions",
    )
    parser.add_argument(
        "--brokers",
        type=_count,
        metavar="N",
        help="how many brokers the cluster must have; means --cluster",
    )
    add_format(parser)
    add_connection(parser)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of brokers")
    return int(text)


def _health(options: argparse.Namespace) -> None:
    options.timeout = options.wait or options.timeout
    deadline = time.monotonic() + options.timeout
    is_of_cluster = options.cluster or options.brokers is not None
    with connected(options) as cluster:
        while True:
            if is_of_cluster:
                rows = _cluster_checks(cluster, options.brokers or 1)
            else:
                rows = _broker_checks(cluster, deadline)
            healthy = all(row["healthy"] for row in rows)
            if healthy or options.wait is None or time.monotonic() + _PAUSE_S > deadline:
                break
            time.sleep(_PAUSE_S)
    if options.output == "table":
        shown = [{**row, "healthy": "yes" if row["healthy"] else "no"} for row in rows]
        printed(options.output, _COLUMNS, shown)
    else:
        printed_document(options.output, rows)
    if not healthy:
        failing = [str(row["check"]) for row in rows if not row["healthy"]]
        raise CommandFailed(f"not healthy: {', '.join(failing)}")


# -- one broker


def _broker_checks(cluster: Cluster, deadline: float) -> list[Row]:
    from kbroker.client.connections.addresses import parse_addresses

    addresses = parse_addresses(cluster.bootstrap)
    for address in addresses:
        facts = _local_facts(address)
        rows = [*_local_rows(facts)] if facts is not None else []
        # Who is known to be ill need not be waited for.
        at_most = min(deadline, time.monotonic() + 2.0) if _is_ill(rows) else deadline
        answer = _answer_rows(cluster, address, at_most, facts is not None)
        if answer[0]["healthy"] or address == addresses[-1]:
            return answer + rows
    raise AssertionError("no bootstrap address")


def _is_ill(rows: list[Row]) -> bool:
    return not all(row["healthy"] for row in rows)


def _local_facts(address: tuple[str, int]) -> BrokerFacts | None:
    """None if no broker that this user may look at listens there."""
    from kbroker.cli.local.broker_facts import broker_facts
    from kbroker.cli.local.choice import chosen_run, parsed_address

    with suppress(CommandFailed, Usage, argparse.ArgumentTypeError, OSError, ValueError):
        host, port = address
        meant = parsed_address(address_text(host, port))
        run = chosen_run(argparse.Namespace(pid=None, address=meant))
        run.check_version()
        return broker_facts(run)
    return None


def _local_rows(facts: BrokerFacts) -> Iterator[Row]:
    from kbroker.health.broker import findings, is_serving
    from kbroker.health.finding import HEALTHY, failing

    bad = failing(findings(facts), HEALTHY)
    directories = {f"log directory {one.path}" for one in facts.directories}
    ill = [one for one in bad if one.subject not in directories]
    serving = sum(map(is_serving, facts.processes))
    yield _row(
        "processes serve",
        not ill,
        "; ".join(f"{one.subject}: {one.what}" for one in ill)
        or f"{serving} of {len(facts.processes)}",
    )
    for directory in facts.directories:
        subject = f"log directory {directory.path}"
        said = [one.what for one in bad if one.subject == subject]
        yield _row(subject, not said, "; ".join(said) or directory.room_text or None)


def _answer_rows(
    cluster: Cluster, address: tuple[str, int], deadline: float, is_local: bool
) -> list[Row]:
    """Whether the broker at the address answers, and what it says of its disks."""
    from kbroker.client.admin.cluster import log_dirs_at
    from kbroker.client.errors import ClientError
    from kbroker.health.broker import DirectoryFact

    began = time.monotonic()
    name = f"{address[0]}:{address[1]}"
    try:
        rows = log_dirs_at(cluster, address, deadline)
    except ClientError as error:
        return [_row("broker answers", False, f"{name}: {error}")]
    answer = _row("broker answers", True, f"{name} in {(time.monotonic() - began) * 1000:.0f} ms")
    if is_local or rows is None:
        return [answer]
    checks = [answer]
    for path, has_failed, total, usable in rows:
        one = DirectoryFact(path, has_failed, total, usable)
        is_bad = has_failed or one.rejects_writes
        detail = "offline" if has_failed else one.room_text or None
        checks.append(_row(f"log directory {path}", not is_bad, detail))
    return checks


# -- the cluster


def _cluster_checks(cluster: Cluster, brokers: int) -> list[Row]:
    from kbroker.cli.cluster_text import missing_lines, unreachable_lines
    from kbroker.client.admin.cluster import summarize_cluster
    from kbroker.diagnosis.examination import missing_facts, unreachable

    state = summarize_cluster(cluster)
    offline, behind = state.offline, state.under_replicated
    missing = missing_facts(state)
    away = unreachable(cluster, state)
    count = len(state.brokers)
    said = [
        f"{count - len(away)} of {max(brokers, count + len(missing))}",
        *missing_lines(missing),
        *unreachable_lines(away),
    ]
    return [
        _row("brokers", count >= brokers and not missing and not away, "; ".join(said)),
        _row(
            "controller",
            state.controller is not None,
            "none" if state.controller is None else f"broker {state.controller}",
        ),
        _row("partitions have a leader", not offline, _named(offline)),
        _row("replicas are in sync", not behind, _named(behind)),
    ]


def _row(check: str, healthy: bool, detail: str | None) -> Row:
    return {"check": check, "healthy": healthy, "detail": detail}


def _named(partitions: list[Any]) -> str | None:
    if not partitions:
        return None
    more = len(partitions) - _NAMED_MAX
    names = [f"{topic}-{number}" for topic, number in partitions[:_NAMED_MAX]]
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


ACTION = Action("check a broker, or its cluster", _describe, _health, _EPILOG)
