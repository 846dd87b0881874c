"""Percentiles of latencies, from plain samples or from the load generator's histogram.

The histogram is log-linear: exact below 128 ns, above it 64 buckets to each power of two, so that
a value read back is off by less than 1.6 %. ``buckets_of`` is the twin of the extension's
``latency_bucket``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

SUB_BITS = 6
SUB_BUCKETS = 1 << SUB_BITS
# BOUND: values that a Histogram has not counted yet.
WAITING_MAX = 1 << 16


def buckets_of(values_ns: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """The histogram's buckets for values below 2**62; those below 0 count as 0."""
    values = np.maximum(np.asarray(values_ns, np.int64), 0)
    # The exponent of a float64 is one too high where rounding reaches the next power of two.
    bits = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    bits -= np.where(bits > 0, values >> np.maximum(bits - 1, 0) == 0, False)
    shift = np.maximum(bits - 1 - SUB_BITS, 0)
    return shift * SUB_BUCKETS + (values >> shift)


def bucket_of(value_ns: int) -> int:
    """The histogram's bucket for one value."""
    return int(buckets_of(value_ns))


def bucket_middles(buckets: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The values in the middle of buckets, in ns."""
    numbers = np.asarray(buckets, np.int64)
    shift = np.maximum(numbers // SUB_BUCKETS - 1, 0)
    low = (numbers - shift * SUB_BUCKETS) << shift
    return low + ((1 << shift) - 1) / 2


class Histogram:
    """Counts by bucket of values that come one at a time."""

    def __init__(self, bucket_count: int) -> None:
        self.counts = np.zeros(bucket_count, np.int64)
        self._waiting: list[int] = []

    def add(self, value_ns: int) -> None:
        self._waiting.append(value_ns)
        if len(self._waiting) >= WAITING_MAX:
            self.settle()

    def settle(self) -> npt.NDArray[np.int64]:
        """Count what has come; returns the counts."""
        size = len(self.counts)
        buckets = np.minimum(buckets_of(np.array(self._waiting, np.int64)), size - 1)
        self.counts += np.bincount(buckets, minlength=size)
        self._waiting.clear()
        return self.counts


def histogram_percentile(counts: Sequence[int] | npt.NDArray[Any], fraction: float) -> float:
    """The value in ns that ``fraction`` (0 to 1) of the samples do not exceed; 0 without
    samples.
    """
    seen = np.cumsum(np.asarray(counts, np.int64))
    if not seen.size or seen[-1] == 0:
        return 0.0
    rank = max(1, int(np.ceil(fraction * seen[-1])))
    return float(bucket_middles(np.searchsorted(seen, rank)))


def percentile(samples: npt.ArrayLike, fraction: float) -> float:
    """As Kafka's tools compute it: element fraction * n of the samples by size; 0 without
    samples.
    """
    values = np.asarray(samples, np.float64)
    if not values.size:
        return 0.0
    place = min(int(fraction * values.size), values.size - 1)
    return float(np.partition(values, place)[place])


def spread(samples: npt.ArrayLike) -> float:
    """(max - min) / median: the spread of the runs of a cell; 0 if the median is 0."""
    middle = float(np.median(samples))
    return float(np.ptp(samples)) / middle if middle else 0.0
