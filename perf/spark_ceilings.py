"""The ceilings that cases of ``perf.spark_compare`` are compared with: the same work with parts
left out.

All are of kbroker's side alone.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
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

from perf.frames import record_batch
from perf.percentiles import percentile
from perf.process_tree import descendants, kept_to
from perf.raw_client import RawClient, paced, parse_address, wait_for_leaders
from perf.spark_bench import (
    GENERATED_ROWS,
    PARTITIONS,
    Bench,
    Case,
    Sample,
    client_processes,
    median_trigger,
    passing_topic,
    prepared_batch,
    rows_to_produce,
)
from perf.spark_bounds import OURS
from perf.topics import create_topic, fresh_name

if TYPE_CHECKING:
    import pyarrow as pa

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
    _, rows = bench.cached_rows()
    with passing_topic(bench.broker.bootstrap) as topic, client_processes(PARTITIONS) as pool:
        work = [(bench.broker.bootstrap, topic, rows // PARTITIONS)] * PARTITIONS
        with bench.measured(rows) as found:
            pool.map(_produce, work, chunksize=1)
    return found[0]


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
    bench.spark.dataSource.register(GeneratorSource)
    return median_trigger(bench, bench.spark.readStream.format("generator"))


def probe(loading: bool) -> Callable[[Bench, str], Sample]:
    """The p99 of one-record produces, 200 a second, idle or while a backlog is loaded.

    Broker and producer have the first core, all else the others: two busy processes on every core
    hold up a third that only wakes from time to time, whatever they are busy with.
    """

    def run(bench: Bench, side: str) -> Sample:
        topic, _ = bench.topic_of(100)
        target = fresh_name("probe")
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
    os.sched_setaffinity(0, cores)
    leaders = wait_for_leaders(parse_address(bootstrap), topic, auto_create=False)
    batch = record_batch([b"x" * 100])
    with RawClient(leaders[0]) as client:
        return percentile(paced(client, topic, batch, PROBE_RATE, seconds), 0.99)


def status(bench: Bench, side: str) -> Sample:
    """``kbroker-load status`` after 10,000 commits, from exec to exit."""
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


CEILING_CASES = [
    Case("ceiling-100B", generate(100), sides=(OURS,)),
    Case("ceiling-1KB", generate(1024), sides=(OURS,)),
    Case("trigger-empty", trigger_empty, sides=(OURS,)),
    Case("write-discard", discard, sides=(OURS,)),
    Case("write-raw", write_raw, sides=(OURS,)),
    Case("produce-alone", probe(loading=False), sides=(OURS,)),
    Case("produce-loading", probe(loading=True), sides=(OURS,)),
    Case("status-10k", status, sides=(OURS,)),
]
