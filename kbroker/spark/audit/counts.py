"""Sources of counts: messages of the audit topic, commits and files of loads, logs of topics.

What is read is cut into ranges that run as tasks; the driver gets counts, never records.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kbroker.spark.audit.counter import BUCKET_MS_MAX
from kbroker.spark.audit.report import Count
from kbroker.spark.load.commits import RECOVER, RELOAD, LoadedFile, TopicPartition
from kbroker.spark.load.directory import Directory
from kbroker.spark.load.log import CommitLog
from kbroker.spark.load.positions import Bounds
from kbroker.spark.load.source import BrokerSource
from kbroker.spark.plan import (
    TASKS_PER_CORE,
    OffsetRange,
    pack_ranges,
    plan_ranges,
    shares,
    with_sizes,
)
from kbroker.spark.pool import borrowed

if TYPE_CHECKING:
    import pyarrow as pa

    from kbroker.spark.direct import Result, Runner

LOAD_TIER = "load"
# BOUND: numbers in a message, as for times and counts elsewhere.
_NUMBER_MAX = 1 << 63
# A load stores times as microseconds in 64 bits: later ones are limited to the last of them.
_TIME_MS_MAX = ((1 << 63) - 1) // 1000


def bucket_counts(times_us: pa.Array, bucket_ms: int) -> dict[int, int]:
    """Start of the bucket in milliseconds -> how many of the times are in it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    times = times_us.cast(pa.int64())
    buckets = pc.divide(pc.max_element_wise(times, 0), bucket_ms * 1000)
    return {
        one["values"] * bucket_ms: one["counts"] for one in pc.value_counts(buckets).to_pylist()
    }


def _bucket_of(time_ms: int, bucket_ms: int) -> int:
    """Start of a time's bucket, as in the commits of loads: records without a time count for 1970,
    and times that do not fit into microseconds for the last bucket.
    """
    return min(max(0, time_ms), _TIME_MS_MAX) // bucket_ms * bucket_ms


def _merge(into: dict[int, int], more: dict[int, int]) -> None:
    for bucket, count in more.items():
        into[bucket] = into.get(bucket, 0) + count


# -- the log itself


@dataclass(frozen=True, slots=True)
class RecountWork:
    """Counts records by their times, without their values; see ``kbroker.spark.direct.Work``."""

    bootstrap: str
    settings: dict[str, str]
    bucket_ms: int

    def __call__(self, ranges: Sequence[OffsetRange], attempt: str) -> list[Result]:
        from kbroker.client.counts import count_records

        results: list[Result] = []
        with borrowed(self.bootstrap, self.settings) as cluster:
            for one in ranges:
                buckets = count_records(
                    cluster,
                    one.topic,
                    one.partition,
                    one.start,
                    one.end,
                    bucket_ms=self.bucket_ms,
                    read_committed=True,
                )
                found: dict[int, int] = {}
                for at, count in buckets.items():
                    _merge(found, {_bucket_of(at, self.bucket_ms): count.records})
                results.append({"topic": one.topic, "counts": found})
        return results


def recount(
    source: BrokerSource,
    runner: Runner,
    tier: str,
    *,
    bucket_ms: int,
    from_ms: int | None,
    now_ms: int,
) -> list[Count]:
    """The counts in the logs of the source's topics, from ``from_ms`` on."""
    bounds = source.bounds()
    starts = _starts(source, bounds, from_ms)
    sizes = {key: (one.size_bytes, one.end - one.start) for key, one in bounds.items()}
    ranges = plan_ranges(
        with_sizes((OffsetRange(*key, starts[key], one.end) for key, one in bounds.items()), sizes),
        default_parallelism=runner.parallelism,
    )
    tasks = pack_ranges(ranges, default_parallelism=runner.parallelism)
    work = RecountWork(source.bootstrap, source.settings, bucket_ms)
    return [
        Count(result["topic"], int(bucket), tier, count, now_ms)
        for result in runner.run(tasks, work, f"kbroker-audit recount {tier}")
        for bucket, count in result["counts"].items()
    ]


def _starts(
    source: BrokerSource, bounds: dict[TopicPartition, Bounds], from_ms: int | None
) -> dict[TopicPartition, int]:
    if from_ms is None:
        return {key: one.start for key, one in bounds.items()}
    return source.offsets_at(list(bounds), from_ms)


# -- messages of applications


@dataclass(frozen=True, slots=True)
class MessagesWork:
    """Reads audit messages; invalid ones are counted and left out."""

    source: BrokerSource

    def __call__(self, ranges: Sequence[OffsetRange], attempt: str) -> list[Result]:
        results: list[Result] = []
        for one in ranges:
            for batch in self.source.read(one):
                for value in batch.column("value").to_pylist():
                    results.append(_message(value))
        return results


