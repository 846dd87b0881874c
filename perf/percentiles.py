"""Percentiles of latencies, from plain samples or from the load generator's histogram.

The histogram is log-linear: exact below 128 ns, above it 64 buckets to each power of two, so that
a value read back is off by less than 1.6 %. ``bucket_of`` is the twin of the extension's
``latency_bucket``.
"""

from collections.abc import Sequence
from math import ceil
from statistics import median

SUB_BITS = 6
SUB_BUCKETS = 1 << SUB_BITS


def bucket_of(value_ns: int) -> int:
    """The histogram's bucket for one value; values below 0 count as 0."""
    if value_ns < 2 * SUB_BUCKETS:
        return max(value_ns, 0)
    shift = value_ns.bit_length() - 1 - SUB_BITS
    return shift * SUB_BUCKETS + (value_ns >> shift)


def bucket_middle(bucket: int) -> float:
    """The value in the middle of a bucket, in ns."""
    if bucket < 2 * SUB_BUCKETS:
        return float(bucket)
    shift = bucket // SUB_BUCKETS - 1
    low = (bucket - shift * SUB_BUCKETS) << shift
    return low + ((1 << shift) - 1) / 2


def histogram_percentile(counts: Sequence[int], fraction: float) -> float:
    """The value in ns that ``fraction`` (0 to 1) of the samples do not exceed; 0 without
    samples.
    """
    total = sum(counts)
    if total == 0:
        return 0.0
    rank = max(1, ceil(fraction * total))
    seen = 0
    for bucket, count in enumerate(counts):
        seen += count
        if seen >= rank:
            return bucket_middle(bucket)
    raise AssertionError(f"rank {rank} of {total} not found")


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """As Kafka's tools compute it: element fraction * n of the sorted samples; 0 without
    samples.
    """
    if not ordered:
        return 0.0
    return ordered[min(int(fraction * len(ordered)), len(ordered) - 1)]


def spread(samples: Sequence[float]) -> float:
    """(max - min) / median: the spread of the runs of a cell; 0 if the median is 0."""
    middle = median(samples)
    return (max(samples) - min(samples)) / middle if middle else 0.0
