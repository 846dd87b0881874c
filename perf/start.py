"""Exec to first acknowledged record, and the memory of the idle process tree (PSS).

    python perf/start.py --broker kbroker --runs 5

The clock starts before exec; a client asks for a topic until it has a leader and writes one record
with acks=1. Formatting Kafka's data directory is not counted. Memory is read --idle seconds later.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.arguments import Arguments, positive
from perf.bars import Bar, Cell, Figures
from perf.brokers import BROKERS, Broker
from perf.runner import Report, silent, tell

MEBIBYTE = 1 << 20


def measure_start(broker: Broker, idle_s: float) -> Figures:
    """Launch, measure and stop a new broker."""
    try:
        broker.launch()
        start_s = broker.wait_first_acknowledged_record()
        time.sleep(idle_s)
        return {"start_s": start_s, "pss_mib": broker.pss_bytes() / MEBIBYTE}
    finally:
        broker.stop()


CELL = Cell(
    "start",
    "s from exec to the first acknowledged record, MiB of PSS when idle",
    measure_start,
    (Bar("start_s"), Bar("pss_mib")),
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = Arguments(__doc__)
    options.add_argument("--broker", choices=sorted(BROKERS), default="kbroker")
    options.add_argument("--runs", type=positive(int), default=1)
    options.add_argument("--idle", type=float, default=2.0, help="seconds before memory is read")
    options.add_place()
    options.add_output()
    options.add_argument("--json", action="store_true")
    chosen = options.parse(arguments)
    report = Report(chosen, say=silent if chosen.json else tell)
    kind = BROKERS[chosen.broker]
    report.measure(
        [CELL], [chosen.broker], chosen.runs,
        lambda _cell, _name: measure_start(kind(chosen.place), chosen.idle),
    )  # fmt: skip
    if chosen.json:
        runs = report.cells["start"]["results"][chosen.broker]["runs"]
        print(json.dumps({"broker": chosen.broker, "runs": runs}))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
