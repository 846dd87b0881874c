"""Three kbrokers beside three Apache Kafkas of 3.9.1 (KRaft), and three of 2.7.2 (ZooKeeper).

    python perf/cluster.py                           every cell, medians of three
    python perf/cluster.py --cells all16k,all1 --runs 5
    python perf/cluster.py --clusters kbroker        one of them, for a look
    python perf/cluster.py --quick                   toy size, to see that it all runs

All three clusters are up all the time, on one machine, and one is loaded at a time; which of them
comes first changes from run to run. The JVMs are warmed first. kbroker is compared with the better
of the two Kafkas; the exit code is 1 if a condition is missed.
"""

import argparse
import json
import signal
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.cells import CellFailed, Figures
from perf.cluster_cells import CELLS, QUICK, ClusterCell, Condition, Size
from perf.clusters import CLUSTERS, Cluster
from perf.kafka_distribution import ROOT
from perf.machine import commit_text, machine, touch_free_memory
from perf.percentiles import spread
from perf.results_table import number_text

WARM_CELLS = ("all16k", "all1")
SETTLE_S = 1.5
OURS = "kbroker"


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    names = [cell.name for cell in CELLS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cells", default=",".join(names), help="of: " + ", ".join(names))
    parser.add_argument("--clusters", default=",".join(CLUSTERS), help="of: " + ", ".join(CLUSTERS))
    parser.add_argument("--runs", type=int, help="per cell and cluster; 3, or 1 with --quick")
    parser.add_argument("--quick", action="store_true", help="toy size; writes no result")
    parser.add_argument("--warm-seconds", type=float, help="30, or 1 with --quick")
    parser.add_argument("--place", default="/tmp", help="where the data directories go")
    parser.add_argument("--catch-up-gib", type=float, help="what the empty follower copies; 10")
    parser.add_argument("--override", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--output", help="default: perf/results/cluster/<date>-<commit>.json")
    chosen = parser.parse_args(arguments)
    for option, known in (("cells", names), ("clusters", list(CLUSTERS))):
        given = [name.strip() for name in getattr(chosen, option).split(",") if name.strip()]
        if unknown := sorted(set(given) - set(known)):
            parser.error(f"--{option}: no {', '.join(unknown)}; there are {', '.join(known)}")
        setattr(chosen, option, given)
    if any("=" not in pair for pair in chosen.override):
        parser.error("--override takes KEY=VALUE")
    if chosen.runs is None:
        chosen.runs = 1 if chosen.quick else 3
    if chosen.warm_seconds is None:
        chosen.warm_seconds = 1.0 if chosen.quick else 30.0
    return chosen


def size_of(options: argparse.Namespace) -> Size:
    base = QUICK if options.quick else Size()
    if options.catch_up_gib is None:
        return base
    values = {name: getattr(base, name) for name in Size.__slots__}
    return Size(**{**values, "catch_up_gib": options.catch_up_gib})


def warm(cluster: Cluster, seconds: float) -> None:
    """Short runs until the time is over; failures will show up in the cells."""
    cells = [cell for cell in CELLS if cell.name in WARM_CELLS]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for cell in cells:
            attempt(cell, cluster, QUICK)


def attempt(cell: ClusterCell, cluster: Cluster, size: Size) -> tuple[Figures | None, str]:
    """One run: its figures, or None and why there are none."""
    try:
        return cell.measure(cluster, size, cell.parameters), ""
    except CellFailed as error:
        return None, str(error)
    except Exception as error:  # a cell that cannot be measured costs no other cell anything
        return None, f"{type(error).__name__}: {error}"


def middle(result: dict[str, Any] | None, figure: str) -> float | None:
    """The median over the runs; None without a run, or after a failure."""
    if result is None or result["failures"]:
        return None
    values = [run[figure] for run in result["runs"] if figure in run]
    return median(values) if values else None


def judge(condition: Condition, results: dict[str, Any]) -> dict[str, Any]:
    """kbroker's figure, the better Kafka's, their ratio, and whether the condition is met."""
    ours = middle(results.get(OURS), condition.figure)
    others = [middle(found, condition.figure) for name, found in results.items() if name != OURS]
    known = [value for value in others if value is not None]
    theirs = condition.better(known) if known else None
    return {
        "figure": condition.figure,
        "text": condition.text,
        "condition": condition.describe(),
        "kbroker": ours,
        "kafka": theirs,
        "ratio": ours / theirs if ours is not None and theirs else None,
        "met": None if ours is None else condition.passes(ours, theirs),
    }


def rows(cell: ClusterCell, results: dict[str, Any]) -> list[str]:
    found = [f"{cell.name}: {cell.title}"]
    for condition in cell.conditions:
        judged = judge(condition, results)
        ratio = "-" if judged["ratio"] is None else f"{judged['ratio']:.2f}x"
        verdict = {None: "", True: "met", False: "MISSED"}[judged["met"]]
        values = "".join(
            f"{number_text(middle(one, condition.figure)):>13}" for one in results.values()
        )
        row = f"  {condition.text:<32}{values}{ratio:>9}  {condition.describe():<22}{verdict}"
        found.append(row.rstrip())
    for name, one in results.items():
        found += [f"  {name} FAILED: {failure}" for failure in one["failures"]]
    return found


def measure_cells(
    cells: list[ClusterCell], running: dict[str, Cluster], runs: int, size: Size
) -> dict[str, Any]:
    """{cell: {cluster: {"runs": [figures], "failures": [text]}}}, printed by cell."""
    results: dict[str, Any] = {}
    for cell in cells:
        results[cell.name] = {name: {"runs": [], "failures": []} for name in running}
        for turn in range(runs):
            order = list(running) if turn % 2 == 0 else list(reversed(running))
            for name in order:
                if cell.fills_memory and size != QUICK:
                    touch_free_memory()
                figures, failure = attempt(cell, running[name], size)
                kept = results[cell.name][name]
                if figures is None:
                    kept["failures"].append(failure)
                else:
                    kept["runs"].append(figures)
                time.sleep(SETTLE_S)
        print("\n".join(rows(cell, results[cell.name])), flush=True)
    return results


def report(options: argparse.Namespace, size: Size, results: dict[str, Any]) -> dict[str, Any]:
    """The content of the result file."""
    cells = {}
    for cell in CELLS:
        if cell.name not in results:
            continue
        found = results[cell.name]
        spreads = {
            name: {
                figure: spread([run[figure] for run in one["runs"]])
                for figure in sorted({figure for run in one["runs"] for figure in run})
            }
            for name, one in found.items()
        }
        judged = [judge(condition, found) for condition in cell.conditions]
        cells[cell.name] = {
            "title": cell.title,
            "parameters": cell.parameters,
            "conditions": judged,
            "spread": spreads,
            "results": found,
        }
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit_text(),
        "machine": machine(),
        "parameters": {
            "runs": options.runs,
            "warm_seconds": options.warm_seconds,
            "overrides": options.override,
            "size": {name: getattr(size, name) for name in Size.__slots__},
        },
        "cells": cells,
    }


def main(arguments: list[str] | None = None) -> int:
    """0 when nothing failed and every condition that was measured is met."""
    options = parse_arguments(arguments)
    # Otherwise the brokers would stay.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    size = size_of(options)
    own = dict(pair.split("=", 1) for pair in options.override)
    with ExitStack() as stack:
        running: dict[str, Cluster] = {}
        for name in options.clusters:
            overrides = own if name == OURS else {}
            running[name] = stack.enter_context(CLUSTERS[name](options.place, overrides))
        for name, cluster in running.items():
            warm(cluster, options.warm_seconds if name != OURS else min(3, options.warm_seconds))
        head = "".join(f"{name:>13}" for name in running)
        print(f"{'cell':<34}{head}{'ratio':>9}  condition")
        cells = [cell for cell in CELLS if cell.name in options.cells]
        results = measure_cells(cells, running, options.runs, size)
    written = report(options, size, results)
    if not options.quick or options.output:
        stem = f"{written['date'][:10]}-{written['commit']}.json"
        path = (
            Path(options.output) if options.output else ROOT / "perf" / "results" / "cluster" / stem
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(written, indent=1) + "\n")
        print(f"written to {path}")
    failed = any(one["failures"] for found in results.values() for one in found.values())
    judged = [one for cell in written["cells"].values() for one in cell["conditions"]]
    return 1 if failed or any(one["met"] is False for one in judged) else 0


if __name__ == "__main__":
    sys.exit(main())
