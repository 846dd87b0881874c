"""kbroker at its limits: many brokers and partitions, many connections.

    python perf/scale.py site                        15 brokers, 15,500 partitions; half an hour
    python perf/scale.py connections                 10,000 busy connections, plain and TLS
    python perf/scale.py site --brokers 3 --partitions 60 --load-s 2
    python perf/scale.py site --small                a minute, to see that it all runs

Each cell prints what it does, and at its end its figures beside their conditions; they go into
``perf/results/scale``, with commit, machine, load and command, unless the cell is ``--small``. The
exit code is 1 if a condition is missed, and 2 with one line if the machine is too small.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf import scale_connections, scale_site
from perf.cells import CellFailed, Figures
from perf.cluster import OURS, judge
from perf.cluster_cells import Condition
from perf.kafka_distribution import ROOT
from perf.machine import MachineTooSmall, commit_text, machine
from perf.results_table import number_text

Results = dict[str, Figures]  # by broker


@dataclass(frozen=True, slots=True)
class ScaleCell:
    """full, small: dataclasses whose fields are the options of the cell. place: where data goes, if
    nothing else is said.
    """

    title: str
    full: Any
    small: Any
    place: str
    conditions: tuple[Condition, ...]
    measure: Callable[[Any, Path, dict[str, str]], Results]


def _site(size: Any, place: Path, overrides: dict[str, str]) -> Results:
    return {OURS: scale_site.measure(size, place, overrides)}


CELLS = {
    "site": ScaleCell(
        scale_site.TITLE, scale_site.SiteSize(), scale_site.SMALL, "/tmp",
        scale_site.CONDITIONS, _site,
    ),
    "connections": ScaleCell(
        scale_connections.TITLE, scale_connections.ConnectionsSize(), scale_connections.SMALL,
        "/dev/shm", scale_connections.CONDITIONS, scale_connections.measure,
    ),
}  # fmt: skip


def parse_arguments(arguments: list[str] | None) -> tuple[argparse.Namespace, Any]:
    """The options, and the size of the chosen cell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    cells = parser.add_subparsers(dest="cell", required=True)
    for name, cell in CELLS.items():
        own = cells.add_parser(name, help=cell.title)
        own.add_argument("--small", action="store_true", help="a minute; writes no result")
        own.add_argument("--place", type=Path, default=Path(cell.place), help="folder for the data")
        own.add_argument("--override", action="append", default=[], metavar="KEY=VALUE")
        own.add_argument("--output", help="default: perf/results/scale/<date>-<commit>-<cell>.json")
        for one in fields(cell.full):
            kind = type(getattr(cell.full, one.name))
            default = getattr(cell.full, one.name)
            own.add_argument(f"--{one.name.replace('_', '-')}", type=kind, help=f"{default}")
    options = parser.parse_args(arguments)
    if any("=" not in pair for pair in options.override):
        parser.error("--override takes KEY=VALUE")
    cell = CELLS[options.cell]
    given = {one.name: getattr(options, one.name) for one in fields(cell.full)}
    chosen = {name: value for name, value in given.items() if value is not None}
    return options, replace(cell.small if options.small else cell.full, **chosen)


def rows(cell: ScaleCell, results: Results) -> list[str]:
    """The conditions, and then all figures."""
    judged = [judge(condition, as_runs(results)) for condition in cell.conditions]
    lines = []
    for one in judged:
        verdict = {None: "", True: "met", False: "MISSED"}[one["met"]]
        ratio = "" if one["ratio"] is None else f"{one['ratio']:.2f}x"
        value = number_text(one["kbroker"])
        lines.append(f"  {one['text']:<46}{value:>12}{ratio:>9}  {one['condition']:<24}{verdict}")
    for name, figures in results.items():
        shown = ", ".join(f"{figure} {number_text(value)}" for figure, value in figures.items())
        lines.append(f"  {name}: {shown}")
    return [line.rstrip() for line in lines]


def as_runs(results: Results) -> dict[str, Any]:
    """As the results of ``perf/cluster.py`` are kept."""
    return {name: {"runs": [figures], "failures": []} for name, figures in results.items()}


def report(options: argparse.Namespace, size: Any, results: Results, load: Any) -> dict[str, Any]:
    """The content of the result file. load: the load average before the run."""
    cell = CELLS[options.cell]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit_text(),
        "machine": machine() | {"load_average_before": load},
        "command": ["python", "perf/scale.py", *sys.argv[1:]],
        "cell": options.cell,
        "title": cell.title,
        "size": {one.name: getattr(size, one.name) for one in fields(size)},
        "conditions": [judge(condition, as_runs(results)) for condition in cell.conditions],
        "results": results,
    }


def main(arguments: list[str] | None = None) -> int:
    """0 when all conditions are met."""
    options, size = parse_arguments(arguments)
    # Otherwise the brokers would stay.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cell, load = CELLS[options.cell], os.getloadavg()
    overrides = dict(pair.split("=", 1) for pair in options.override)
    print(f"{options.cell}: {cell.title}; load {load[0]:.2f}", flush=True)
    try:
        results = cell.measure(size, options.place, overrides)
    except MachineTooSmall as error:
        print(f"perf/scale.py: this machine is too small for {options.cell}: {error}",
              file=sys.stderr)  # fmt: skip
        return 2
    except (CellFailed, TimeoutError) as error:
        print(f"perf/scale.py: {options.cell} failed: {error}", file=sys.stderr)
        return 1
    print("\n".join(rows(cell, results)), flush=True)
    written = report(options, size, results, load)
    if options.output or not options.small:
        stem = f"{written['date'][:10]}-{written['commit']}-{options.cell}.json"
        path = Path(options.output or ROOT / "perf" / "results" / "scale" / stem)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(written, indent=1) + "\n")
        print(f"written to {path}")
    return 1 if any(one["met"] is False for one in written["conditions"]) else 0


if __name__ == "__main__":
    sys.exit(main())
