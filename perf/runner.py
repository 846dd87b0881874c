"""Runs the cells of a comparison: contestants in turns, the table, and the result file.

    report = Report(options, {"kbroker": "kbroker", "kafka": "Kafka 3.9.1"}, "cluster")
    report.measure(cells, list(running), runs, lambda cell, name: cell.measure(running[name]))
    return report.end()

A cell says what is measured, and its bars (``perf/bars.py``); a program has cells, contestants,
and a function that measures one of them once.
"""

import argparse
import json
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from perf.bars import (
    TEXTS,
    Cell,
    CellFailed,
    Figures,
    Results,
    judge,
    middle,
    number_text,
    values_of,
    verdict_text,
)
from perf.kafka_distribution import ROOT, VERSION
from perf.load_generator import LoadError
from perf.machine import commit_text, machine
from perf.percentiles import spread

RESULTS = ROOT / "perf" / "results"
# What runs fail with. Anything else is a mistake in a cell, and ends the program.
FAILURES = (
    AssertionError,
    CellFailed,
    LoadError,
    OSError,
    RuntimeError,
    ValueError,
    struct.error,
    subprocess.SubprocessError,
)
# These libraries' own exceptions derive from Exception alone.
LIBRARIES = ("cimpl", "confluent_kafka", "kafka", "kbroker")
# kbroker has no compiler to warm, but page tables and caches anyway.
WARM_OURS_S = 3.0
Take = Callable[[Cell, str], Figures]
One = TypeVar("One")


def turns(names: Sequence[One], rounds: int) -> Iterator[list[One]]:
    """The order of each round. Who comes first changes, as a load leaves its mark on the next."""
    for number in range(rounds):
        first = number % len(names)
        yield [*names[first:], *names[:first]]


def attempt(take: Take, cell: Cell, name: str) -> tuple[Figures | None, str]:
    """One run: its figures, or None and why there are none."""
    try:
        return take(cell, name), ""
    except Exception as error:
        library = type(error).__module__.split(".")[0]
        if not isinstance(error, FAILURES) and library not in LIBRARIES:
            raise
        return None, f"{type(error).__name__}: {error}"


def measure_cell(
    cell: Cell, names: Sequence[str], runs: int, take: Take, settle_s: float = 0.0
) -> dict[str, Any]:
    """The runs of all contestants, in turns. settle_s: pause behind each run."""
    result: dict[str, Any] = {name: {"runs": [], "failures": []} for name in names}
    for order in turns(names, runs):
        for name in order:
            figures, failure = attempt(take, cell, name)
            if figures is None:
                result[name]["failures"].append(failure)
            else:
                result[name]["runs"].append(figures)
            time.sleep(settle_s)
    return result


def tell(text: str) -> None:
    print(text, flush=True)


def silent(_: str) -> None:
    """Tells nothing, where only figures are asked for."""


def once(figures: Figures) -> dict[str, Any]:
    """The result of one contestant that was measured once."""
    return {"runs": [figures], "failures": []}


def warm(names: Iterable[str], cells: Sequence[Cell], seconds: float, take: Take) -> None:
    """Short runs until the time is over, of which a JVM needs much; failures will show up in the
    cells.
    """
    for name in names:
        is_jvm = name.startswith("kafka")
        deadline = time.monotonic() + (seconds if is_jvm else min(WARM_OURS_S, seconds))
        while time.monotonic() < deadline:
            for cell in cells:
                if time.monotonic() < deadline:
                    attempt(take, cell, name)


def end_with_brokers() -> None:
    """SIGTERM ends this program as an exception does: otherwise the brokers would stay."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def size_of(size: Any) -> dict[str, Any]:
    """The fields of a dataclass that says how much load there is."""
    return {name: getattr(size, name) for name in size.__dataclass_fields__}


def origin() -> dict[str, Any]:
    """What a result file says of where its figures come from."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit_text(),
        "kafka": VERSION,
        "machine": machine(),
    }


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


