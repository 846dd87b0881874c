"""Spark with kbroker's data source compared with Spark's own Kafka connector.

    python -m perf.spark_compare                 # the table, medians of five
    python -m perf.spark_compare --quick         # small topics, one run: does it work
    python -m perf.spark_compare --plain         # in a session as users open it
    python -m perf.spark_compare --case read-100B --runs 9

One broker (Apache Kafka 3.9.1, or kbroker with --broker kbroker), one JVM, which each case warms
before it is measured; the two sides of a case take turns, and so do cases that a bound compares
(``perf.spark_bounds``); a ratio is the median of those of the rounds. What a case is: a function
``(bench, side) -> Sample`` in CASES; side is ``kafka`` (the connector) or ``kbroker``. CPU seconds
are those of this process and all below it: the JVM and Spark's Python workers, not the broker.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perf import process_tree
from perf.brokers import Broker, KafkaBroker, KbrokerBroker
from perf.kafka_distribution import ROOT, VERSION
from perf.machine import commit_text, machine
from perf.spark_bounds import bound_lines, in_turns, median_ratio
from perf.spark_ceilings import CEILING_CASES, client_processes
from perf.spark_connector import connector_jars
from perf.spark_load import LOAD_CASES, OURS, THEIRS, CommandSession

SIDES = (THEIRS, OURS)
PARTITIONS = 2
MASTER = "local[2]"
KEY_BYTES = 16
ROWS_PER_WRITE = 20_000
# The table also has the figures without the configs advised in docs/spark.md.
PLAIN_TOO = ("read-100B", "read-1KB")
_PLAIN = " plain"
# The JVM compiles a case's code for that long: in a second run still for a third of a core.
WARM_RUNS = 3
SETTLE_MAX_S, SETTLE_WINDOW_S, SETTLED_CORES = 10.0, 0.5, 0.05


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement. rows: 0 if only time counts. python_seconds: CPU of Spark's workers."""

    seconds: float
    cpu_seconds: float
    rows: int = 0
    python_seconds: float = 0.0

    @property
    def value(self) -> float:
        """Rows per second, or seconds."""
        return self.rows / self.seconds if self.rows else self.seconds


@dataclass(frozen=True, slots=True)
class Case:
    """at_least: the target ratio; more is always better. sides: what can be measured."""

    name: str
    run: Callable[[Bench, str], Sample]
    at_least: float | None = None
    sides: tuple[str, ...] = SIDES


