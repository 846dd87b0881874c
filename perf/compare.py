"""kbroker compared with Apache Kafka 3.9.1: the same client against both, in turns, medians,
ratios, bars.

    python perf/compare.py                      every cell, medians of five, about half an hour
    python perf/compare.py --cells sat16k,one1 --runs 3
    python perf/compare.py --quick              toy size, to see that it all runs
    python perf/compare.py --table              no run: the table of perf/README.md

Both brokers are up all the time and one is loaded at a time; which of them comes first changes from
run to run. The JVM is warmed first, since a cold Kafka is a third as fast. Brokers run with their
defaults, except for a deleted topic's files, which leave the disk after a second, and a new group,
which waits for no further members.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.brokers import Broker
from perf.cells import CELLS, QUICK, Cell, CellFailed, Figures, Size
from perf.kafka_distribution import ROOT, VERSION
from perf.load_generator import LoadError
from perf.machine import commit_text, machine
from perf.peers import ALL, PEERS
from perf.percentiles import spread
from perf.results_table import number_text, results_table

OVERRIDES = {"log.segment.delete.delay.ms": "1000", "group.initial.rebalance.delay.ms": "0"}
WARM_CELLS = ("sat16k", "one16", "produce1k_lz4", "consume100")
# The time until a deleted topic has left the disk, with the delay above.
SETTLE_S = 1.5
ROW = "{:<14} {:<16} {:>12} {:>12} {:>7}  {:<16} {}"
VERDICT_END = 98


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    names = [cell.name for cell in CELLS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cells", default=",".join(names), help="of: " + ", ".join(names))
    parser.add_argument("--runs", type=int, help="per cell and broker; 5, or 1 with --quick")
    parser.add_argument("--quick", action="store_true", help="toy size; writes no result")
    parser.add_argument("--warm-seconds", type=float, help="30, or 1 with --quick")
    parser.add_argument(
        "--brokers",
        default="kbroker,kafka",
        help="one of them, for a look; kfake and tansu add columns (perf/peers.py)",
    )
    parser.add_argument("--place", default="/tmp", help="where the data directories go")
    parser.add_argument("--kbroker-override", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--output", help="default: perf/results/<date>-<commit>.json")
    parser.add_argument(
        "--table", action="store_true", help="measure nothing: print the newest results as Markdown"
    )
    chosen = parser.parse_args(arguments)
    chosen.cells = [name.strip() for name in chosen.cells.split(",") if name.strip()]
    if unknown := sorted(set(chosen.cells) - set(names)):
        parser.error(f"no cell {', '.join(unknown)}; there are {', '.join(names)}")
    chosen.brokers = chosen.brokers.split(",")
    if unknown := sorted(set(chosen.brokers) - set(ALL)):
        parser.error(f"no broker {', '.join(unknown)}; there are {', '.join(sorted(ALL))}")
    if any("=" not in pair for pair in chosen.kbroker_override):
        parser.error("--kbroker-override takes KEY=VALUE")
    if chosen.runs is None:
        chosen.runs = 1 if chosen.quick else 5
    if chosen.warm_seconds is None:
        chosen.warm_seconds = 1.0 if chosen.quick else 30.0
    if chosen.runs < 1:
        parser.error("--runs must be at least 1")
    return chosen


def start_brokers(options: argparse.Namespace, stack: ExitStack) -> dict[str, Broker]:
    """Both brokers, started and entered into ``stack``."""
    own = dict(pair.split("=", 1) for pair in options.kbroker_override)
    running: dict[str, Broker] = {}
    for name in options.brokers:
        overrides = {**OVERRIDES, **(own if name == "kbroker" else {})}
        running[name] = stack.enter_context(ALL[name](options.place, overrides))
    return running


def warm(broker: Broker, seconds: float) -> None:
    """Short runs of every kind of load until the time is over; failures will show in the cells."""
    cells = [cell for cell in CELLS if cell.name in WARM_CELLS]
    size = Size(1.5, 0.1, 500_000, 200_000) if seconds > 5 else QUICK
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for cell in cells:
            if time.monotonic() < deadline:
                attempt(cell, broker, size)


def attempt(cell: Cell, broker: Broker, size: Size) -> tuple[Figures | None, str]:
    """One run: its figures, or None and why there are none."""
    try:
        return cell.measure(broker, cell.parameters, size), ""
    except (CellFailed, LoadError, RuntimeError, OSError, ValueError) as error:
        return None, f"{type(error).__name__}: {error}"
    except Exception as error:
        # confluent-kafka's own exceptions derive from Exception alone.
        if type(error).__module__.split(".")[0] not in ("cimpl", "confluent_kafka"):
            raise
        return None, f"{type(error).__name__}: {error}"


def measure_cells(
    cells: list[Cell], running: dict[str, Broker], runs: int, size: Size
) -> dict[str, Any]:
    """{cell: {broker: {"runs": [figures], "failures": [text]}}}; prints each cell when it is done.

    Cells that share a measurement without parameters (start and memory) share its runs.
    """
    results: dict[str, Any] = {}
    shared: dict[Any, Any] = {}
    for cell in cells:
        key = cell.measure if not cell.parameters else cell.name
        if key not in shared:
            shared[key] = {name: {"runs": [], "failures": []} for name in running}
            for turn in range(runs):
                order = list(running) if turn % 2 == 0 else list(reversed(running))
                for name in order:
                    figures, failure = attempt(cell, running[name], size)
                    if figures is None:
                        shared[key][name]["failures"].append(failure)
                    else:
                        shared[key][name]["runs"].append(figures)
                    time.sleep(SETTLE_S)
        results[cell.name] = shared[key]
        print("\n".join(table_rows(cell, shared[key])), flush=True)
    return results


def middle(result: dict[str, Any] | None, figure: str) -> float | None:
    """The median of a figure over one broker's runs; None without a run, or after a failure."""
    if result is None or result["failures"] or not result["runs"]:
        return None
    values = [run[figure] for run in result["runs"] if figure in run]
    return median(values) if values else None


