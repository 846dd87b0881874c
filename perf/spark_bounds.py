"""The targets of ``perf.spark_compare`` that compare cases with each other: a table of ratios.

design: P1 to P12 of the Spark design. A bound is judged when every case it needs was measured. Its
cases take turns, and its figure is the median of what each round of them gave: on a machine that is
faster in one minute than in the next, that of medians says which case had the better minutes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perf.spark_load import OURS, THEIRS

Rows = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Bound:
    """of: the figure, from the rows by case. at_least, at_most: exactly one is given. is_ratio:
    False for a figure with a unit, which is in the name.
    """

    name: str
    needs: tuple[str, ...]
    of: Callable[[Rows], float]
    at_least: float | None = None
    at_most: float | None = None
    is_ratio: bool = True

    def holds(self, figure: float) -> bool:
        if self.at_least is not None:
            return figure >= self.at_least
        assert self.at_most is not None
        return figure <= self.at_most

    def bar(self) -> str:
        times = "×" if self.is_ratio else ""
        return f"≥ {self.at_least}{times}" if self.at_most is None else f"≤ {self.at_most}{times}"

    def line(self, rows: Rows) -> str:
        """Name, figure, target, verdict."""
        figure = self.of(rows)
        verdict = "pass" if self.holds(figure) else "MISSED"
        return f"{self.name:<58}{figure:>8.2f}{self.bar():>10}  {verdict}"


def _ratio(one: str, other: str) -> Callable[[Rows], float]:
    return lambda rows: median_ratio(rows[one]["runs"][OURS], rows[other]["runs"][OURS])


def _read_of_slower(size: str) -> Callable[[Rows], float]:
    def figure(rows: Rows) -> float:
        raw, ceiling = (rows[f"{name}-{size}"]["runs"][OURS] for name in ("raw", "ceiling"))
        slower = [min(pair) for pair in zip(raw, ceiling, strict=True)]
        return median_ratio(rows[f"read-{size}"]["runs"][OURS], slower)

    return figure


def median_ratio(these: Sequence[float], others: Sequence[float]) -> float:
    """The median of the ratios of each round."""
    return statistics.median(one / other for one, other in zip(these, others, strict=True))


BOUNDS = (
    *(
        Bound(
            f"P1 read {size}, of the slower of raw and generator",
            (f"read-{size}", f"raw-{size}", f"ceiling-{size}"),
            _read_of_slower(size),
            at_least=0.7,
        )
        for size in ("100B", "1KB")
    ),
    Bound(
        "P3 load, of kbroker's source with write.parquet",
        ("load-100B", "source-parquet"),
        _ratio("load-100B", "source-parquet"),
        at_least=3.0,
    ),
    Bound(
        "P4 CPU of a load, of the connector with write.parquet",
        ("load-100B",),
        lambda rows: rows["load-100B"][f"{OURS}_cpu"] / rows["load-100B"][f"{THEIRS}_cpu"],
        at_most=0.15,
    ),
    Bound(
        "P5 load, of raw fetching and decoding",
        ("load-100B", "raw-100B"),
        _ratio("load-100B", "raw-100B"),
        at_least=0.4,
    ),
    Bound(
        "P6 time of a skewed load, of an even one",
        ("load-skew-100B", "load-100B"),
        _ratio("load-100B", "load-skew-100B"),
        at_most=1.3,
    ),
    Bound(
        "P7 trigger, of that of an empty source",
        ("trigger-p50", "trigger-empty"),
        _ratio("trigger-p50", "trigger-empty"),
        at_most=1.3,
    ),
    Bound(
        "P8 write, of the raw producer",
        ("write-cached", "write-raw"),
        _ratio("write-cached", "write-raw"),
        at_least=0.6,
    ),
    Bound(
        "P8 write, of a writer that drops everything",
        ("write-cached", "write-discard"),
        _ratio("write-cached", "write-discard"),
        at_least=0.7,
    ),
    Bound(
        "P9 Python CPU of the source, µs per row of 100 B",
        ("read-100B",),
        lambda rows: rows["read-100B"][f"{OURS}_python"],
        at_most=0.3,
        is_ratio=False,
    ),
    Bound(
        "P10 recount, of raw fetching and decoding",
        ("recount-100B", "raw-100B"),
        _ratio("recount-100B", "raw-100B"),
        at_least=0.9,
    ),
    Bound(
        "P11 produce p99 beside a load, of produce alone",
        ("produce-loading", "produce-alone"),
        _ratio("produce-loading", "produce-alone"),
        at_most=1.3,
    ),
    Bound(
        "P12 status after 10,000 commits, s",
        ("status-10k",),
        lambda rows: statistics.median(rows["status-10k"]["runs"][OURS]),
        at_most=1.0,
        is_ratio=False,
    ),
)


def in_turns(names: Sequence[str]) -> list[list[str]]:
    """Group the cases that bounds compare; groups and their cases in the given order."""
    groups = [{name} for name in names]
    for bound in BOUNDS:
        joined = [group for group in groups if group & set(bound.needs)]
        groups = [group for group in groups if group not in joined] + [set().union(*joined)]
    ordered = [sorted(group, key=names.index) for group in groups if group]
    return sorted(ordered, key=lambda group: names.index(group[0]))


def bound_lines(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each bound whose cases are among the rows."""
    by_case = {row["case"]: row for row in rows}
    return [bound.line(by_case) for bound in BOUNDS if set(bound.needs) <= by_case.keys()]