class Bench:
    """The shared parts of cases: the session, the broker and its topics, which are filled once."""

    def __init__(self, spark: Any, broker: Broker, place: Path, quick: bool) -> None:
        self.spark = spark
        self.place = place
        self.broker = broker
        self.quick = quick
        self._topics: dict[int, tuple[str, int]] = {}
        self._cached: Any = None
        self._commands: CommandSession | None = None

    def rows_of(self, value_bytes: int) -> int:
        full = 8_000_000 if value_bytes <= 100 else 2_000_000
        return full // 40 if self.quick else full

    def topic_of(self, value_bytes: int) -> tuple[str, int]:
        """(a topic with such values, its rows)."""
        if value_bytes not in self._topics:
            name, rows = f"read-{value_bytes}", self.rows_of(value_bytes)
            create_topic(self.broker.bootstrap, name)
            fill_topic(self.broker.bootstrap, name, rows, value_bytes)
            self._topics[value_bytes] = (name, rows)
        return self._topics[value_bytes]

    @property
    def commands(self) -> CommandSession:
        """Started by the first load or recount: earlier cases are measured without it."""
        if self._commands is None:
            self._commands = CommandSession(MASTER)
        return self._commands

    def close(self) -> None:
        """Stop what the cases have started, except the session."""
        if self._commands is not None:
            self._commands.close()

    def reader(self, side: str, topic: str) -> Any:
        reader = self.spark.read.format(side).option("subscribe", topic)
        return reader.option("kafka.bootstrap.servers", self.broker.bootstrap)

    def cached_rows(self) -> tuple[Any, int]:
        """A cached DataFrame to write: a key and 100 B of value."""
        rows = 125_000 if self.quick else 5_000_000
        if self._cached is None:
            value = "repeat(substr(sha2(cast(id AS string), 256), 1, 50), 2)"
            frame = self.spark.range(0, rows, 1, PARTITIONS).selectExpr(
                "cast(id AS string) AS key", f"{value} AS value"
            )
            self._cached = frame.cache()
            self._cached.count()
        return self._cached, rows

    @contextmanager
    def measured(self, rows: int = 0) -> Iterator[list[Sample]]:
        """Yields a list and puts one Sample into it."""
        self.settle()
        found: list[Sample] = []
        cpu, python, begun = self._cpu_seconds(), self._python_seconds(), time.perf_counter()
        yield found
        seconds = time.perf_counter() - begun
        python = self._python_seconds() - python
        found.append(Sample(seconds, self._cpu_seconds() - cpu, rows, python))

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder for the output of a run, removed after it."""
        with tempfile.TemporaryDirectory(dir=self.place) as place:
            yield Path(place)

    def settle(self) -> None:
        """Wait until the JVM has finished compiling and collecting after the last run, so that it
        does not count for the next one; SETTLE_MAX_S at most.
        """
        deadline = time.monotonic() + SETTLE_MAX_S
        while time.monotonic() < deadline:
            before = process_tree.cpu_seconds(os.getpid())
            time.sleep(SETTLE_WINDOW_S)
            used = process_tree.cpu_seconds(os.getpid()) - before
            if used <= SETTLED_CORES * SETTLE_WINDOW_S:
                return

    def _cpu_seconds(self) -> float:
        """The broker is a child of this process, too."""
        return process_tree.cpu_seconds(os.getpid()) - self.broker.cpu_seconds()

    def _python_seconds(self) -> float:
        """The Python workers of the cases' session are the children of its JVM, without those of
        loads.
        """
        jvm = self.spark.sparkContext._gateway.proc.pid
        return process_tree.cpu_seconds(jvm) - process_tree.cpu_seconds_of(jvm)


# -- topics


def create_topic(bootstrap: str, name: str, partitions: int = PARTITIONS, **config: str) -> Any:
    """config: of the topic, with _ for dots. Returns the client that created it."""
    from confluent_kafka.admin import AdminClient, NewTopic

    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)
    return admin


@contextmanager
def passing_topic(bootstrap: str) -> Iterator[str]:
    """A topic to write to, whose files are deleted immediately after it: later they would slow down
    the next run, and together fill the disk.
    """
    name = f"write-{uuid.uuid4().hex[:8]}"
    admin = create_topic(bootstrap, name, file_delete_delay_ms="0")
    yield name
    admin.delete_topics([name])[name].result(30)


def fill_topic(bootstrap: str, name: str, rows: int, value_bytes: int) -> None:
    """Keys of 16 bytes, values half random; uncompressed, to the partitions in turn."""
    import pyarrow as pa

    from kbroker.client.batches.arrow import ArrowProducer
    from kbroker.client.connections.cluster import Cluster

    source = random.Random(7)
    values = [
        source.randbytes(value_bytes // 2) + b"x" * (value_bytes - value_bytes // 2)
        for _ in range(ROWS_PER_WRITE)
    ]
    keys = [source.randbytes(KEY_BYTES) for _ in range(ROWS_PER_WRITE)]
    columns = {"key": pa.array(keys), "value": pa.array(values)}
    with Cluster(bootstrap) as cluster, ArrowProducer(cluster, topic=name) as producer:
        for number in range(-(-rows // ROWS_PER_WRITE)):
            count = min(ROWS_PER_WRITE, rows - number * ROWS_PER_WRITE)
            place = pa.array([number % PARTITIONS] * ROWS_PER_WRITE, pa.int32())
            producer.write(pa.record_batch({**columns, "partition": place}).slice(0, count))
        producer.flush()


# -- cases


def read_noop(value_bytes: int) -> Callable[[Bench, str], Sample]:
    """Every column of a whole topic into a sink that does nothing."""

    def run(bench: Bench, side: str) -> Sample:
        topic, rows = bench.topic_of(value_bytes)
        with bench.measured(rows) as found:
            bench.reader(side, topic).load().write.format("noop").mode("overwrite").save()
        return found[0]

    return run


def read_raw(value_bytes: int) -> Callable[[Bench, str], Sample]:
    """The same records to Arrow and discarded, with a process for each partition, without Spark."""

    def run(bench: Bench, side: str) -> Sample:
        topic, rows = bench.topic_of(value_bytes)
        work = [(bench.broker.bootstrap, topic, partition) for partition in range(PARTITIONS)]
        with client_processes(PARTITIONS) as pool:
            with bench.measured(rows) as found:
                seen = sum(pool.map(_read_partition, work, chunksize=1))
        assert seen == rows, (seen, rows)
        return found[0]

    return run


def _read_partition(work: tuple[str, str, int]) -> int:
    from kbroker.client.batches.arrow import read_arrow
    from kbroker.client.batches.offsets import LATEST, list_offsets
    from kbroker.client.connections.cluster import Cluster

    bootstrap, topic, partition = work
    with Cluster(bootstrap) as cluster:
        end = list_offsets(cluster, {(topic, partition): LATEST})[topic, partition].offset
        return sum(b.num_rows for b in read_arrow(cluster, topic, partition, 0, end))


def trigger_p50(bench: Bench, side: str) -> Sample:
    """The median micro-batch of a few records, noop sink: the cost of each trigger."""
    topic, _ = bench.topic_of(100)
    starts = {topic: dict.fromkeys(map(str, range(PARTITIONS)), 0)}
    reader = bench.spark.readStream.format(side).option("subscribe", topic)
    reader = reader.option("kafka.bootstrap.servers", bench.broker.bootstrap)
    reader = reader.option("startingOffsets", json.dumps(starts))
    return median_trigger(bench, reader.option("maxOffsetsPerTrigger", "100"))


def median_trigger(bench: Bench, reader: Any) -> Sample:
    """The duration of a micro-batch of that stream into the noop sink, after the first ones."""
    batches = 12 if bench.quick else 60
    with bench.folder() as place, bench.measured() as found:
        query = (
            reader.load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(place))
            .trigger(processingTime="0 seconds")
            .start()
        )
        seen: dict[int, int] = {}
        deadline = time.monotonic() + 120
        while len(seen) < batches and time.monotonic() < deadline and query.isActive:
            for one in query.recentProgress:
                if one["numInputRows"]:
                    seen[one["batchId"]] = one["durationMs"]["triggerExecution"]
            time.sleep(0.2)
        query.stop()
    assert len(seen) >= batches, f"only {len(seen)} batches: {query.exception()}"
    steady = [ms for batch, ms in sorted(seen.items()) if batch >= 3]
    return Sample(statistics.median(steady) / 1000, found[0].cpu_seconds)


def write_cached(bench: Bench, side: str) -> Sample:
    """Cached rows of 100 B to a new topic, every row acknowledged by all replicas."""
    frame, rows = bench.cached_rows()
    with passing_topic(bench.broker.bootstrap) as topic:
        writer = frame.write.format(side).mode("append").option("topic", topic)
        writer = writer.option("kafka.bootstrap.servers", bench.broker.bootstrap)
        with bench.measured(rows) as found:
            writer.save()
    return found[0]


CASES = [
    Case("read-100B", read_noop(100), 3.0),
    Case("read-1KB", read_noop(1024), 1.5),
    Case("raw-100B", read_raw(100), sides=(OURS,)),
    Case("raw-1KB", read_raw(1024), sides=(OURS,)),
    Case("trigger-p50", trigger_p50, 1.0),
    Case("write-cached", write_cached, 1.5),
    *(Case(*one) for one in LOAD_CASES + CEILING_CASES),
]


# -- the run


def session(place: Path, *, plain: bool = False) -> Any:
    """Two cores, as in the measurements it is compared with. plain: without the advice in
    docs/spark.md.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )
    from pyspark.sql import SparkSession

    from kbroker.spark import builder as advised

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "4g",
        "spark.jars": ",".join(map(str, connector_jars())),
        "spark.local.dir": str(place),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }
    builder = SparkSession.builder if plain else advised()
    builder = builder.master(MASTER).appName("kbroker-perf")
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def measure(bench: Bench, cases: list[Case], runs: int) -> dict[str, dict[str, list[Sample]]]:
    """By case and side: all in turn, after WARM_RUNS of each that do not count."""
    found: dict[str, dict[str, list[Sample]]] = {
        case.name: {side: [] for side in case.sides} for case in cases
    }
    for number in range(runs + WARM_RUNS):
        for case in cases:
            for side in case.sides:
                sample = case.run(bench, side)
                if number >= WARM_RUNS:
                    found[case.name][side].append(sample)
    return found


