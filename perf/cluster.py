"""Three kbrokers beside three Apache Kafkas of 3.9.1 (KRaft), and three of 2.7.2 (ZooKeeper).

    python perf/cluster.py                           every cell, medians of three
    python perf/cluster.py --cells all16k,all1 --runs 5
    python perf/cluster.py --clusters kbroker        one of them, for a look
    python perf/cluster.py --quick                   toy size, to see that it all runs

All three clusters are up all the time, on one machine, and one is loaded at a time; which of them
comes first changes from run to run. The JVMs are warmed first. kbroker is compared with the better
of the two Kafkas; the exit code is 1 if a bar is missed.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.arguments import Arguments
from perf.bars import OURS, Cell, Figures
from perf.cluster_cells import CELLS, QUICK, ClusterSize
from perf.clusters import CLUSTERS, Cluster
from perf.machine import touch_free_memory
from perf.runner import Report, end_with_brokers, size_of, warm

WARM_CELLS = ("all16k", "all1")
SETTLE_S = 1.5


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    options = Arguments(__doc__)
    options.add_names("--cells", [cell.name for cell in CELLS])
    options.add_names("--clusters", CLUSTERS)
    options.add_sizes(
        ("--runs", 3, 1, "per cell and cluster"), ("--warm-seconds", 30.0, 1.0, "of a JVM")
    )
    options.add_quick()
    options.add_place()
    options.add_argument("--catch-up-gib", type=float, help="what the empty follower copies; 10")
    options.add_overrides()
    options.add_output("cluster/<date>-<commit>.json")
    return options.parse(arguments)


def chosen_size(options: argparse.Namespace) -> ClusterSize:
    base = QUICK if options.quick else ClusterSize()
    gib = options.catch_up_gib
    return base if gib is None else replace(base, catch_up_gib=gib)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when nothing failed and every bar that was measured is cleared."""
    options = parse_arguments(arguments)
    end_with_brokers()
    size = chosen_size(options)
    own = dict(options.override)
    running: dict[str, Cluster] = {}

    def take(cell: Cell, name: str) -> Figures:
        if cell.fills_memory and not options.quick:
            touch_free_memory()
        return cell.measure(running[name], cell.parameters, size)

    parameters = {
        "runs": options.runs,
        "warm_seconds": options.warm_seconds,
        "overrides": own,
        "size": size_of(size),
    }
    with ExitStack() as stack:
        for name in options.clusters:
            overrides = own if name == OURS else {}
            running[name] = stack.enter_context(CLUSTERS[name](options.place, overrides))
        warm(
            running,
            [cell for cell in CELLS if cell.name in WARM_CELLS],
            options.warm_seconds,
            lambda cell, name: cell.measure(running[name], cell.parameters, QUICK),
        )
        columns = {name: name for name in running}
        report = Report(options, columns, "cluster", parameters=parameters)
        cells = [cell for cell in CELLS if cell.name in options.cells]
        report.measure(cells, options.clusters, options.runs, take, SETTLE_S)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
