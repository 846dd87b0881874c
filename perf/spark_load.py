"""The load cases of ``perf.spark_compare``: topics to Parquet files, and counts of them.

``kafka`` is Spark's own connector with ``write.parquet``, ``kbroker`` is what ``kbroker-load``
does, in a warm session of its own making (``CommandSession``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perf.spark_bench import (
    PARTITIONS,
    Bench,
    Case,
    Sample,
    client_processes,
    fill_topic,
    prepared_batch,
)
from perf.spark_bounds import OURS, THEIRS
from perf.topics import create_topic


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
    name, rows = f"skew-{value_bytes}", bench.rows_of(value_bytes)
    if not getattr(bench, "skewed_is_filled", False):
        create_topic(bench.broker.bootstrap, name, PARTITIONS)
        # Partitions are filled in turn: a fifth of the rows leaves a tenth in each.
        fill_topic(bench.broker.bootstrap, name, rows // 5, value_bytes)
        fill_topic(bench.broker.bootstrap, name, rows - rows // 5, value_bytes, partitions=1)
        bench.skewed_is_filled = True  # type: ignore[attr-defined]
    return name, rows


def encode(value_bytes: int) -> Any:
    """P5: prepared rows into the files of a load, without broker and Spark."""

    def run(bench: Bench, side: str) -> Sample:
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
    Case("load-100B", load_parquet(100), 8.0),
    Case("load-1KB", load_parquet(1024)),
    Case("load-skew-100B", load_parquet(100, skewed), sides=(OURS,)),
    Case("source-parquet", write_parquet_of_source(100), sides=(OURS,)),
    Case("recount-100B", recount(100), sides=(OURS,)),
    Case("encode-100B", encode(100), sides=(OURS,)),
]