def row_of(case: Case, found: dict[str, list[Sample]]) -> dict[str, Any]:
    """Medians and the ratio; the ratio of times is inverted, so that more is better."""
    runs = {side: [sample.value for sample in samples] for side, samples in found.items()}
    row: dict[str, Any] = {"case": case.name, "at_least": case.at_least, "runs": runs}
    for side, samples in found.items():
        row[side] = statistics.median(runs[side])
        row[f"{side}_cpu"] = statistics.median(_cpu(sample) for sample in samples)
        row[f"{side}_python"] = statistics.median(
            sample.python_seconds / (sample.rows or 1) * 1e6 for sample in samples
        )
        row["rows"] = samples[0].rows
    if set(found) == set(SIDES):
        ratio = median_ratio(runs[OURS], runs[THEIRS])
        row["ratio"] = ratio if row["rows"] else 1 / ratio
    return row


def _cpu(sample: Sample) -> float:
    """For a million rows, if there are rows."""
    return sample.cpu_seconds / sample.rows * 1e6 if sample.rows else sample.cpu_seconds


def plain_rows(given: argparse.Namespace, names: list[str]) -> list[dict[str, Any]]:
    """The cases of PLAIN_TOO in a session as users open it, which needs a JVM of its own."""
    wanted = [name for name in names if name in PLAIN_TOO]
    if given.plain or not wanted:
        return []
    with tempfile.TemporaryDirectory(dir=given.place) as place:
        output = Path(place, "rows.json")
        command = [sys.executable, "-m", "perf.spark_compare", "--plain", "--output", str(output)]
        command += ["--runs", str(given.runs), "--broker", given.broker]
        command += ["--quick"] * given.quick + [f"--case={name}" for name in wanted]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
        rows: list[dict[str, Any]] = json.loads(output.read_text())["cases"]
    return rows