class Report:
    """What was measured: prints each cell when it is there, and keeps the result file.

    columns: contestants with the heads of their columns; without them each contestant is a row.
    folder, suffix: of the file in ``perf/results``; folder None: there is only one if
    ``--output`` names it. more: content of the file. unjudged: contestants that nothing is
    compared with.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        columns: Mapping[str, str] | None = None,
        folder: str | None = None,
        suffix: str = "",
        *,
        unjudged: Sequence[str] = (),
        say: Callable[[str], None] = tell,
        **more: Any,
    ) -> None:
        self._columns = columns
        self._unjudged = unjudged
        self._say = say
        self.cells: dict[str, Any] = {}
        self.document = origin() | more | {"cells": self.cells}
        self.path: Path | None = None
        if options.output:
            self.path = Path(options.output)
        elif folder is not None and not getattr(options, "quick", False):
            stem = f"{str(self.document['date'])[:10]}-{self.document['commit']}{suffix}.json"
            self.path = RESULTS / folder / stem
        if columns:
            heads = "".join(f"{head:>13}" for head in columns.values())
            say(f"{'cell':<34}{heads}{'ratio':>9}  bar")

    def measure(
        self,
        cells: Iterable[Cell],
        names: Sequence[str],
        runs: int,
        take: Take,
        settle_s: float = 0.0,
    ) -> None:
        """All cells. Those that share a measurement without parameters share its runs."""
        shared: dict[Any, Any] = {}
        for cell in cells:
            key = cell.name if cell.parameters else cell.measure
            if key not in shared:
                shared[key] = measure_cell(cell, names, runs, take, settle_s)
            self.add(cell, shared[key])

    def add(self, cell: Cell, results: Results) -> None:
        """The runs of a cell: print them, and write all that there is."""
        conditions = [
            judge(bar, results, self._unjudged)
            for bar in cell.bars
            if not bar.other or {bar.ours, bar.other} <= results.keys()
        ]
        figures = {
            name: sorted({figure for run in one["runs"] for figure in run})
            for name, one in results.items()
        }
        self.cells[cell.name] = {
            "title": cell.title,
            "parameters": cell.parameters | cell.settings,
            "samples": {name: len(one["runs"]) for name, one in results.items()},
            "median": {
                name: {figure: middle(results[name], figure) for figure in own}
                for name, own in figures.items()
            },
            "spread": {
                name: {
                    figure: spread([run[figure] for run in results[name]["runs"] if figure in run])
                    for figure in own
                }
                for name, own in figures.items()
            },
            "conditions": conditions,
            "results": results,
        }
        rows = column_rows if self._columns else contestant_rows
        self._say("\n".join([f"{cell.name}: {cell.title}", *rows(conditions, results)]))
        if self.path is not None:
            write_document(self.path, self.document)

    def end(self) -> int:
        """0 when nothing failed and every bar that was measured is cleared."""
        if self.path is not None:
            self._say(f"written to {self.path}")
        cells = self.cells.values()
        failed = any(one["failures"] for cell in cells for one in cell["results"].values())
        return int(failed or any(one["met"] is False for one in self.conditions()))

    def conditions(self) -> list[dict[str, Any]]:
        return [one for cell in self.cells.values() for one in cell["conditions"]]


def column_rows(conditions: Sequence[dict[str, Any]], results: Results) -> list[str]:
    """A row for each figure, with a column for each contestant."""
    rows = []
    for one in conditions:
        values = "".join(
            f"{number_text(middle(found, one['figure'])):>13}" for found in results.values()
        )
        rows.append(f"  {one['text']:<32}{values}{verdict_text(one)}".rstrip())
    return rows + _failures(results)


def contestant_rows(conditions: Sequence[dict[str, Any]], results: Results) -> list[str]:
    """A row for each contestant, with all its figures from the least to the most, and then one for
    each bar.
    """
    rows = []
    width = max(map(len, results)) + 2
    for name, one in results.items():
        figures = one["runs"][0] if one["runs"] else ()
        shown = ", ".join(_spread_text(one, figure) for figure in figures)
        rows.append(f"  {name:<{width}}{shown}".rstrip())
    for one in conditions:
        if one["condition"] or one["other_name"]:
            beside = f" / {one['other_name']}" if one["other_name"] else ""
            value = number_text(one["kbroker"])
            rows.append(f"    {one['text'] + beside:<54}{value:>10}{verdict_text(one)}".rstrip())
    return rows + _failures(results)


def _spread_text(result: Mapping[str, Any], figure: str) -> str:
    values = values_of(result, figure)
    if not values:
        return f"- {TEXTS.get(figure, figure)}"
    shown = number_text(middle(result, figure))
    if len(values) > 1:
        shown += f" ({number_text(min(values))} to {number_text(max(values))})"
    return f"{shown} {TEXTS.get(figure, figure)}"


def _failures(results: Results) -> list[str]:
    return [f"  {name} FAILED: {text}" for name, one in results.items() for text in one["failures"]]
