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
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from perf.arguments import Arguments
from perf.bars import median_ratio
from perf.brokers import KafkaBroker, KbrokerBroker
from perf.kafka_distribution import ROOT
from perf.runner import origin, write_document
from perf.spark_bench import (
    MASTER,
    PARTITIONS,
    SIDES,
    Bench,
    Case,
    Sample,
    client_processes,
    median_trigger,
    passing_topic,
)
from perf.spark_bounds import OURS, THEIRS, bound_lines, in_turns
from perf.spark_ceilings import CEILING_CASES
from perf.spark_connector import connector_jars
from perf.spark_load import LOAD_CASES

# The table also has the figures without the configs advised in docs/spark.md.
PLAIN_TOO = ("read-100B", "read-1KB")
_PLAIN = " plain"
# The JVM compiles a case's code for that long: in a second run still for a third of a core.
WARM_RUNS = 3


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
    *LOAD_CASES,
    *CEILING_CASES,
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


def main(arguments: list[str] | None = None) -> int:
    """Print the table; with --output write it as JSON too."""
    parser = Arguments(__doc__)
    parser.add_sizes(("--runs", 5, 1, "measurements of each side"))
    parser.add_quick("small topics, to see that it all runs")
    parser.add_argument("--broker", choices=SIDES, default=THEIRS, help="what both sides talk to")
    parser.add_argument(
        "--plain", action="store_true", help="only in a session without what docs/spark.md advises"
    )
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_place(None)
    parser.add_output()
    given = parser.parse(arguments)
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
                    for name, found in measure(bench, cases, given.runs).items():
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
        write_document(Path(given.output), origin() | {"cases": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