def table_rows(cell: Cell, result: dict[str, Any]) -> list[str]:
    """The rows of one cell: barred figures, then informative ones, then failures."""
    rows = [f"{cell.name}: {cell.title}"]
    figures = [(bar.figure, bar.text, bar) for bar in cell.bars]
    figures += [(figure, text, None) for figure, text in cell.informative]
    for figure, text, bar in figures:
        ours, theirs = (middle(result.get(name), figure) for name in ("kbroker", "kafka"))
        peers = [middle(result[name], figure) for name in PEERS if name in result]
        rows.append(row_text(text, ours, theirs, bar, peers))
    for name, found in result.items():
        rows += [f"  {name} FAILED: {failure}" for failure in found["failures"]]
    return rows


def row_text(
    text: str,
    ours: float | None,
    theirs: float | None,
    bar: Any,
    peers: Sequence[float | None] = (),
) -> str:
    """peers: the figures of further brokers, after the verdict."""
    both = ours is not None and theirs is not None
    ratio = f"{ours / theirs:.2f}x" if both and theirs else "-"
    if bar is None:
        verdict = ""
    elif not both:
        verdict = "not measured"
    else:
        verdict = "pass" if bar.passes(ours, theirs) else "MISS"
    described = bar.describe() if bar else ""
    columns = ("", text, number_text(ours), number_text(theirs), ratio, described, verdict)
    return with_peers(ROW.format(*columns), map(number_text, peers))


def with_peers(row: str, texts: Iterable[str]) -> str:
    """A row with further columns, which begin after the verdicts."""
    found = list(texts)
    if not found:
        return row.rstrip()
    return f"{row:<{VERDICT_END}}" + "".join(f"{text:>12}" for text in found)


def report(
    options: argparse.Namespace,
    size: Size,
    results: dict[str, Any],
    known: Sequence[Cell] | None = None,
) -> dict[str, Any]:
    """The content of the result file. known: all cells, if not those of the comparison."""
    cells = {}
    for cell in CELLS if known is None else known:
        if cell.name not in results:
            continue
        medians: dict[str, Any] = {}
        spreads: dict[str, Any] = {}
        for name, found in results[cell.name].items():
            figures = sorted({figure for run in found["runs"] for figure in run})
            medians[name] = {figure: middle(found, figure) for figure in figures}
            spreads[name] = {
                figure: spread([run[figure] for run in found["runs"]]) for figure in figures
            }
        bars = [bar_report(bar, results[cell.name]) for bar in cell.bars]
        cells[cell.name] = {
            "title": cell.title,
            "parameters": cell.parameters,
            "samples": {name: len(found["runs"]) for name, found in results[cell.name].items()},
            "median": medians,
            "spread": spreads,
            "bars": bars,
            "results": results[cell.name],
        }
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit_text(),
        "kafka": VERSION,
        "machine": machine(),
        "parameters": {
            "runs": options.runs,
            "warm_seconds": options.warm_seconds,
            "overrides": OVERRIDES,
            "kbroker_overrides": options.kbroker_override,
            "size": {name: getattr(size, name) for name in Size.__slots__},
        },
        "cells": cells,
    }


def bar_report(bar: Any, result: dict[str, Any]) -> dict[str, Any]:
    ours = middle(result.get("kbroker"), bar.figure)
    theirs = middle(result.get("kafka"), bar.figure)
    both = ours is not None and theirs is not None
    return {
        "figure": bar.figure,
        "bar": bar.describe(),
        "ratio": ours / theirs if both and theirs else None,
        "pass": bar.passes(ours, theirs) if both else None,
    }


def main(arguments: list[str] | None = None) -> int:
    """0 when nothing failed and, both brokers measured, every bar was cleared."""
    options = parse_arguments(arguments)
    if options.table:
        print(results_table())
        return 0
    size = QUICK if options.quick else Size()
    cells = [cell for cell in CELLS if cell.name in options.cells]
    with ExitStack() as stack:
        running = start_brokers(options, stack)
        for name, broker in running.items():
            # kbroker has no compiler to warm, but page tables and caches anyway.
            warm(broker, options.warm_seconds if name == "kafka" else min(3, options.warm_seconds))
        head = ROW.format("cell", "figure", "kbroker", f"Kafka {VERSION}", "ratio", "bar", "")
        print(with_peers(head, (name for name in PEERS if name in running)))
        results = measure_cells(cells, running, options.runs, size)
    written = report(options, size, results)
    if not options.quick or options.output:
        stem = f"{written['date'][:10]}-{written['commit']}.json"
        path = Path(options.output) if options.output else ROOT / "perf" / "results" / stem
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(written, indent=1) + "\n")
        print(f"written to {path}")
    failed = any(found["failures"] for result in results.values() for found in result.values())
    missed = any(bar["pass"] is False for cell in written["cells"].values() for bar in cell["bars"])
    return 1 if failed or missed else 0


if __name__ == "__main__":
    sys.exit(main())
