"""What cases of ``perf.spark_compare`` share: the session, the broker, topics, and a process that
does what ``kbroker-load`` does.

A case is a function ``(bench, side) -> Sample``.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf import process_tree
from perf.brokers import Broker
from perf.frames import half_random_values, random_bytes
from perf.spark_bounds import OURS, THEIRS
from perf.topics import create_topic, delete_topic, fresh_name

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

    import pyarrow as pa
    from pyspark.sql import SparkSession

SIDES = (THEIRS, OURS)
PARTITIONS = 2
MASTER = "local[2]"
KEY_BYTES = 16
ROWS_PER_WRITE = 20_000
GENERATED_ROWS = 16_384
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
            create_topic(self.broker.bootstrap, name, PARTITIONS)
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


@contextmanager
def passing_topic(bootstrap: str) -> Iterator[str]:
    """A topic to write to, whose files are deleted immediately after it: later they would slow down
    the next run, and together fill the disk.
    """
    name = fresh_name("write")
    create_topic(bootstrap, name, PARTITIONS, {"file.delete.delay.ms": "0"})
    yield name
    delete_topic(bootstrap, name)


def fill_topic(
    bootstrap: str, name: str, rows: int, value_bytes: int, partitions: int = PARTITIONS
) -> None:
    """Keys of 16 bytes, values half random; uncompressed, to the first partitions in turn."""
    import pyarrow as pa

    from kbroker.client.batches.arrow import ArrowProducer
    from kbroker.client.connections.cluster import Cluster

    columns = {
        "key": pa.array(random_bytes(ROWS_PER_WRITE, KEY_BYTES, seed=8)),
        "value": pa.array(half_random_values(ROWS_PER_WRITE, value_bytes, seed=7)),
    }
    with Cluster(bootstrap) as cluster, ArrowProducer(cluster, topic=name) as producer:
        for number in range(-(-rows // ROWS_PER_WRITE)):
            count = min(ROWS_PER_WRITE, rows - number * ROWS_PER_WRITE)
            place = pa.array([number % partitions] * ROWS_PER_WRITE, pa.int32())
            producer.write(pa.record_batch({**columns, "partition": place}).slice(0, count))
        producer.flush()


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


def prepared_batch(value_bytes: int) -> pa.RecordBatch:
    """Rows as from the data source: keys of 16 bytes, values half random."""
    import pyarrow as pa

    from kbroker.client.batches.arrow import schema_of

    rows = GENERATED_ROWS if value_bytes <= 100 else GENERATED_ROWS // 8
    columns = {
        "key": random_bytes(rows, 16, seed=8),
        "value": half_random_values(rows, value_bytes, seed=7),
        "topic": ["generated"] * rows,
        "partition": [0] * rows,
        "offset": list(range(rows)),
        "timestamp": [1_700_000_000_000_000] * rows,
        "timestampType": [0] * rows,
    }
    return pa.RecordBatch.from_pydict(columns, schema=schema_of())


# -- processes


class CommandSession:
    """A process that has started the session of ``kbroker-load`` and ``kbroker-audit``, and does
    their work.

    Its JVM is started as the commands start it: that of the connector goes on compiling what
    schedules tasks for tens of runs, at a tenth of the CPU of a load.
    """

    def __init__(self, master: str) -> None:
        self._process = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), _begin_session, (master,)
        )

    def load(self, bootstrap: str, topic: str, place: Path) -> None:
        """One run into an empty folder, ``--no-headers``."""
        self._process.submit(_load, bootstrap, topic, place).result()

    def recount(self, bootstrap: str, topic: str) -> int:
        """The number of records that ``--recount`` finds in the topic."""
        return self._process.submit(_recount, bootstrap, topic).result()

    def close(self) -> None:
        self._process.shutdown()


_session: SparkSession | None = None


def _begin_session(master: str) -> None:
    from kbroker.spark.direct import session

    global _session
    _session = session("kbroker-load", master)


def _load(bootstrap: str, topic: str, place: Path) -> None:
    from kbroker.spark.direct import SparkRunner
    from kbroker.spark.load.directory import Directory
    from kbroker.spark.load.engine import Load, LoadSettings
    from kbroker.spark.load.source import BrokerSource

    assert _session is not None
    destination = Directory(place)
    destination.prepare()
    source = BrokerSource(bootstrap, {}, (topic,), headers=False)
    made = Load(source, destination, SparkRunner(_session), LoadSettings(load="perf")).catch_up()
    assert made, "nothing was loaded"


def _recount(bootstrap: str, topic: str) -> int:
    from kbroker.spark.audit.counts import recount as count_again
    from kbroker.spark.direct import SparkRunner
    from kbroker.spark.load.source import BrokerSource

    assert _session is not None
    source, runner = BrokerSource(bootstrap, {}, (topic,)), SparkRunner(_session)
    counts = count_again(source, runner, "broker", bucket_ms=600_000, from_ms=None, now_ms=0)
    return sum(one.count for one in counts)


@contextmanager
def client_processes(count: int) -> Iterator[Any]:
    """A pool whose processes are prepared beforehand, so that only their work is measured."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(count + 1)
    with context.Pool(count, _warm_client, (ready,)) as pool:
        ready.wait()
        yield pool


def _warm_client(ready: Barrier) -> None:
    rows_to_produce()
    ready.wait()


@functools.cache
def rows_to_produce() -> pa.RecordBatch:
    """Keys and 100 B of value. Created before the measurement: pyarrow imports pandas for the first
    array of Python values, which takes a third of a second.
    """
    import pyarrow as pa

    import kbroker.client.batches.arrow  # noqa: F401

    keys = [str(number).encode() for number in range(GENERATED_ROWS)]
    columns = {"key": pa.array(keys), "value": pa.array([b"0123456789" * 10] * GENERATED_ROWS)}
    return pa.record_batch(columns)
