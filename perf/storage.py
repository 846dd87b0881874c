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
import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf import process_tree
from perf.brokers import BROKERS, Broker
from perf.coordination import frame, text
from perf.frames import random_values, record_batch
from perf.raw_client import RawClient
from perf.topics import create_topic

MEBIBYTE = 1 << 20
LIST_OFFSETS = 2
LATEST = -1
NOT_LEADER = 6
# How long a new partition may have no leader.
LEADER_S = 30.0
TOPIC = "logs"
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 300.0
CLEAN_MARKER = ".kafka_cleanshutdown"
# A broker has settled when its memory and timers no longer change.
SETTLE_S = 10.0

Figures = dict[str, float]
# part -> figure -> (bound, whether it is of the ratio to Kafka)
BARS = {
    "idle": {"added_pss_mib": (60.0, False), "added_cpu_percent": (1.0, False)},
    "clean": {"start_s": (0.3, True)},
    "killed": {"start_s": (0.5, True)},
}


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("parts", nargs="*", help="of: " + ", ".join(PARTS))
    parser.add_argument("--runs", type=int, help="3, or 1 with --quick")
    parser.add_argument("--partitions", type=int, help="of idle and clean; 2000, 20 with --quick")
    parser.add_argument("--logs", type=int, help="of killed; 100, or 4 with --quick")
    parser.add_argument("--gib", type=float, help="of killed; 10, or 0.02 with --quick")
    parser.add_argument("--seconds", type=float, help="idle is watched; 60, or 1 with --quick")
    parser.add_argument("--brokers", default="kbroker,kafka")
    parser.add_argument("--quick", action="store_true", help="toy size, to see that it runs")
    parser.add_argument("--place", default="/tmp", help="where the data directories go")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    quick = chosen.quick
    for name, full, toy in (
        ("runs", 3, 1),
        ("partitions", 2000, 20),
        ("logs", 100, 4),
        ("gib", 10.0, 0.02),
        ("seconds", 60.0, 1.0),
    ):
        if getattr(chosen, name) is None:
            setattr(chosen, name, toy if quick else full)
    chosen.settle = 0.5 if quick else SETTLE_S
    chosen.parts = chosen.parts or list(PARTS)
    if unknown := sorted(set(chosen.parts) - set(PARTS)):
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    chosen.brokers = chosen.brokers.split(",")
    if unknown := sorted(set(chosen.brokers) - set(BROKERS)):
        parser.error(f"no broker {', '.join(unknown)}; there are {', '.join(sorted(BROKERS))}")
    return chosen


def all_respond(client: RawClient, partitions: int) -> bool:
    """Whether each partition returns its end offset (ListOffsets 1)."""
    rows = b"".join(struct.pack(">iq", number, LATEST) for number in range(partitions))
    body = struct.pack(">ii", -1, 1) + text(TOPIC) + struct.pack(">i", partitions) + rows
    response = client.call(frame(LIST_OFFSETS, 1, body))
    at = 4 + 4 + len(text(TOPIC)) + 4
    entry = struct.Struct(">ihqq")
    codes = [code for _, code, _, _ in entry.iter_unpack(response[at:])]
    assert len(codes) == partitions, len(codes)
    return not any(codes)


def write_to_all(broker: Broker, partitions: int, batch: bytes, rounds: int = 1) -> None:
    with RawClient(broker.address, timeout=60) as client:
        for _ in range(rounds):
            for number in range(partitions):
                deadline = time.monotonic() + LEADER_S
                while code := client.produce(TOPIC, number, batch):
                    if code != NOT_LEADER or time.monotonic() > deadline:
                        raise RuntimeError(f"{TOPIC}-{number} refuses a batch with error {code}")
                    time.sleep(0.05)


def timed_start(broker: Broker, partitions: int) -> float:
    """Seconds from exec until every partition responds."""
    broker.launch()
    ready = broker.wait_until(lambda client: all_respond(client, partitions), START_TIMEOUT_S)
    return ready - broker.exec_at


def watch(broker: Broker, seconds: float) -> tuple[float, float]:
    """(PSS in MiB, percent of a core) of an idle broker."""
    before, began = broker.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    percent = 100 * (broker.cpu_seconds() - before) / (time.monotonic() - began)
    return broker.pss_bytes() / MEBIBYTE, percent


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
    kill_tree(broker)
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


def kill_tree(broker: Broker) -> None:
    assert broker.process is not None
    for pid in process_tree.descendants(broker.process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    broker.halt()


PARTS: dict[str, Callable[[Broker, argparse.Namespace], Figures]] = {
    "idle": measure_idle,
    "clean": measure_clean,
    "killed": measure_killed,
}


def measure(part: str, options: argparse.Namespace) -> dict[str, Figures]:
    """Medians of each figure, by broker."""
    runs: dict[str, list[Figures]] = {name: [] for name in options.brokers}
    for run in range(options.runs):
        for name in options.brokers if run % 2 == 0 else reversed(options.brokers):
            broker = BROKERS[name](options.place)
            try:
                runs[name].append(PARTS[part](broker, options))
            finally:
                broker.stop()
    return {
        name: {figure: median(run[figure] for run in found) for figure in found[0]}
        for name, found in runs.items()
    }


def verdict(part: str, figure: str, found: dict[str, Figures]) -> str:
    """The ratio to Kafka, and whether a bar is cleared."""
    ours = found.get("kbroker", {}).get(figure)
    theirs = found.get("kafka", {}).get(figure)
    ratio = ours / theirs if ours is not None and theirs else None
    shown = "" if ratio is None else f"{ratio:.2f}x"
    if figure not in BARS[part] or ours is None:
        return shown
    bound, is_ratio = BARS[part][figure]
    value = ratio if is_ratio else ours
    if value is None:
        return shown
    sign = "x" if is_ratio else ""
    return f"{shown}  {'met' if value <= bound else 'MISSED'} (at most {bound:g}{sign})"


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    results = {}
    for part in options.parts:
        found = results[part] = measure(part, options)
        if options.json:
            continue
        for figure in next(iter(found.values())):
            values = "".join(f"{name} {found[name][figure]:>9.3f}  " for name in options.brokers)
            print(f"{part:<8} {figure:<18} {values} {verdict(part, figure, found)}", flush=True)
    if options.json:
        print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
