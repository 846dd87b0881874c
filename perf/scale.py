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
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf import scale_connections, scale_site
from perf.arguments import Arguments
from perf.bars import Cell, CellFailed, Figures
from perf.machine import MachineTooSmall
from perf.runner import Report, end_with_brokers, once, size_of


@dataclass(frozen=True, slots=True)
class Scale:
    """full, small: dataclasses whose fields are the options of the cell. place: where data goes, if
    nothing else is said.
    """

    cell: Cell
    full: Any
    small: Any
    place: str


CELLS = {
    "site": Scale(scale_site.CELL, scale_site.SiteSize(), scale_site.SMALL, "/tmp"),
    "connections": Scale(
        scale_connections.CELL, scale_connections.ConnectionsSize(), scale_connections.SMALL,
        "/dev/shm",
    ),
}  # fmt: skip


def parse_arguments(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Any]:
    """The options, and the size of the chosen cell."""
    options = Arguments(__doc__)
    cells = options.add_subparsers(dest="cell", required=True)
    for name, scale in CELLS.items():
        own = cells.add_parser(name, help=scale.cell.title)
        own.add_argument(
            "--small", dest="quick", action="store_true", help="a minute; writes no result"
        )
        own.add_place(scale.place)
        own.add_overrides()
        own.add_output(f"scale/<date>-<commit>-{name}.json")
        for one in fields(scale.full):
            default = getattr(scale.full, one.name)
            own.add_argument(
                f"--{one.name.replace('_', '-')}", type=type(default), help=f"{default}"
            )
    chosen = options.parse(arguments)
    scale = CELLS[chosen.cell]
    given = {one.name: getattr(chosen, one.name) for one in fields(scale.full)}
    changed = {name: value for name, value in given.items() if value is not None}
    return chosen, replace(scale.small if chosen.quick else scale.full, **changed)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when all bars are cleared."""
    options, size = parse_arguments(arguments)
    end_with_brokers()
    scale, load = CELLS[options.cell], os.getloadavg()
    print(f"{options.cell}: {scale.cell.title}; load {load[0]:.2f}", flush=True)
    report = Report(
        options, None, "scale", f"-{options.cell}", size=size_of(size),
        load_average_before=load, command=["python", "perf/scale.py", *sys.argv[1:]],
    )  # fmt: skip
    try:
        results: dict[str, Figures] = scale.cell.measure(
            size, Path(options.place), dict(options.override)
        )
    except MachineTooSmall as error:
        print(f"perf/scale.py: this machine is too small for {options.cell}: {error}",
              file=sys.stderr)  # fmt: skip
        return 2
    except (CellFailed, TimeoutError) as error:
        print(f"perf/scale.py: {options.cell} failed: {error}", file=sys.stderr)
        return 1
    report.add(scale.cell, {name: once(figures) for name, figures in results.items()})
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
