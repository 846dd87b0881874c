"""Plans of Spark tasks: no duplicates, no gaps, sizes near the target."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.spark.plan import (
    RECORD_BYTES_GUESS,
    TASK_BYTES_MAX,
    TASK_BYTES_MIN,
    OffsetRange,
    pack_ranges,
    plan_ranges,
    target_bytes,
    with_sizes,
)

pytestmark = pytest.mark.property

COUNTS = st.one_of(
    st.just(0), st.just(1), st.integers(1, 1000), st.integers(10**6, 10**8), st.just(10**12)
)


@st.composite
def partition_ranges(draw):
    found = []
    for partition in range(draw(st.integers(0, 8))):
        start = draw(st.sampled_from([0, 7, 10**12]))
        count = draw(COUNTS)
        size = draw(st.integers(0, 200)) * min(count, 10**9)
        found.append(OffsetRange(f"t{partition % 2}", partition, start, start + count, size))
    return found


def covered(ranges):
    """[(start, end)] by partition; fails if two overlap or have a gap between them."""
    by_partition = {}
    for one in sorted(ranges, key=lambda r: (r.topic, r.partition, r.start)):
        assert one.count > 0
        edges = by_partition.setdefault(one.topic_partition, [one.start, one.start])
        assert edges[1] == one.start
        edges[1] = one.end
    return {key: tuple(edges) for key, edges in by_partition.items()}


@given(
    partition_ranges(),
    st.integers(1, 64),
    st.one_of(st.none(), st.integers(1, 50)),
    st.one_of(st.none(), st.integers(10**9, 10**12)),
    st.booleans(),
)
def test_plan_covers_each_offset_once(ranges, cores, min_partitions, max_records, by_partition):
    planned = plan_ranges(
        ranges,
        default_parallelism=cores,
        min_partitions=min_partitions,
        max_records_per_partition=max_records,
        by_partition=by_partition,
    )

    assert covered(planned) == {r.topic_partition: (r.start, r.end) for r in ranges if r.count}
    assert sum(r.size_bytes for r in planned) == sum(r.size_bytes for r in ranges)
    sizes = [r.size_bytes for r in planned]
    assert sizes == sorted(sizes, reverse=True)
    if max_records is not None:
        assert all(r.count <= max_records for r in planned)


@given(partition_ranges(), st.integers(1, 64))
def test_plan_by_size_stays_within_twice_the_target(ranges, cores):
    target = target_bytes(sum(r.size_bytes for r in ranges), cores)
    whole = {r.topic_partition: r for r in ranges}

    for one in plan_ranges(ranges, default_parallelism=cores):
        if one.count == 1:
            continue
        parent = whole[one.topic_partition]
        # Cuts are at whole offsets: a part may be one offset larger than its share.
        assert one.size_bytes <= target + parent.size_bytes // parent.count + 1
        if one != parent:
            assert one.size_bytes >= target // 2 - parent.size_bytes // parent.count - 1


@pytest.mark.parametrize("seed", range(5))
def test_plan_of_a_skewed_topic_is_even(seed):
    rng = random.Random(seed)
    total = 12 << 30
    ranges = [OffsetRange("t", 0, 5, 5 + 90_000_000, total * 9 // 10)]
    for partition in range(1, 10):
        count = rng.randint(1, 2_000_000)
        ranges.append(OffsetRange("t", partition, 0, count, total // 90))

    planned = plan_ranges(ranges, default_parallelism=8)

    assert max(r.size_bytes for r in planned) <= target_bytes(total, 8)
    assert len(planned) >= 3 * 8


def test_target_is_clamped():
    assert target_bytes(0, 8) == TASK_BYTES_MIN
    assert target_bytes(1 << 50, 8) == TASK_BYTES_MAX
    assert target_bytes(600 << 20, 2) == 100 << 20


def connector_parts(counts, min_partitions):
    """The connector's documented formula, implemented again."""
    counts = [count for count in counts if count > 0]
    if len(counts) >= min_partitions:
        return [1] * len(counts)

    def share(count, total, parts):
        return max(math.floor(count / total * parts + 0.5), 1)

    small = [share(count, sum(counts), min_partitions) == 1 for count in counts]
    rest = sum(count for count, is_small in zip(counts, small, strict=True) if not is_small)
    parts = max(min_partitions - sum(small), 1)
    return [
        1 if is_small else min(count, share(count, rest, parts))
        for count, is_small in zip(counts, small, strict=True)
    ]


@given(st.lists(COUNTS, max_size=10), st.integers(1, 200))
def test_min_partitions_gives_the_tasks_of_the_connector(counts, min_partitions):
    ranges = [OffsetRange("t", index, 3, 3 + count) for index, count in enumerate(counts)]

    planned = plan_ranges(ranges, default_parallelism=4, min_partitions=min_partitions)

    made = [sum(r.partition == index for r in planned) for index, c in enumerate(counts) if c]
    assert made == connector_parts(counts, min_partitions)


@pytest.mark.parametrize(
    ("counts", "min_partitions", "parts"),
    [
        ([5, 5], 3, [2, 2]),
        ([1, 100], 10, [1, 9]),
        ([10, 0, 10], 2, [1, 1]),
        ([100, 8], 5, [4, 1]),
        ([2], 10, [2]),
    ],
)
def test_min_partitions_examples(counts, min_partitions, parts):
    ranges = [OffsetRange("t", index, 0, count) for index, count in enumerate(counts)]

    planned = plan_ranges(ranges, default_parallelism=4, min_partitions=min_partitions)

    filled = [index for index, count in enumerate(counts) if count]
    assert [sum(r.partition == index for r in planned) for index in filled] == parts


@given(partition_ranges(), st.integers(1, 16))
def test_packed_tasks_hold_every_range_once_up_to_the_target(ranges, cores):
    planned = plan_ranges(ranges, default_parallelism=cores)

    tasks = pack_ranges(planned, default_parallelism=cores)

    assert sorted(map(repr, planned)) == sorted(repr(one) for task in tasks for one in task)
    limit = target_bytes(sum(r.size_bytes for r in planned), cores)
    sizes = [sum(one.size_bytes for one in task) for task in tasks]
    assert all(s <= limit for s, task in zip(sizes, tasks, strict=True) if len(task) > 1)
    assert sizes == sorted(sizes, reverse=True)


def test_many_small_ranges_share_few_tasks():
    ranges = [OffsetRange("t", index, 0, 10, 1 << 20) for index in range(64)]

    assert len(pack_ranges(ranges, default_parallelism=2)) == 2


def test_sizes_come_from_the_broker_then_the_last_plan_then_a_guess():
    ranges = [OffsetRange("a", 0, 0, 10), OffsetRange("a", 1, 0, 10), OffsetRange("b", 0, 0, 10)]

    sized = with_sizes(ranges, {("a", 0): (1000, 20)}, {"a": 7.0})

    assert [r.size_bytes for r in sized] == [500, 70, 10 * RECORD_BYTES_GUESS]
