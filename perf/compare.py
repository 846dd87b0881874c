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
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.arguments import Arguments
from perf.bars import OURS, Cell
from perf.brokers import Broker
from perf.cells import CELLS, QUICK, Size
from perf.kafka_distribution import VERSION
from perf.peers import ALL, PEERS
from perf.results_table import results_table
from perf.runner import Report, Take, end_with_brokers, size_of, warm

OVERRIDES = {"log.segment.delete.delay.ms": "1000", "group.initial.rebalance.delay.ms": "0"}
WARM_CELLS = ("sat16k", "one16", "produce1k_lz4", "consume100")
WARM = Size(1.5, 0.1, 500_000, 200_000)
# The time until a deleted topic has left the disk, with the delay above.
SETTLE_S = 1.5


def options_of(doc: str | None, cells: Sequence[Cell], brokers: Iterable[str]) -> Arguments:
    """What a comparison with Kafka is told."""
    options = Arguments(doc)
    options.add_names("--cells", [cell.name for cell in cells])
    options.add_sizes(
        ("--runs", 5, 1, "per cell and broker"), ("--warm-seconds", 30.0, 1.0, "of a JVM")
    )
    options.add_quick()
    options.add_names(
        "--brokers", brokers, "kbroker,kafka", about="kfake and tansu add columns (perf/peers.py)"
    )
    options.add_place()
    options.add_overrides("--kbroker-override")
    options.add_output("<date>-<commit>.json")
    return options


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    options = options_of(__doc__, CELLS, ALL)
    options.add_argument(
        "--table", action="store_true", help="measure nothing: print the newest results as Markdown"
    )
    return options.parse(arguments)


def compare(
    options: argparse.Namespace,
    known: Sequence[Cell],
    kinds: Mapping[str, type[Broker]],
    suffix: str = "",
    warm_cells: Sequence[str] = (),
) -> int:
    """Measure the chosen cells; returns the exit code. known: all cells. warm_cells: what warms
    the brokers, each cell itself by default.
    """
    end_with_brokers()
    size = QUICK if options.quick else Size()
    own = dict(options.kbroker_override)
    heads = {name: f"Kafka {VERSION}" if name == "kafka" else name for name in options.brokers}
    parameters = {
        "runs": options.runs,
        "warm_seconds": options.warm_seconds,
        "overrides": OVERRIDES,
        "kbroker_overrides": own,
        "size": size_of(size),
    }
    report = Report(options, heads, "", suffix, unjudged=tuple(PEERS), parameters=parameters)
    for settings, cells in by_settings([one for one in known if one.name in options.cells]):
        with ExitStack() as stack:
            running: dict[str, Broker] = {}
            for name in options.brokers:
                overrides = OVERRIDES | (settings | own if name == OURS else {})
                running[name] = stack.enter_context(kinds[name](options.place, overrides))
            warming = [one for one in known if one.name in warm_cells] or cells
            size_warm = WARM if options.warm_seconds > 5 else QUICK
            warm(running, warming, options.warm_seconds, taking(running, size_warm))
            report.measure(cells, options.brokers, options.runs, taking(running, size), SETTLE_S)
    return report.end()


def by_settings(cells: Sequence[Cell]) -> list[tuple[dict[str, str], list[Cell]]]:
    """The cells of each setting of kbroker, which have brokers of their own."""
    groups: dict[tuple[tuple[str, str], ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell.settings.items()), []).append(cell)
    return [(dict(settings), group) for settings, group in groups.items()]


def taking(running: Mapping[str, Broker], size: Size) -> Take:
    return lambda cell, name: cell.measure(running[name], cell.parameters, size)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when nothing failed and, both brokers measured, every bar was cleared."""
    options = parse_arguments(arguments)
    if options.table:
        print(results_table())
        return 0
    return compare(options, CELLS, ALL, warm_cells=WARM_CELLS)


if __name__ == "__main__":
    sys.exit(main())
