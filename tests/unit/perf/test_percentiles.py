"""Percentiles, and the load generator's histogram compared with its Python twin."""

import pytest
from support.running.in_one import in_one

from perf.load_generator import latency_bucket
from perf.percentiles import (
    Histogram,
    bucket_middles,
    bucket_of,
    buckets_of,
    histogram_percentile,
    percentile,
    spread,
)

pytestmark = pytest.mark.unit

EDGES = [edge for bit in range(62) for edge in ((1 << bit) - 1, 1 << bit, (1 << bit) + 1)]


@in_one("value", [-1, 0, 1, 127, 128, 129, 1_000_000, *EDGES])
def test_bucket_of_equals_the_extension(value):
    assert bucket_of(value) == latency_bucket(value)


@in_one("value", [value for value in EDGES if value > 0])
def test_bucket_middle_is_within_two_percent(value):
    assert float(bucket_middles(bucket_of(value))) == pytest.approx(value, rel=0.016)


def test_bucket_of_rising_values_never_falls():
    buckets = buckets_of(range(0, 100_000, 7)).tolist()

    assert buckets == sorted(buckets)


def test_histogram_counts_what_comes_one_at_a_time_and_keeps_what_is_too_large_in_the_last():
    histogram = Histogram(300)
    for value in [-5, 0, 3, 3, 200, 1 << 60] + [1] * 70_000:
        histogram.add(value)

    counts = histogram.settle()

    assert {at: int(counts[at]) for at in counts.nonzero()[0].tolist()} == {
        0: 2, 1: 70_000, 3: 2, bucket_of(200): 1, 299: 1,
    }  # fmt: skip
    assert histogram.settle().sum() == 70_006


def counts_of(values):
    counts = [0] * 4000
    for value in values:
        counts[bucket_of(value)] += 1
    return counts


@pytest.mark.parametrize(("fraction", "expected"), [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)])
def test_histogram_percentile_of_one_to_hundred_is_the_rank(fraction, expected):
    assert histogram_percentile(counts_of(range(1, 101)), fraction) == expected


def test_histogram_percentile_of_nothing_is_zero():
    assert histogram_percentile(counts_of([]), 0.5) == 0


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0.5, 51), (0.95, 96), (0.999, 100), (1.0, 100)]
)
def test_percentile_picks_the_element_as_kafkas_tools_do(fraction, expected):
    assert percentile([*range(50, 101), *range(1, 50)], fraction) == expected


def test_percentile_of_nothing_is_zero():
    assert percentile([], 0.99) == 0


def test_spread_is_the_range_over_the_median():
    assert spread([8.0, 10.0, 13.0]) == 0.5
    assert spread([5.0]) == 0
    assert spread([0.0, 0.0, 1.0]) == 0
