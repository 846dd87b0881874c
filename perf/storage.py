"""The cost of many logs: idle, and at a restart; kbroker compared with Apache Kafka 3.9.1.

    python perf/storage.py                      every part, medians of three, about half an hour
    python perf/storage.py idle --partitions 2000
    python perf/storage.py clean killed --quick --brokers kbroker

idle: memory (PSS) and CPU that the partitions of a topic add to a broker nobody talks to. clean:
SIGTERM to exit with every partition just written to, and exec to the moment when every partition
answers ListOffsets. killed: the same start after kill -9 of the whole tree, with --gib of data in
--logs partitions. One broker runs at a time; which of them comes first changes from run to run. The
page cache is warm for both.
"""

import argparse
import json
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.arguments import Arguments
from perf.bars import Bar, Cell, Figures, bars
from perf.brokers import BROKERS, Broker
from perf.frames import random_values, record_batch, request_frame, text
from perf.process_tree import Meter
from perf.raw_client import RawClient
from perf.runner import Report, silent, tell
from perf.topics import create_topic

MEBIBYTE = 1 << 20
LIST_OFFSETS = 2
LATEST = -1
TOPIC = "logs"
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 300.0
CLEAN_MARKER = ".kafka_cleanshutdown"
# A broker has settled when its memory and timers no longer change.
SETTLE_S = 10.0


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    options = Arguments(__doc__)
    options.add_parts(PARTS)
    options.add_sizes(
        ("--runs", 3, 1, ""),
        ("--partitions", 2000, 20, "of idle and clean"),
        ("--logs", 100, 4, "of killed"),
        ("--gib", 10.0, 0.02, "of killed"),
        ("--seconds", 60.0, 1.0, "idle is watched"),
        ("--settle", SETTLE_S, 0.5, "seconds before that"),
    )
    options.add_names("--brokers", BROKERS)
    options.add_quick()
    options.add_place()
    options.add_output()
    options.add_argument("--json", action="store_true")
    return options.parse(arguments)


def all_respond(client: RawClient, partitions: int) -> bool:
    """Whether each partition returns its end offset (ListOffsets 1)."""
    rows = b"".join(struct.pack(">iq", number, LATEST) for number in range(partitions))
    body = struct.pack(">ii", -1, 1) + text(TOPIC) + struct.pack(">i", partitions) + rows
    response = client.call(request_frame(LIST_OFFSETS, 1, body))
    at = 4 + 4 + len(text(TOPIC)) + 4
    entry = struct.Struct(">ihqq")
    codes = [code for _, code, _, _ in entry.iter_unpack(response[at:])]
    assert len(codes) == partitions, len(codes)
    return not any(codes)


def write_to_all(broker: Broker, partitions: int, batch: bytes, rounds: int = 1) -> None:
    with RawClient(broker.address, timeout=60) as client:
        for _ in range(rounds):
            for number in range(partitions):
                client.write(TOPIC, number, batch)


def timed_start(broker: Broker, partitions: int) -> float:
    """Seconds from exec until every partition responds."""
    broker.launch()
    ready = broker.wait_until(lambda client: all_respond(client, partitions), START_TIMEOUT_S)
    return ready - broker.exec_at


def watch(broker: Broker, seconds: float) -> tuple[float, float]:
    """(PSS in MiB, percent of a core) of an idle broker."""
    with Meter(broker.cpu_seconds) as used:
        time.sleep(seconds)
    return broker.pss_bytes() / MEBIBYTE, used.percent


def measure_idle(broker: Broker, options: argparse.Namespace) -> Figures:
    broker.start()
    time.sleep(options.settle)
    memory, cpu = watch(broker, options.seconds)
    create_topic(broker.bootstrap, TOPIC, options.partitions)
    time.sleep(options.settle)
    more_memory, more_cpu = watch(broker, options.seconds)
    return {
        "pss_mib": memory,
        "added_pss_mib": more_memory - memory,
        "cpu_percent": cpu,
        "added_cpu_percent": more_cpu - cpu,
    }


def measure_clean(broker: Broker, options: argparse.Namespace) -> Figures:
    broker.start()
    create_topic(broker.bootstrap, TOPIC, options.partitions)
    write_to_all(broker, options.partitions, record_batch(random_values(10, 100, seed=1)))
    stop_s = stop_cleanly(broker)
    return {"stop_s": stop_s, "start_s": timed_start(broker, options.partitions)}


def measure_killed(broker: Broker, options: argparse.Namespace) -> Figures:
    broker.start()
    create_topic(broker.bootstrap, TOPIC, options.logs)
    batch = record_batch(random_values(900, 1000, seed=1))
    rounds = max(1, round(options.gib * (1 << 30) / options.logs / len(batch)))
    write_to_all(broker, options.logs, batch, rounds)
    broker.kill()
    return {"start_s": timed_start(broker, options.logs)}


def stop_cleanly(broker: Broker) -> float:
    """Seconds from SIGTERM to exit. RuntimeError if the next start has to recover."""
    assert broker.process is not None
    began = time.monotonic()
    broker.process.terminate()
    broker.process.wait(STOP_TIMEOUT_S)
    stop_s = time.monotonic() - began
    broker.halt()
    if not (broker.home / "data" / CLEAN_MARKER).exists():
        raise RuntimeError(f"{broker.name} did not stop in order:\n{broker.tail()}")
    return stop_s


PARTS = {
    cell.name: cell
    for cell in (
        Cell(
            "idle",
            "what the partitions of a topic add to an idle broker",
            measure_idle,
            (
                Bar("added_pss_mib", "<= 60", "added by partitions, MiB"),
                Bar("added_cpu_percent", "<= 1", "added CPU, % of a core"),
                *bars("pss_mib", "cpu_percent"),
            ),
        ),
        Cell(
            "clean",
            "stop, and start until every partition answers",
            measure_clean,
            (Bar("start_s", "<= 0.3x", "start, s"), Bar("stop_s", text="stop, s")),
        ),
        Cell(
            "killed",
            "the same start after kill -9",
            measure_killed,
            (Bar("start_s", "<= 0.5x", "start, s"),),
        ),
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)

    def take(cell: Cell, name: str) -> Figures:
        broker = BROKERS[name](options.place)
        try:
            return cell.measure(broker, options)
        finally:
            broker.stop()

    columns = {name: name for name in options.brokers}
    report = Report(options, columns, say=silent if options.json else tell)
    report.measure([PARTS[part] for part in options.parts], options.brokers, options.runs, take)
    code = report.end()
    if options.json:
        print(json.dumps({name: cell["median"] for name, cell in report.cells.items()}))
    return code


if __name__ == "__main__":
    sys.exit(main())