def line_of(row: dict[str, Any]) -> str:
    def text(side: str) -> str:
        if side not in row:
            return "-"
        value = f"{row[side] / 1e6:.2f} M/s" if row["rows"] else f"{row[side] * 1000:.3g} ms"
        return f"{value} ({row[f'{side}_cpu']:.2f})"

    ratio = f"{row['ratio']:.2f}" if "ratio" in row else "-"
    wanted = f"{row['at_least']:.1f}" if row["at_least"] else "-"
    return f"{row['case']:<16}{text(THEIRS):>22}{text(OURS):>22}{ratio:>8}{wanted:>8}"


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The content of a result file, in the form that perf/results_table.py reads."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit_text(),
        "kafka": VERSION,
        "machine": machine(),
        "cases": rows,
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the table; with --output write it as JSON too."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=5, help="measurements of each side")
    parser.add_argument("--quick", action="store_true", help="small topics, one run")
    parser.add_argument("--broker", choices=SIDES, default=THEIRS, help="what both sides talk to")
    parser.add_argument(
        "--plain", action="store_true", help="only in a session without what docs/spark.md advises"
    )
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--place", type=Path, help="where the data goes; a temporary directory")
    parser.add_argument("--output", type=Path, help="where to write the result file (JSON)")
    given = parser.parse_args(arguments)
    runs = 1 if given.quick else given.runs
    chosen = {case.name: case for case in CASES if not given.case or case.name in given.case}
    make = KafkaBroker if given.broker == THEIRS else KbrokerBroker
    rows = []
    with tempfile.TemporaryDirectory(dir=given.place) as place, make(place) as broker:
        spark = session(Path(place), plain=given.plain)
        try:
            with closing(Bench(spark, broker, Path(place), given.quick)) as bench:
                print(f"{'case':<16}{'connector (CPU s)':>22}{'kbroker (CPU s)':>22}"
                      f"{'ratio':>8}{'wanted':>8}")  # fmt: skip
                for names in in_turns(list(chosen)):
                    cases = [chosen[name] for name in names]
                    for name, found in measure(bench, cases, runs).items():
                        rows.append(row_of(chosen[name], found))
                        print(line_of(rows[-1]), flush=True)
        finally:
            spark.stop()
    bounds = bound_lines(rows)
    if given.plain:
        rows = [{**row, "case": f"{row['case']}{_PLAIN}"} for row in rows]
    for row in plain_rows(given, list(chosen)):
        rows.append(row)
        print(line_of(row), flush=True)
    print("\n".join(["", *bounds]))
    if given.output:
        given.output.write_text(json.dumps(report(rows), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
