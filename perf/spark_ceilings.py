"""The ceilings that cases of ``perf.spark_compare`` are compared with: the same work with parts
left out.

A case is a function ``(bench, side) -> Sample``, as there; all are of kbroker's side alone.
``CEILING_CASES`` has (name, function, wanted ratio, sides).
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from perf.percentiles import percentile
from perf.process_tree import descendants, kept_to
from perf.spark_load import OURS

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

    import pyarrow as pa

    from perf.spark_compare import Bench, Sample

GENERATED_ROWS = 16_384
COMMITS = 10_000
PROBE_RATE = 200.0
PROBE_SECONDS = 10.0


# -- sources and sinks that do nothing but what Spark asks of one


class GeneratorSource(DataSource):
    """One prepared batch of a topic's rows, repeated; as a sink, it counts."""

    @classmethod
    def name(cls) -> str:
        return "generator"

    def schema(self) -> Any:
        from kbroker.spark.source import ROW

        return ROW

    def reader(self, schema: Any) -> DataSourceReader:
        return _Generator(int(self.options["rows"]), int(self.options["valuebytes"]))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return _Discarding()

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _Empty()


class _Generator(DataSourceReader):
    def __init__(self, rows: int, value_bytes: int) -> None:
        self._rows, self._value_bytes = rows, value_bytes

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = prepared_batch(self._value_bytes)
        left = self._rows // 2
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows


class _Discarding(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class _Empty(DataSourceStreamReader):
    """A row for each of two tasks, offsets that grow by one."""

    def __init__(self) -> None:
        self._at = 0

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:
        self._at += 1
        return {"at": self._at}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield prepared_batch(100).slice(0, 1)

    def commit(self, end: dict[str, int]) -> None:
        pass


def prepared_batch(value_bytes: int) -> pa.RecordBatch:
    """Rows as from the data source: keys of 16 bytes, values half random."""
    import random

    import pyarrow as pa

    from kbroker.client.batches.arrow import schema_of

    source, rows = random.Random(7), GENERATED_ROWS
    if value_bytes > 100:
        rows //= 8
    half = value_bytes // 2
    columns = {
        "key": [source.randbytes(16) for _ in range(rows)],
        "value": [source.randbytes(half) + b"x" * (value_bytes - half) for _ in range(rows)],
        "topic": ["generated"] * rows,
        "partition": [0] * rows,
        "offset": list(range(rows)),
        "timestamp": [1_700_000_000_000_000] * rows,
        "timestampType": [0] * rows,
    }
    return pa.RecordBatch.from_pydict(columns, schema=schema_of())


# -- cases


def generate(value_bytes: int) -> Callable[[Bench, str], Sample]:
    """The ceiling of any Python source: Arrow batches that cost nothing, to the noop sink."""

    def run(bench: Bench, side: str) -> Sample:
        bench.spark.dataSource.register(GeneratorSource)
        rows = bench.rows_of(value_bytes)
        reader = bench.spark.read.format("generator").option("rows", rows)
        with bench.measured(rows) as found:
            frame = reader.option("valueBytes", value_bytes).load()
            frame.write.format("noop").mode("overwrite").save()
        return found[0]

    return run


def discard(bench: Bench, side: str) -> Sample:
    """The ceiling of any Python sink: the cached rows to an Arrow writer that drops them."""
    bench.spark.dataSource.register(GeneratorSource)
    frame, rows = bench.cached_rows()
    with bench.measured(rows) as found:
        frame.write.format("generator").mode("append").save()
    return found[0]


def write_raw(bench: Bench, side: str) -> Sample:
    """As many rows from Arrow to the broker without Spark, with a process for each partition."""
    from perf.spark_compare import PARTITIONS, passing_topic

    _, rows = bench.cached_rows()
    with passing_topic(bench.broker.bootstrap) as topic, client_processes(PARTITIONS) as pool:
        work = [(bench.broker.bootstrap, topic, rows // PARTITIONS)] * PARTITIONS
        with bench.measured(rows) as found:
            pool.map(_produce, work, chunksize=1)
    return found[0]


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


def _produce(work: tuple[str, str, int]) -> None:
    from kbroker.client.batches.arrow import ArrowProducer
    from kbroker.client.connections.cluster import Cluster

    bootstrap, topic, rows = work
    batch = rows_to_produce()
    with Cluster(bootstrap) as cluster, ArrowProducer(cluster, topic=topic) as producer:
        for first in range(0, rows, GENERATED_ROWS):
            producer.write(batch.slice(0, min(GENERATED_ROWS, rows - first)))
        producer.flush()


def trigger_empty(bench: Bench, side: str) -> Sample:
    """The median micro-batch of a Python source without any requests."""
    from perf.spark_compare import median_trigger

    bench.spark.dataSource.register(GeneratorSource)
    return median_trigger(bench, bench.spark.readStream.format("generator"))


def probe(loading: bool) -> Callable[[Bench, str], Sample]:
    """The p99 of one-record produces, 200 a second, idle or while a backlog is loaded.

    Broker and producer have the first core, all else the others: two busy processes on every core
    hold up a third that only wakes from time to time, whatever they are busy with.
    """

    def run(bench: Bench, side: str) -> Sample:
        from perf.spark_compare import Sample, create_topic

        topic, _ = bench.topic_of(100)
        target = f"probe-{uuid.uuid4().hex[:8]}"
        create_topic(bench.broker.bootstrap, target, 1)
        done = threading.Event()

        def keep_loading() -> None:
            while not done.is_set():
                with bench.folder() as place:
                    bench.commands.load(bench.broker.bootstrap, topic, place)

        loader = threading.Thread(target=keep_loading)
        bench.settle()
        with broker_apart(bench) as first:
            if loading:
                loader.start()
            try:
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    seconds = 1.0 if bench.quick else PROBE_SECONDS
                    arguments = (bench.broker.bootstrap, target, seconds, first)
                    p99_s = pool.apply(produce_p99, arguments)
            finally:
                done.set()
                if loading:
                    loader.join()
        return Sample(p99_s, 0.0)

    return run


@contextmanager
def broker_apart(bench: Bench) -> Iterator[set[int]]:
    """The broker on the first core, this process and Spark on the others. Yields the broker.

    A machine of one core is left as it is.
    """
    cores = sorted(os.sched_getaffinity(0))
    first, others = cores[:1], cores[1:] or cores
    assert bench.broker.process is not None
    broker = set(descendants(bench.broker.process.pid))
    with kept_to(first, broker), kept_to(others, set(descendants(os.getpid())) - broker):
        yield set(first)


def produce_p99(bootstrap: str, topic: str, seconds: float, cores: set[int]) -> float:
    """Seconds from request to response, the 99th percentile at PROBE_RATE. cores: to run on."""
    from perf.frames import record_batch
    from perf.raw_client import RawClient, parse_address, wait_for_leaders

    os.sched_setaffinity(0, cores)

    leaders = wait_for_leaders(parse_address(bootstrap), topic, auto_create=False)
    batch = record_batch([b"x" * 100])
    taken: list[float] = []
    with RawClient(leaders[0]) as client:
        begun = time.monotonic()
        for number in range(int(seconds * PROBE_RATE)):
            time.sleep(max(0.0, begun + number / PROBE_RATE - time.monotonic()))
            sent = time.perf_counter()
            code = client.produce(topic, 0, batch)
            taken.append(time.perf_counter() - sent)
            assert code == 0, code
    return percentile(taken, 0.99)


def status(bench: Bench, side: str) -> Sample:
    """``kbroker-load status`` after 10,000 commits, from exec to exit."""
    from perf.spark_compare import Sample

    with bench.folder() as place:
        write_commits(place, COMMITS // 40 if bench.quick else COMMITS)
        command = [sys.executable, "-m", "kbroker.spark.load.cli", "status", "--dest", place]
        begun = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return Sample(time.perf_counter() - begun, 0.0)


def write_commits(place: Path, count: int) -> None:
    """A destination with that many commits of one file each, as after a load."""
    from kbroker.spark.load.commits import LOAD, Commit, LoadedFile, LoadedRange
    from kbroker.spark.load.directory import Directory

    destination = Directory(place)
    destination.prepare()
    folder = place / "_kbroker" / "commits"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, count + 1):
        start, end = (number - 1) * 1000, number * 1000
        name = f"data/topic=t/t-0-{start}-{end}-a.parquet"
        where = ("t", 0, start, end)
        file = LoadedFile(name, name, *where, 1000, 100_000, 1, start, end - 1, 0, 1)
        commit = Commit(
            number=number,
            kind=LOAD,
            load="perf",
            run=f"run-{number}",
            written_ms=number,
            ends={"t": {0: end}},
            ranges=(LoadedRange(*where, 1000, 100_000),),
            added=(file,),
        )
        (folder / f"{number:012d}.json").write_text(commit.to_json())
        destination.log.maybe_checkpoint(number)


CEILING_CASES: list[tuple[str, Any, float | None, tuple[str, ...]]] = [
    ("ceiling-100B", generate(100), None, (OURS,)),
    ("ceiling-1KB", generate(1024), None, (OURS,)),
    ("trigger-empty", trigger_empty, None, (OURS,)),
    ("write-discard", discard, None, (OURS,)),
    ("write-raw", write_raw, None, (OURS,)),
    ("produce-alone", probe(loading=False), None, (OURS,)),
    ("produce-loading", probe(loading=True), None, (OURS,)),
    ("status-10k", status, None, (OURS,)),
]
