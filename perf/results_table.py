"""The table of current figures in perf/README.md, from the newest files in perf/results.

    python perf/compare.py --table

Every cell, Spark case and Spark bound is one row, taken from the newest result file that has it.
``tools/gen_docs.py`` puts the table into the README, so the table cannot fall behind the files.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.bars import TEXTS, number_text
from perf.spark_bounds import BOUNDS, OURS, THEIRS, Bound

RESULTS = Path(__file__).resolve().parent / "results"
HEAD = ("load", "figure", "kbroker", "compared with", "ratio", "bar", "commit", "machine")
SPARK_CASES = {
    "read-100B": "Spark batch read to noop, 100 B",
    "read-1KB": "Spark batch read to noop, 1 KB",
    "read-100B plain": "the same in a plain session, 100 B",
    "read-1KB plain": "the same in a plain session, 1 KB",
    "trigger-p50": "Spark micro-batch trigger, p50",
    "write-cached": "Spark write of cached rows",
    "load-100B": "load to Parquet with zstd, 100 B",
    "load-1KB": "load to Parquet with zstd, 1 KB",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. ``name``: its name in ``--cells`` or ``--case``; empty for a bound."""

    name: str
    title: str
    figure: str
    ours: str
    theirs: str
    ratio: float | None
    bar: str
    passes: bool | None
    commit: str
    machine: str

    def columns(self) -> tuple[str, ...]:
        """A ratio that misses its bar is bold, or a figure without a ratio."""
        ours, ratio = self.ours, ratio_text(self.ratio)
        if self.passes is False and self.ratio is None:
            ours = f"**{ours}**"
        elif self.passes is False:
            ratio = f"**{ratio}**"
        load = f"{self.title} (`{self.name}`)" if self.name else self.title
        shown = (load, self.figure, ours, self.theirs, ratio, self.bar)
        return (*shown, self.commit, self.machine)


def ratio_text(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}×"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---"] * len(head)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def results_table(folder: Path = RESULTS) -> str:
    """The table in Markdown."""
    return markdown_table(HEAD, (row.columns() for row in newest_rows(folder)))


def newest_rows(folder: Path = RESULTS) -> list[Row]:
    """Cells in the order in which they first appeared, those of one broker, of what watches it, of
    clusters and of clients, then Spark cases, then bounds.
    """
    cases: dict[str, list[Row]] = {}
    bounds: dict[str, list[Row]] = {}
    for report in reports(folder):
        by_case = {row["case"]: row for row in report.get("cases", ())}
        for name, case in by_case.items():
            if name in SPARK_CASES and "ratio" in case:
                cases[name] = [case_row(name, case, report)]
        for bound in BOUNDS:
            if all("runs" in by_case.get(name, ()) for name in bound.needs):
                bounds[bound.name] = [bound_row(bound, by_case, report)]
    ordered = [
        judged_cells(folder),
        judged_cells(folder / "monitoring"),
        judged_cells(folder / "cluster", "three brokers: "),
        judged_cells(folder / "client", "Python clients: "),
        _in_order(cases, SPARK_CASES),
        _in_order(bounds, [b.name for b in BOUNDS]),
    ]
    return [row for group in ordered for rows in group.values() for row in rows]


def _in_order(found: dict[str, list[Row]], names: Iterable[str]) -> dict[str, list[Row]]:
    return {name: found[name] for name in names if name in found}


def reports(folder: Path) -> list[dict[str, Any]]:
    """The result files, oldest first."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda report: str(report["date"]))


def judged_cells(folder: Path, prefix: str = "") -> dict[str, list[Row]]:
    """The rows of the cells in result files, by name of the cell."""
    cells: dict[str, list[Row]] = {}
    for report in reports(folder):
        for name, cell in report.get("cells", {}).items():
            if rows := judged_rows(name, prefix, cell, report):
                cells[name] = rows
    return cells


def judged_rows(name: str, prefix: str, cell: dict[str, Any], report: dict[str, Any]) -> list[Row]:
    """A row for each condition of a cell that was judged."""
    return [
        Row(
            name,
            prefix + cell["title"],
            one["text"],
            number_text(one["kbroker"]),
            _compared(one),
            one["ratio"],
            _signs(one["condition"]),
            one["met"],
            report["commit"],
            machine_text(report["machine"]),
        )
        for one in (cell["conditions"] if "conditions" in cell else _bars_of(cell))
        if one["met"] is not None
    ]


def _bars_of(cell: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The conditions of a cell in an older file, which has medians and bars apart. None of them is
    judged where a broker failed or was left out.
    """
    for bar in cell["bars"]:
        figure = bar["figure"]
        ours, theirs = (cell["median"].get(name, {}).get(figure) for name in ("kbroker", "kafka"))
        yield {
            "text": TEXTS.get(figure, figure),
            "condition": bar["bar"],
            "kbroker": ours,
            "kafka": theirs,
            "ratio": bar["ratio"],
            "met": bar["pass"],
        }


def _compared(one: dict[str, Any]) -> str:
    """The other's figure: Kafka's, or that of a library that is named."""
    if "kafka" in one:
        return number_text(one["kafka"])
    name = one["other_name"]
    return number_text(one["other"]) + (f" ({name})" if name else "")


def case_row(name: str, case: dict[str, Any], report: dict[str, Any]) -> Row:
    """A Spark case compared with Spark's own connector."""
    unit, scale = ("M rows/s", 1e-6) if case["rows"] else ("ms", 1000.0)
    at_least = case["at_least"]
    return Row(
        name,
        SPARK_CASES[name],
        unit,
        number_text(case[OURS] * scale),
        number_text(case[THEIRS] * scale),
        case["ratio"],
        f"≥ {at_least:g}×" if at_least else "–",
        case["ratio"] >= at_least if at_least else None,
        report["commit"],
        machine_text(report["machine"]),
    )


def bound_row(bound: Bound, by_case: dict[str, Any], report: dict[str, Any]) -> Row:
    figure = bound.of(by_case)
    return Row(
        "",
        bound.name,
        "ratio" if bound.is_ratio else "figure",
        "–" if bound.is_ratio else number_text(figure),
        "–",
        figure if bound.is_ratio else None,
        _signs(bound.rule),
        bound.holds(figure),
        report["commit"],
        machine_text(report["machine"]),
    )


def _signs(bar: str) -> str:
    """A bar in the result file, typeset."""
    return bar.replace(">=", "≥").replace("<=", "≤").replace("x", "×")


def machine_text(machine: dict[str, Any]) -> str:
    """Short enough for a column: what distinguishes the machines."""
    model = str(machine.get("cpu", "")).replace("(R)", "").replace(" Processor", "").strip()
    parts: Sequence[str] = [model, f"{machine['cores']} cores"]
    return ", ".join(part for part in parts if part)
