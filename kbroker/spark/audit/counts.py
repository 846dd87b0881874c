"""Sources of counts: messages of the audit topic, and logs of topics (``loads`` and ``databases``
have those of loads).

What is read is cut into ranges that run as tasks; the driver gets counts, never records.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kbroker.spark.audit.counter import BUCKET_MS_MAX
from kbroker.spark.audit.report import Count
from kbroker.spark.load.commits import TIME_MS_MAX, TopicPartition
from kbroker.spark.load.positions import PositionBounds
from kbroker.spark.load.source import BrokerSource
from kbroker.spark.plan import (
    OffsetRange,
    pack_ranges,
    plan_ranges,
    with_sizes,
)
from kbroker.spark.pool import borrowed

if TYPE_CHECKING:
    import pyarrow as pa

    from kbroker.spark.direct import Result, Runner

LOAD_TIER = "load"
# BOUND: numbers in a message, as for times and counts elsewhere.
_NUMBER_MAX = 1 << 63


def bucket_counts(times_us: pa.Array, bucket_ms: int) -> dict[int, int]:
    """Start of the bucket in milliseconds -> how many of the times are in it; null is 1970."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from kbroker.spark.arrow_numbers import int64

    times = times_us.cast(pa.int64())
    buckets = pc.divide(pc.max_element_wise(times, int64(0)), int64(bucket_ms * 1000))
    return {
        one["values"] * bucket_ms: one["counts"] for one in pc.value_counts(buckets).to_pylist()
    }


def _bucket_of(time_ms: int, bucket_ms: int) -> int:
    """Start of a time's bucket, as in the commits of loads: records without a time count for 1970,
    and times that do not fit into microseconds for the last bucket.
    """
    return min(max(0, time_ms), TIME_MS_MAX) // bucket_ms * bucket_ms


def merge(into: dict[int, int], more: dict[int, int]) -> None:
    """Add counts of buckets to others."""
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
        from kbroker.client.batches.counts import count_records

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
                counts: dict[int, int] = {}
                for at, count in buckets.items():
                    merge(counts, {_bucket_of(at, self.bucket_ms): count.records})
                results.append({"topic": one.topic, "counts": counts})
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
    source: BrokerSource, bounds: dict[TopicPartition, PositionBounds], from_ms: int | None
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
        message = json.loads(value or b"")
        start = int(message["bucket_start"])
        end = int(message.get("bucket_end", start + 1))
        count, told_ms = int(message["count"]), int(message["time"])
        names = {name: str(message[name]) for name in ("guid", "topic", "tier")}
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


def of_topics(counts: Iterable[Count], topics: set[str], from_ms: int | None) -> list[Count]:
    """The counts of the requested topics in buckets that begin at ``from_ms`` or later."""
    return [
        one
        for one in counts
        if one.topic in topics and (from_ms is None or one.bucket_ms >= from_ms)
    ]
