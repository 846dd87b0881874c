"""What a measurement must reach: cells with their bars, medians of runs, and verdicts.

A bar is read as people write it: ``>= 1.5x, aim 2x``. The runs of a cell are
``{contestant: {"runs": [figures], "failures": [text]}}``.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

Figures = dict[str, float]
Results = Mapping[str, Mapping[str, Any]]
OURS = "kbroker"
TEXTS = {
    "requests_per_s": "requests/s",
    "records_per_s": "records/s",
    "transactions_per_s": "transactions/s",
    "connections_per_s": "connections/s",
    "mb_per_s": "MB/s",
    "cpu_us_per_request": "CPU µs/request",
    "cpu_us_per_record": "CPU µs/record",
    "cpu_ms_per_transaction": "CPU ms/transaction",
    "cpu_ms_per_connection": "CPU ms/connection",
    "client_cpu_ms": "client's CPU ms/connection",
    "cpu_s_per_gb": "CPU s/GB",
    "cpu_percent": "CPU % of a core",
    "cpu_s": "CPU s",
    "p50_us": "p50 µs",
    "p99_us": "p99 µs",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "p999_ms": "p99.9 ms",
    "start_s": "s",
    "seconds": "s",
    "first_s": "s to the first response",
    "all_s": "s to all",
    "pss_mib": "MiB",
    "bytes_per_offset": "bytes/offset",
    "loaded_bytes_per_offset": "bytes/offset loaded",
    "left_share": "share left",
}
_PART = re.compile(r"(>=|<=) ([\d.]+)(x?)")


class CellFailed(RuntimeError):
    """A contestant failed a cell; the figures of that run are invalid."""


def meets(rule: str, value: float | None, ratio: float | None) -> bool | None:
    """Whether a rule is met; None if it says nothing, or nothing is there to compare with.

    rule: parts between commas; ``>= 1.5x`` is about the ratio, ``<= 0.6`` about the value, and
    ``aim 2x`` is not judged.
    """
    verdicts = []
    for sign, bound, times in _PART.findall(rule):
        judged = ratio if times else value
        if judged is None:
            return None
        verdicts.append(judged >= float(bound) if sign == ">=" else judged <= float(bound))
    return all(verdicts) if verdicts else None


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure with what it must reach. Without a rule it is only shown.

    ours: the contestant that is judged. other: the one that it is compared with, or else the best
    of all others. is_paired: the ratio is the median of those of the rounds, and not that of the
    medians: the machine may be faster in some rounds.
    """

    figure: str
    rule: str = ""
    text: str = ""
    ours: str = OURS
    other: str = ""
    is_paired: bool = False
    middle: Callable[[Sequence[float]], float] = median

    @property
    def label(self) -> str:
        return self.text or TEXTS.get(self.figure, self.figure)

    def best(self, values: Sequence[float]) -> float:
        return max(values) if ">=" in self.rule else min(values)


def bars(*rows: str) -> tuple[Bar, ...]:
    """Each row is the name of a figure, and the rule, if there is one."""
    return tuple(Bar(figure, rule) for figure, _, rule in (row.partition(" ") for row in rows))


@dataclass(frozen=True, slots=True)
class Cell:
    """One row group of a table. ``measure`` loads a contestant once and returns its figures, or all
    of them, and returns the figures of each.

    parameters: go to ``measure`` and into the result file. settings: of a kbroker that runs for
    this cell. fills_memory: gigabytes are written, so that memory's first use would be measured.
    """

    name: str
    title: str
    measure: Callable[..., Any]
    bars: tuple[Bar, ...]
    parameters: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    fills_memory: bool = False


def values_of(result: Mapping[str, Any] | None, figure: str) -> list[float]:
    """A figure of each run; none after a failure."""
    if result is None or result["failures"]:
        return []
    return [run[figure] for run in result["runs"] if figure in run]


def middle(
    result: Mapping[str, Any] | None,
    figure: str,
    of: Callable[[Sequence[float]], float] = median,
) -> float | None:
    """The median of a figure over the runs; None without a run, or after a failure."""
    values = values_of(result, figure)
    return of(values) if values else None


def median_ratio(these: Sequence[float], others: Sequence[float]) -> float:
    """The median of the ratios of each round."""
    return median(one / other for one, other in zip(these, others, strict=True))


def judge(bar: Bar, results: Results, unjudged: Collection[str] = ()) -> dict[str, Any]:
    """A condition of a result file, as ``perf/results_table.py`` reads it.

    unjudged: contestants that nothing is compared with.
    """
    ours = middle(results.get(bar.ours), bar.figure, bar.middle)
    names = [bar.other] if bar.other else [one for one in results if one != bar.ours]
    others = {
        name: value
        for name in names
        if name not in unjudged
        and (value := middle(results.get(name), bar.figure, bar.middle)) is not None
    }
    other = bar.best(list(others.values())) if others else None
    ratio = ours / other if ours is not None and other else None
    if ratio is not None and bar.is_paired:
        own, beside = (values_of(results[name], bar.figure) for name in (bar.ours, *others))
        ratio = median_ratio(own, beside) if all(beside) else ratio
    return {
        "figure": bar.figure,
        "text": f"{bar.ours}, {bar.label}" if bar.other else bar.label,
        "condition": bar.rule,
        "kbroker": ours,
        "other": other,
        "other_name": bar.other,
        "ratio": ratio,
        "met": meets(bar.rule, ours, ratio),
    }


def number_text(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def verdict_text(condition: Mapping[str, Any]) -> str:
    """Of a condition: its ratio, rule and verdict."""
    rule, met = condition["condition"], condition["met"]
    verdict = {True: "met", False: "MISSED", None: "not measured" if rule else ""}[met]
    return f"{ratio_text(condition['ratio'])}  {rule:<22}{verdict}"


def ratio_text(ratio: float | None) -> str:
    return f"{'-' if ratio is None else f'{ratio:.2f}x':>9}"
