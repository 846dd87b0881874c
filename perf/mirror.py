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

import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.arguments import Arguments
from perf.bars import Bar, Cell, Figures
from perf.brokers import LOG4J, KbrokerBroker
from perf.frames import half_random_values
from perf.kafka_distribution import ROOT, kafka_libraries
from perf.process_tree import Meter, cpu_seconds
from perf.runner import Report
from perf.topics import count_records, create_topic, delete_topic, fresh_name
from perf.waiting import wait_until

KAFKA = "2.7.2"
PARTITIONS = 4
VALUE_BYTES = 100
DISTINCT = 1000
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


def fill(bootstrap: str, way: Way, records: int) -> str:
    """A topic with that many records."""
    from kbroker.client import KafkaProducer

    topic = fresh_name("mirror")
    create_topic(bootstrap, topic, PARTITIONS)
    values = half_random_values(DISTINCT, VALUE_BYTES, seed=1)
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


def measure(way: Way, source: str, target: str, records: int) -> Figures:
    """One mirror, from its start to its last record. MB are those of values."""
    topic = fill(source, way, records)
    create_topic(target, topic, PARTITIONS)
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        with (home / "log").open("wb") as log:
            started = command(way, home, source, target, topic)
            mirror = subprocess.Popen(started, stdout=log, stderr=log, cwd=ROOT)
        try:
            first = _await(target, topic, records // 10, mirror, home / "log")
            with Meter(lambda: cpu_seconds(mirror.pid)) as used:
                last = _await(target, topic, records, mirror, home / "log")
        finally:
            mirror.terminate()
            mirror.wait(60)
    assert last == records, f"{last} records instead of {records}"
    for bootstrap in (source, target):
        delete_topic(bootstrap, topic)
    copied = (last - first) or last  # of few records all arrive at once
    return {
        "mb_per_s": copied * VALUE_BYTES / used.seconds / 1e6,
        "cpu_us_per_record": used.cpu_s / copied * 1e6,
    }


def _await(target: str, topic: str, count: int, mirror: subprocess.Popen[bytes], log: Path) -> int:
    copied = 0

    def is_there() -> bool:
        nonlocal copied
        copied = count_records(target, topic, range(PARTITIONS))
        if copied < count and mirror.poll() is not None:
            raise RuntimeError(f"the mirror ended:\n{log.read_text()[-2000:]}")
        return copied >= count

    def what() -> str:
        return f"{copied} of {count} records are copied:\n{log.read_text()[-2000:]}"

    wait_until(is_there, what, WAIT_S, 0.05)
    return copied


CELL = Cell(
    "mirror",
    "mirror makers, records of 100 B between two brokers",
    measure,
    tuple(
        bar
        for ours, other in PAIRS
        for bar in (
            Bar("mb_per_s", ">= 2x, aim 4x", ours=ours, other=other),
            Bar("cpu_us_per_record", "<= 0.5x, aim 0.25x", ours=ours, other=other),
        )
    ),
    {"value_bytes": VALUE_BYTES, "partitions": PARTITIONS},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    options = Arguments(__doc__)
    options.add_names("--ways", [way.name for way in WAYS], separator=";")
    options.add_sizes(("--runs", 3, 1, ""))
    options.add_argument("--divide", type=int, default=1, help="records of all runs by this")
    options.add_quick()
    options.add_place()
    options.add_output()
    chosen = options.parse(arguments)
    ways = {way.name: way for way in WAYS}
    report = Report(chosen)
    place = tempfile.mkdtemp(dir=chosen.place)
    with KbrokerBroker(place) as source, KbrokerBroker(place) as target:

        def take(cell: Cell, name: str) -> Figures:
            records = 20_000 if chosen.quick else ways[name].records // chosen.divide
            return measure(ways[name], source.bootstrap, target.bootstrap, records)

        report.measure([CELL], chosen.ways, chosen.runs, take)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
