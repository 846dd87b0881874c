"""The targets of ``perf.spark_compare`` that compare cases with each other: a table of ratios.

design: P1 to P12 of the Spark design. A bound is judged when every case it needs was measured. Its
cases take turns, and its figure is the median of what each round of them gave: on a machine that is
faster in one minute than in the next, that of medians says which case had the better minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from perf.bars import median_ratio, meets

THEIRS, OURS = "kafka", "kbroker"
Rows = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Bound:
    """of: the figure, from the rows by case. rule: as of a ``perf.bars.Bar``; about a ratio, or
    about a figure with a unit, which is in the name.
    """

    name: str
    needs: tuple[str, ...]
    of: Callable[[Rows], float]
    rule: str

    @property
    def is_ratio(self) -> bool:
        return self.rule.endswith("x")

    def holds(self, figure: float) -> bool:
        return bool(meets(self.rule, figure, figure))

    def line(self, rows: Rows) -> str:
        """Name, figure, target, verdict."""
        figure = self.of(rows)
        verdict = "met" if self.holds(figure) else "MISSED"
        return f"{self.name:<58}{figure:>8.2f}{self.rule:>10}  {verdict}"


def _of(name: str, one: str, other: str, rule: str) -> Bound:
    """A case beside another one."""
    return Bound(name, (one, other), _ratio(one, other), rule)


def _ratio(one: str, other: str) -> Callable[[Rows], float]:
    return lambda rows: median_ratio(rows[one]["runs"][OURS], rows[other]["runs"][OURS])


def _read_of_slower(size: str) -> Callable[[Rows], float]:
    def figure(rows: Rows) -> float:
        raw, ceiling = (rows[f"{name}-{size}"]["runs"][OURS] for name in ("raw", "ceiling"))
        slower = [min(pair) for pair in zip(raw, ceiling, strict=True)]
        return median_ratio(rows[f"read-{size}"]["runs"][OURS], slower)

    return figure


BOUNDS = (
    *(
        Bound(
            f"P1 read {size}, of the slower of raw and generator",
            (f"read-{size}", f"raw-{size}", f"ceiling-{size}"),
            _read_of_slower(size),
            ">= 0.7x",
        )
        for size in ("100B", "1KB")
    ),
    _of(
        "P3 load, of kbroker's source with write.parquet",
        "load-100B", "source-parquet", ">= 3.0x",
    ),
    Bound(
        "P4 CPU of a load, of the connector with write.parquet",
        ("load-100B",),
        lambda rows: rows["load-100B"][f"{OURS}_cpu"] / rows["load-100B"][f"{THEIRS}_cpu"],
        "<= 0.15x",
    ),
    _of("P5 load, of raw fetching and decoding", "load-100B", "raw-100B", ">= 0.4x"),
    Bound(
        "P6 time of a skewed load, of an even one",
        ("load-skew-100B", "load-100B"),
        _ratio("load-100B", "load-skew-100B"),
        "<= 1.3x",
    ),
    _of("P7 trigger, of that of an empty source", "trigger-p50", "trigger-empty", "<= 1.3x"),
    _of("P8 write, of the raw producer", "write-cached", "write-raw", ">= 0.6x"),
    _of(
        "P8 write, of a writer that drops everything",
        "write-cached", "write-discard", ">= 0.7x",
    ),
    Bound(
        "P9 Python CPU of the source, µs per row of 100 B",
        ("read-100B",),
        lambda rows: rows["read-100B"][f"{OURS}_python"],
        "<= 0.3",
    ),
    _of("P10 recount, of raw fetching and decoding", "recount-100B", "raw-100B", ">= 0.9x"),
    _of(
        "P11 produce p99 beside a load, of produce alone",
        "produce-loading", "produce-alone", "<= 1.3x",
    ),
    Bound(
        "P12 status after 10,000 commits, s",
        ("status-10k",),
        lambda rows: median(rows["status-10k"]["runs"][OURS]),
        "<= 1.0",
    ),
)  # fmt: skip


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
