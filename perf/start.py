"""Exec to first acknowledged record, and the memory of the idle process tree (PSS).

    python perf/start.py --broker kbroker --runs 5

The clock starts before exec; a client asks for a topic until it has a leader and writes one record
with acks=1. Formatting Kafka's data directory is not counted. Memory is read --idle seconds later.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.brokers import BROKERS, Broker

MEBIBYTE = 1 << 20


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--broker", choices=sorted(BROKERS), default="kbroker")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--idle", type=float, default=2.0, help="seconds before memory is read")
    parser.add_argument("--place", default="/tmp", help="where the data directory goes")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.runs < 1:
        parser.error("--runs must be at least 1")
    return chosen


def measure_start(broker: Broker, idle_s: float) -> dict[str, Any]:
    """Launch, measure and stop a new broker."""
    try:
        broker.launch()
        start_s = broker.wait_first_acknowledged_record()
        time.sleep(idle_s)
        return {"start_s": start_s, "pss_mib": broker.pss_bytes() / MEBIBYTE}
    finally:
        broker.stop()


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    kind = BROKERS[options.broker]
    runs = [measure_start(kind(options.place), options.idle) for _ in range(options.runs)]
    if options.json:
        print(json.dumps({"broker": options.broker, "runs": runs}))
        return 0
    for figure, text in (
        ("start_s", "s from exec to the first acknowledged record"),
        ("pss_mib", "MiB PSS, idle"),
    ):
        values = [run[figure] for run in runs]
        print(f"{median(values):.3f} {text} (of {len(values)}: {min(values):.3f} to", end=" ")
        print(f"{max(values):.3f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
