#!/usr/bin/env python3
"""Mirror makers: kbroker's kafka-mirror-maker beside Apache Kafka 2.7.2's, between two kbrokers.

    python perf/mirror.py                     100-byte records, medians of three
    python perf/mirror.py --quick             toy size, to see that it all runs
    python perf/client.py --cells mirror      the same

A topic of four partitions is filled with records of 100 bytes, in batches of 16 KiB as producers
send them by default (with lz4, of 128 KiB); each mirror copies all of it to a topic of as many
partitions, in a group of its own. Both get the same settings. The time counts from when a tenth has
arrived to the end, so that the start of a JVM and its warming up do not; the CPU time is that of
the mirror's process. The mirrors take turns.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.brokers import LOG4J, KbrokerBroker
from perf.client import Bar, condition_text, judge, write_result
from perf.kafka_distribution import ROOT, kafka_libraries
from perf.process_tree import cpu_seconds

KAFKA = "2.7.2"
PARTITIONS = 4
VALUE_BYTES = 100
DISTINCT = 1000
LEAST, AIM = 2.0, 4.0
TITLE = "mirror makers, records of 100 B between two brokers"
WAIT_S = 300.0
PRODUCER = {"batch.size": 131_072, "linger.ms": 5, "buffer.memory": 64 << 20}
JVM = ("-Xmx512m", "-Xms512m", "-XX:+UseG1GC")


class Way(NamedTuple):
    """A mirror. words: more of its command line. records: of a run. keyed: they have keys."""

    name: str
    words: tuple[str, ...]
    records: int
    keyed: bool = False
    codec: str = "none"


WAYS = (
    Way("kbroker", (), 10_000_000),
    Way("Kafka", (), 2_000_000),
    Way("kbroker keys", (), 10_000_000, True),
    Way("Kafka keys", (), 2_000_000, True),
    Way("kbroker keys, lz4", (), 10_000_000, True, "lz4"),
    Way("kbroker keys, lz4, --keep.partitions", ("--keep.partitions",), 10_000_000, True, "lz4"),
    Way("Kafka keys, lz4", (), 2_000_000, True, "lz4"),
)
PAIRS = (
    ("kbroker", "Kafka"),
    ("kbroker keys", "Kafka keys"),
    ("kbroker keys, lz4", "Kafka keys, lz4"),
    ("kbroker keys, lz4, --keep.partitions", "Kafka keys, lz4"),
)


class Run(NamedTuple):
    """mb_per_s: of values. cpu_us: of the mirror, a record."""

    mb_per_s: float
    cpu_us: float


def fill(bootstrap: str, way: Way, records: int) -> str:
    """A topic with that many records."""
    from kbroker.client import KafkaProducer
    from perf.client import create_topic

    topic = create_topic(bootstrap)
    # Half of a value repeats, as records of a log do.
    half = VALUE_BYTES // 2
    values = [os.urandom(half) + b"x" * (VALUE_BYTES - half) for _ in range(DISTINCT)]
    keys = [uuid.uuid4().bytes for _ in range(DISTINCT)] if way.keyed else None
    with KafkaProducer(
        bootstrap_servers=bootstrap,
        buffer_memory=64 << 20,
        compression_type=way.codec,
        batch_size=16_384 if way.codec == "none" else 131_072,
    ) as producer:
        for _ in range(records // DISTINCT):
            producer.send_many(topic, values, keys)
        producer.flush(WAIT_S)
    return topic


def records_in(bootstrap: str, topic: str) -> int:
    """In all of its partitions."""
    from kbroker.client.batches.offsets import LATEST, list_offsets
    from kbroker.client.connections.cluster import Cluster

    with Cluster(bootstrap) as cluster:
        found = list_offsets(cluster, {(topic, n): LATEST for n in range(PARTITIONS)})
    return sum(row.offset for row in found.values())


def command(way: Way, home: Path, source: str, target: str, topic: str) -> list[str]:
    consumer, producer = home / "consumer.properties", home / "producer.properties"
    _write(consumer, bootstrap=source, **{"group.id": topic, "auto.offset.reset": "earliest"})
    _write(producer, bootstrap=target, **PRODUCER, **{"compression.type": way.codec})
    words = ["--consumer.config", str(consumer), "--producer.config", str(producer)]
    words += ["--whitelist", topic, *way.words]
    if not way.name.startswith("Kafka"):
        return [str(ROOT / "bin" / "kafka-mirror-maker.sh"), *words]
    (home / "log4j.properties").write_text(LOG4J)
    log4j = f"-Dlog4j.configuration=file:{home / 'log4j.properties'}"
    jars = f"{kafka_libraries(version=KAFKA)}/*"
    return ["java", *JVM, log4j, "-cp", jars, "kafka.tools.MirrorMaker", *words]


def _write(path: Path, bootstrap: str, **settings: Any) -> None:
    rows = {"bootstrap.servers": bootstrap, **settings}
    path.write_text("".join(f"{name}={value}\n" for name, value in rows.items()))


def measure(way: Way, source: str, target: str, topic: str, records: int) -> Run:
    """One mirror, from its start to its last record."""
    from perf.client import create_topic, delete_topic

    create_topic(target, topic)
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        with (home / "log").open("wb") as log:
            started = command(way, home, source, target, topic)
            mirror = subprocess.Popen(started, stdout=log, stderr=log, cwd=ROOT)
        try:
            first = _await(target, topic, records // 10, mirror, home / "log")
            cpu, begun = cpu_seconds(mirror.pid), time.perf_counter()
            last = _await(target, topic, records, mirror, home / "log")
            seconds, cpu = time.perf_counter() - begun, cpu_seconds(mirror.pid) - cpu
        finally:
            mirror.terminate()
            mirror.wait(60)
    assert last == records, f"{last} records instead of {records}"
    delete_topic(target, topic)
    copied = (last - first) or last  # of few records all arrive at once
    return Run(copied * VALUE_BYTES / seconds / 1e6, cpu / copied * 1e6)


def _await(target: str, topic: str, count: int, mirror: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = records_in(target, topic)
        if found >= count:
            return found
        if mirror.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError(f"{found} of {count} records were copied:\n{log.read_text()[-2000:]}")


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """All ways; rates and CPU times by name."""
    chosen = options.ways.split(";")
    ways = [way for way in WAYS if way.name in chosen]
    runs: dict[str, list[Run]] = {way.name: [] for way in ways}
    place = tempfile.mkdtemp(dir=options.place)
    with KbrokerBroker(place) as source, KbrokerBroker(place) as target:
        for _ in range(options.runs):
            for way in ways:
                records = 20_000 if options.quick else way.records // options.divide
                topic = fill(source.bootstrap, way, records)
                found = measure(way, source.bootstrap, target.bootstrap, topic, records)
                runs[way.name].append(found)
                from perf.client import delete_topic

                delete_topic(source.bootstrap, topic)
    return tell(runs)


def tell(runs: dict[str, list[Run]]) -> dict[str, Any]:
    print(f"mirror: values of {VALUE_BYTES} bytes, {PARTITIONS} partitions")
    rates = {name: [run.mb_per_s for run in some] for name, some in runs.items()}
    for name, some in runs.items():
        low, high = min(rates[name]), max(rates[name])
        cpu = median(run.cpu_us for run in some)
        print(
            f"  {name:38} {median(rates[name]):>8.1f} MB/s ({low:.1f} to {high:.1f}), "
            f"{cpu:.3f} µs CPU a record"
        )
    used = {name: [run.cpu_us for run in some] for name, some in runs.items()}
    conditions = []
    for ours, theirs in PAIRS:
        if rates.get(ours) and rates.get(theirs):
            conditions.append(judge(Bar(ours, theirs, LEAST, AIM), "MB/s", rates))
            lower = Bar(ours, theirs, 1 / LEAST, 1 / AIM)
            conditions.append(judge(lower, "CPU µs/record", used, higher_is_better=False))
    for one in conditions:
        print(condition_text(one))
    return {"title": TITLE, "rates": rates, "cpu_us": used, "conditions": conditions}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ways", default=";".join(way.name for way in WAYS), help="with ;")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--divide", type=int, default=1, help="records of all runs by this")
    parser.add_argument("--quick", action="store_true", help="toy size; writes no result")
    parser.add_argument("--place", default="/tmp", help="where the brokers' data goes")
    parser.add_argument("--output", help="a JSON file for the result")
    options = parser.parse_args(arguments)
    options.runs = 1 if options.quick else options.runs
    found = compare(options)
    if options.output:
        write_result(options.output, {"mirror": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
