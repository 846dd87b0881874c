"""The load cases of ``perf.spark_compare``: topics to Parquet files, and counts of them.

A case is a function ``(bench, side) -> Sample``, as there; ``kafka`` is Spark's own connector
with ``write.parquet``, ``kbroker`` is what ``kbroker-load`` does, in a warm session of its own
making (``CommandSession``). ``LOAD_CASES`` has (name, function, wanted ratio, sides).
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from perf.spark_compare import Bench, Sample

THEIRS, OURS = "kafka", "kbroker"


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


def load_parquet(value_bytes: int, topic_of: Callable[[Bench, int], Any] | None = None) -> Any:
    """A whole topic into Parquet zstd: P3 and P4, and with another topic P6.

    Both sides without headers, as is the connector's default.
    """

    def run(bench: Bench, side: str) -> Sample:
        topic, rows = (topic_of or _even)(bench, value_bytes)
        with bench.folder() as place, bench.measured(rows) as found:
            if side == THEIRS:
                _write_parquet(bench, side, topic, place)
            else:
                bench.commands.load(bench.broker.bootstrap, topic, place)
        return found[0]

    return run


def _write_parquet(bench: Bench, side: str, topic: str, place: Path) -> None:
    frame = bench.reader(side, topic).load()
    frame.write.option("compression", "zstd").parquet(str(place / "out"))


def _even(bench: Bench, value_bytes: int) -> tuple[str, int]:
    return bench.topic_of(value_bytes)


def write_parquet_of_source(value_bytes: int) -> Any:
    """P3: kbroker's own data source with ``write.parquet``, as the reference of the load."""

    def run(bench: Bench, side: str) -> Sample:
        topic, rows = bench.topic_of(value_bytes)
        with bench.folder() as place, bench.measured(rows) as found:
            _write_parquet(bench, side, topic, place)
        return found[0]

    return run


def skewed(bench: Bench, value_bytes: int) -> tuple[str, int]:
    """P6: a topic with as many rows, nine in ten of them in one partition."""
    from perf.spark_compare import create_topic, fill_topic

    name, rows = f"skew-{value_bytes}", bench.rows_of(value_bytes)
    if not getattr(bench, "skewed_is_filled", False):
        create_topic(bench.broker.bootstrap, name)
        # The filler uses partitions in turn: a fifth of the rows filled like that leaves a tenth in
        # each.
        fill_topic(bench.broker.bootstrap, name, rows // 5, value_bytes)
        _fill_partition(bench.broker.bootstrap, name, rows - rows // 5, value_bytes)
        bench.skewed_is_filled = True  # type: ignore[attr-defined]
    return name, rows


def _fill_partition(bootstrap: str, name: str, rows: int, value_bytes: int) -> None:
    import random

    import pyarrow as pa

    from kbroker.client.batches.arrow import ArrowProducer
    from kbroker.client.connections.cluster import Cluster

    source = random.Random(8)
    piece = 20_000
    half = value_bytes // 2
    values = [source.randbytes(half) + b"x" * (value_bytes - half) for _ in range(piece)]
    batch = pa.record_batch(
        {
            "key": pa.array([source.randbytes(16) for _ in range(piece)]),
            "value": pa.array(values),
            "partition": pa.array([0] * piece, pa.int32()),
        }
    )
    with Cluster(bootstrap) as cluster, ArrowProducer(cluster, topic=name) as producer:
        for first in range(0, rows, piece):
            producer.write(batch.slice(0, min(piece, rows - first)))
        producer.flush()


def encode(value_bytes: int) -> Any:
    """P5: prepared rows into the files of a load, without broker and Spark."""

    def run(bench: Bench, side: str) -> Sample:
        from perf.spark_ceilings import client_processes
        from perf.spark_compare import PARTITIONS

        rows = bench.rows_of(value_bytes)
        with bench.folder() as place, client_processes(PARTITIONS) as pool:
            shares = [(place, value_bytes, n, rows // PARTITIONS) for n in range(PARTITIONS)]
            pool.map(_encode, [(*share[:3], 1) for share in shares], chunksize=1)
            with bench.measured(rows) as found:
                pool.map(_encode, shares, chunksize=1)
        return found[0]

    return run


@functools.cache
def _rows_to_encode(value_bytes: int) -> Any:
    """Created before the measurement, by the first call of a process."""
    from perf.spark_ceilings import prepared_batch

    return prepared_batch(value_bytes)


def _encode(share: tuple[Path, int, int, int]) -> None:
    from kbroker.spark.load.writer import FileOptions, RangeWriter

    place, value_bytes, partition, rows = share
    batch = _rows_to_encode(value_bytes)
    writer = RangeWriter(place, "staged", ("t", partition, 0, rows), f"{rows}", FileOptions())
    for first in range(0, rows, batch.num_rows):
        writer.write(batch.slice(0, min(batch.num_rows, rows - first)))
    writer.finish()


def recount(value_bytes: int) -> Any:
    """P10: records counted by their times, compared with ``raw``, which also creates their
    values.
    """

    def run(bench: Bench, side: str) -> Sample:
        topic, rows = bench.topic_of(value_bytes)
        with bench.measured(rows) as found:
            counted = bench.commands.recount(bench.broker.bootstrap, topic)
        assert counted == rows
        return found[0]

    return run


LOAD_CASES = [
    ("load-100B", load_parquet(100), 8.0, (THEIRS, OURS)),
    ("load-1KB", load_parquet(1024), None, (THEIRS, OURS)),
    ("load-skew-100B", load_parquet(100, skewed), None, (OURS,)),
    ("source-parquet", write_parquet_of_source(100), None, (OURS,)),
    ("recount-100B", recount(100), None, (OURS,)),
    ("encode-100B", encode(100), None, (OURS,)),
]
