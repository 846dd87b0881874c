"""Which offsets one Spark task reads: pure functions from ranges to tasks.

A partition's range ``[start, end)`` is cut at offsets, not at batches: two neighbours may both
fetch the batch that straddles a cut, and each drops what is not its own.

Without a hint the plan goes by size: a task gets about ``target_bytes(...)``, so that a skewed
partition becomes many tasks and small ones stay whole. ``min_partitions`` and
``max_records_per_partition`` follow the arithmetic of Spark's Kafka connector instead, so that a
job which tuned them gets the tasks it was tuned for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TypeVar

T = TypeVar("T")

# A task costs 25-30 ms in Spark; 32 MiB of records cost at least as much.
TASK_BYTES_MIN = 32 << 20
TASK_BYTES_MAX = 512 << 20
TASKS_PER_CORE = 3
# Estimate for a record of an unknown partition.
RECORD_BYTES_GUESS = 256
# The size of one fetch. Brokers send as much as they have, even after the end of a range.
FETCH_BYTES_MIN = 64 << 10
FETCH_BYTES_MAX = 2 << 20


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets ``[start, end)`` of one partition.

    size_bytes: about how much the broker holds for them; an estimate that only balances the tasks.
    topic_id: which topic of that name is meant; empty if brokers have no ids, or none matters.
    """

    topic: str
    partition: int
    start: int
    end: int
    size_bytes: int = 0
    topic_id: str = ""

    @property
    def count(self) -> int:
        """Offsets in it; compacted and transactional partitions hold fewer records."""
        return self.end - self.start

    @property
    def topic_partition(self) -> tuple[str, int]:
        return (self.topic, self.partition)

    def cut(self, parts: int) -> list[OffsetRange]:
        """``parts`` neighbours of equal count, as near as whole offsets allow; none is empty."""
        parts = max(1, min(parts, self.count))
        if parts == 1:
            return [self]
        edges = [self.start + self.count * index // parts for index in range(parts + 1)]
        sizes = [self.size_bytes * index // parts for index in range(parts + 1)]
        return [
            replace(self, start=edges[i], end=edges[i + 1], size_bytes=sizes[i + 1] - sizes[i])
            for i in range(parts)
        ]


def fetch_bytes(one: OffsetRange) -> int:
    """The bytes to fetch for the range: the whole range if it is small, with room for records
    larger than expected; the rest takes further fetches.
    """
    expected = max(one.size_bytes, one.count * RECORD_BYTES_GUESS)
    return min(max(2 * expected, FETCH_BYTES_MIN), FETCH_BYTES_MAX)


def with_sizes(
    ranges: Iterable[OffsetRange],
    partition_bytes: Mapping[tuple[str, int], tuple[int, int]] | None = None,
    mean_record_bytes: Mapping[str, float] | None = None,
) -> list[OffsetRange]:
    """The ranges with an estimate of their bytes.

    partition_bytes: (size in bytes, offsets in the log) of whole partitions, where the broker told
    them. mean_record_bytes: by topic, from an earlier plan. What neither covers counts
    RECORD_BYTES_GUESS for each offset.
    """
    known = partition_bytes or {}
    means = mean_record_bytes or {}
    sized = []
    for one in ranges:
        log_bytes, log_count = known.get(one.topic_partition, (0, 0))
        if log_bytes > 0 and log_count > 0:
            size = one.count * log_bytes // log_count
        else:
            size = int(one.count * means.get(one.topic, RECORD_BYTES_GUESS))
        sized.append(replace(one, size_bytes=size))
    return sized


def target_bytes(total_bytes: int, default_parallelism: int) -> int:
    """The number of bytes that one task should read."""
    wanted = total_bytes // (TASKS_PER_CORE * max(1, default_parallelism))
    return min(max(wanted, TASK_BYTES_MIN), TASK_BYTES_MAX)


def plan_ranges(
    ranges: Iterable[OffsetRange],
    *,
    default_parallelism: int,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
    by_partition: bool = False,
) -> list[OffsetRange]:
    """Ranges of which each is read by one task, the largest first; empty ones are left out.

    min_partitions: at least about so many, cut by counts as Spark's connector does.
    max_records_per_partition: no range counts more. by_partition: one range for each partition,
    whatever its size (max_records_per_partition still holds).
    """
    filled = [one for one in ranges if one.count > 0]
    if max_records_per_partition is not None:
        filled = [
            part
            for one in filled
            for part in one.cut(-(-one.count // max(1, max_records_per_partition)))
        ]
    if min_partitions is not None:
        filled = _cut_by_count(filled, min_partitions)
    elif not by_partition and max_records_per_partition is None:
        filled = _cut_by_size(filled, default_parallelism)
    return sorted(filled, key=_largest_first)


def pack_ranges(
    ranges: Sequence[OffsetRange], *, default_parallelism: int
) -> list[list[OffsetRange]]:
    """Tasks of several ranges: small ranges share a task up to the target size, the largest task
    first. Every range stays whole."""
    total = sum(one.size_bytes for one in ranges)
    limit = target_bytes(total, default_parallelism)
    count = max(1, -(-total // limit))
    tasks: list[list[OffsetRange]] = [[] for _ in range(count)]
    sizes = [0] * count
    # Largest first into the emptiest task: nearly even.
    emptiest = [(0, index) for index in range(count)]
    for one in sorted(ranges, key=_largest_first):
        size, index = heappop(emptiest)
        if tasks[index] and size + one.size_bytes > limit:
            heappush(emptiest, (size, index))
            index, size = len(tasks), 0
            tasks.append([])
            sizes.append(0)
        tasks[index].append(one)
        sizes[index] = size + one.size_bytes
        heappush(emptiest, (sizes[index], index))
    order = sorted(range(len(tasks)), key=lambda index: -sizes[index])
    return [sorted(tasks[index], key=_by_position) for index in order if tasks[index]]


def shares(items: Sequence[T], count: int) -> list[list[T]]:
    """Deal the items out to ``count`` lists, or to fewer: none is empty."""
    return [list(items[first::count]) for first in range(min(count, len(items)))]


def _largest_first(one: OffsetRange) -> tuple[int, int, str, int, int]:
    return (-one.size_bytes, -one.count, *_by_position(one))


def _by_position(one: OffsetRange) -> tuple[str, int, int]:
    return (one.topic, one.partition, one.start)


def _cut_by_size(ranges: list[OffsetRange], default_parallelism: int) -> list[OffsetRange]:
    target = target_bytes(sum(one.size_bytes for one in ranges), default_parallelism)
    return [part for one in ranges for part in one.cut(-(-one.size_bytes // target))]


def _cut_by_count(ranges: list[OffsetRange], min_partitions: int) -> list[OffsetRange]:
    """Split into about ``min_partitions`` or more, in proportion to counts. Ranges too small to be
    split stay whole and do not count towards the proportion of the others.
    """
    if len(ranges) >= min_partitions:
        return ranges
    total = sum(one.count for one in ranges)
    whole = [_share(one.count, total, min_partitions) == 1 for one in ranges]
    split_total = sum(
        one.count for one, is_whole in zip(ranges, whole, strict=True) if not is_whole
    )
    split_parts = max(min_partitions - sum(whole), 1)
    pieces: list[OffsetRange] = []
    for one, is_whole in zip(ranges, whole, strict=True):
        pieces += [one] if is_whole else one.cut(_share(one.count, split_total, split_parts))
    return pieces


def _share(count: int, total: int, parts: int) -> int:
    """Rounded half up in doubles, as the connector's."""
    return max(1, int(count / total * parts + 0.5))