def _message(value: bytes | None) -> Result:
    try:
        found = json.loads(value or b"")
        start = int(found["bucket_start"])
        end = int(found.get("bucket_end", start + 1))
        count, told_ms = int(found["count"]), int(found["time"])
        names = {name: str(found[name]) for name in ("guid", "topic", "tier")}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return {"bad": 1}
    if not all(0 <= one < _NUMBER_MAX for one in (start, count, told_ms)):
        return {"bad": 1}
    if not start < end <= start + BUCKET_MS_MAX:
        return {"bad": 1}
    return {**names, "bucket": start, "end": end, "count": count, "time": told_ms}


class Misfit(NamedTuple):
    """A message whose bucket, ``[start_ms, end_ms)``, does not lie within one of the report's."""

    tier: str
    topic: str
    start_ms: int
    end_ms: int

    @property
    def size_ms(self) -> int:
        return self.end_ms - self.start_ms

    @property
    def is_aligned(self) -> bool:
        """Whether it is aligned to buckets of its own size."""
        return self.start_ms % self.size_ms == 0


class Told(NamedTuple):
    """bad: how many messages could not be understood. misfits: those that could be, and are not
    among the counts either."""

    counts: list[Count]
    bad: int
    misfits: list[Misfit]


def told(
    source: BrokerSource,
    topics: Container[str],
    runner: Runner,
    bucket_ms: int,
    from_ms: int | None,
) -> Told:
    """Counts of ``topics`` in the audit topic, each message once whatever its producer has
    repeated.

    BOUND: the driver holds a line for each message since ``from_ms``.
    """
    bounds = source.bounds()
    starts = _starts(source, bounds, from_ms)
    ranges = plan_ranges(
        with_sizes(OffsetRange(*key, starts[key], one.end) for key, one in bounds.items()),
        default_parallelism=runner.parallelism,
    )
    tasks = pack_ranges(ranges, default_parallelism=runner.parallelism)
    results = runner.run(tasks, MessagesWork(source), "kbroker-audit messages")
    once: dict[str, Result] = {}
    misfits: dict[str, Misfit] = {}
    for one in results:
        if one.get("topic") not in topics:
            continue
        if one["end"] <= (one["bucket"] // bucket_ms + 1) * bucket_ms:
            once[one["guid"]] = one
        else:
            misfits[one["guid"]] = Misfit(one["tier"], one["topic"], one["bucket"], one["end"])
    # Applications may count by smaller buckets, which are parts of the report's.
    counts = [
        Count(
            one["topic"],
            _bucket_of(one["bucket"], bucket_ms),
            one["tier"],
            one["count"],
            one["time"],
        )
        for one in once.values()
    ]
    return Told(counts, sum(one.get("bad", 0) for one in results), list(misfits.values()))


# -- loads


@dataclass(frozen=True, slots=True)
class FilesWork:
    """Counts the rows of data files by their times. A file that is gone has none."""

    root: str
    bucket_ms: int

    def __call__(self, groups: Sequence[list[LoadedFile]], attempt: str) -> list[Result]:
        import pyarrow.parquet as pq

        results: list[Result] = []
        for files in groups:
            for one in files:
                try:
                    file = pq.ParquetFile(Path(self.root) / one.path)
                except FileNotFoundError:
                    continue
                column = file.read(["timestamp"]).column(0)
                found: dict[int, int] = {}
                for chunk in column.chunks:
                    _merge(found, bucket_counts(chunk, self.bucket_ms))
                results.append({"topic": one.topic, "counts": found})
        return results


def loaded(destination: Directory, runner: Runner, *, bucket_ms: int) -> list[Count]:
    """The counts of a load: from its commits, if they have them, or from its files."""
    told = of_commits(destination.log, bucket_ms)
    if told is not None:
        return told
    state = destination.log.state()
    work = FilesWork(str(destination.root), bucket_ms)
    wanted = runner.parallelism * TASKS_PER_CORE
    tasks = [[files] for files in shares(list(state.files.values()), wanted)]
    return [
        Count(result["topic"], int(bucket), LOAD_TIER, count, state.written_ms)
        for result in runner.run(tasks, work, "kbroker-audit files")
        for bucket, count in result["counts"].items()
    ]


def of_commits(log: CommitLog, bucket_ms: int) -> list[Count] | None:
    """The sum of a log's commits. None if some have expired or were rebuilt from files, something
    was loaded again, or their buckets have another size: then the records must be counted.
    """
    commits = list(log.after(0))
    whole = [one.number for one in commits] == list(range(1, len(commits) + 1))
    # A commit that loaded nothing, such as one that fences another run, has no buckets.
    same = all(one.bucket_ms == bucket_ms for one in commits if one.counts)
    if not whole or not same or any(one.kind in (RELOAD, RECOVER) for one in commits):
        return None
    return [
        Count(topic, bucket, LOAD_TIER, count, one.written_ms)
        for one in commits
        for topic, buckets in one.counts.items()
        for bucket, count in buckets.items()
    ]


def of_topics(counts: Iterable[Count], topics: set[str], from_ms: int | None) -> list[Count]:
    """The counts of the requested topics in buckets that begin at ``from_ms`` or later."""
    return [
        one
        for one in counts
        if one.topic in topics and (from_ms is None or one.bucket_ms >= from_ms)
    ]
