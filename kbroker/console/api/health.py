"""What is wrong with the cluster, and what mends it; and how busy this broker was."""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

from kbroker.client.admin.groups import list_groups
from kbroker.client.admin.rights import rights_on_cluster, sees_all_topics
from kbroker.client.errors import ClientError
from kbroker.console.answers import FindingRow, Findings, History
from kbroker.console.local_broker import Series
from kbroker.console.operation import INTEGER, TEXT, TEXTS, CheckedRequest, Operation, Parameter
from kbroker.diagnosis.examination import examine
from kbroker.diagnosis.group_progress import GroupLook, look_at
from kbroker.metrics.measured import (
    DAY,
    HOUR,
    OF_BROKER,
    OF_CLIENTS,
    OF_DISKS,
    OF_GROUPS,
    OF_TOPICS,
)

# BOUND: topics, groups or clients of a history.
NAMES_MAX = 1_000
WHOLE, TOPICS, GROUPS, DISKS, CLIENTS = "broker", "topics", "groups", "log-dirs", "clients"
MEASURED = {
    WHOLE: OF_BROKER,
    TOPICS: OF_TOPICS,
    GROUPS: OF_GROUPS,
    DISKS: OF_DISKS,
    CLIENTS: OF_CLIENTS,
}


def _findings(asked: CheckedRequest) -> Findings:
    """How groups get on is told from the look of an earlier call on."""
    groups = None
    if (watch := asked.groups) is not None:
        groups = partial(watch.facts, asked.user, partial(_look, asked))
    diagnosis = examine(asked.cluster, groups=groups)
    return {
        "findings": [cast(FindingRow, each.document) for each in diagnosis.findings],
        "unknown": list(diagnosis.facts.unknown),
        "at_ms": int(time.time() * 1000),
    }


def _look(asked: CheckedRequest) -> GroupLook:
    """At the groups of which this broker does not know by itself that they have read all."""
    listed = list_groups(asked.cluster)
    known: Mapping[str, int] = {}
    if listed and sees_all_topics(asked.cluster):
        known = asked.broker.exact_lags()
    return look_at(asked.cluster, [row for row in listed if known.get(row.group) != 0])


def _history(asked: CheckedRequest) -> History:
    """Of this broker, since the exporter has run; topics and groups that the user may see, and
    clients if he may describe the cluster.
    """
    wanted = asked.values["of"]
    measured = {what for of in wanted for what in MEASURED[of]}
    step_s, times, series, left_out = asked.broker.history(asked.values["span"], measured)
    kept: dict[tuple[str, str], list[float | None]] = {}
    for of in dict.fromkeys(wanted):
        rows = {key: points for key, points in series.items() if key[0] in MEASURED[of]}
        visible = _visible(asked, of, {name for _, name in rows})
        kept |= _largest(rows, visible, asked.values["most"])
    return {
        "broker": asked.broker.broker_id,
        "step_s": step_s,
        "times": times,
        "series": [
            {"what": what, "of": name, "points": points}
            for (what, name), points in sorted(kept.items())
        ],
        "left_out": left_out,
    }


def _visible(asked: CheckedRequest, of: str, names: set[str]) -> set[str]:
    if of == TOPICS:
        return names & asked.cluster.topics(names).keys()
    if of == GROUPS:
        return names & _visible_groups(asked)
    if of == CLIENTS and not _may_describe_cluster(asked):
        return set()
    return names


def _largest(rows: Series, names: set[str], most: int) -> Series:
    """Of so many of the names: those with the largest figures now."""
    now: dict[str, float] = {}
    for (_, name), points in rows.items():
        if name in names:
            now[name] = now.get(name, 0.0) + _last(points)
    kept = set(heapq.nlargest(most, now, key=now.__getitem__))
    return {key: points for key, points in rows.items() if key[1] in kept}


def _visible_groups(asked: CheckedRequest) -> set[str]:
    try:
        return {row.group for row in list_groups(asked.cluster)}
    except ClientError:
        return set()


def _last(points: Sequence[float | None]) -> float:
    return next((one for one in reversed(points) if one is not None), 0.0)


def _may_describe_cluster(asked: CheckedRequest) -> bool:
    try:
        return "DESCRIBE" in (rights_on_cluster(asked.cluster) or ())
    except ClientError:
        return False


OPERATIONS = (
    Operation(
        "GET", "/findings", "What is wrong with the cluster, and the commands that mend it",
        _findings,
        Findings,
    ),
    Operation(
        "GET",
        "/history",
        "Rates and levels of this broker over the last hour or day",
        _history,
        History,
        (
            Parameter("span", TEXT, "The last hour or day.", HOUR, one_of=(HOUR, DAY)),
            Parameter("of", TEXTS, "What is measured.", (WHOLE,), one_of=tuple(MEASURED)),
            Parameter(
                "most",
                INTEGER,
                "Of so many topics, groups and clients each: those with the largest figures now.",
                NAMES_MAX,
                low=1,
                high=NAMES_MAX,
            ),
        ),
    ),
)  # fmt: skip
