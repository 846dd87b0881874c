"""OpenTelemetry's exponential histograms as histograms with bounds, which Prometheus' text has."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

# What OpenTelemetry's SDKs use. Bucket i is of values above base**i and up to base**(i + 1), where
# base is 2**(2**-scale): with a scale less by one, two buckets are one.
SCALES = range(-10, 21)
# Four buckets for each doubling are enough. Bounds of a smaller scale are among those of a larger
# one, so that what a client adds can be added.
SCALE_MAX = 2
# Bounds besides the upper ones of buckets: of what counts as 0, and where either side begins.
ENDS = 3


class Buckets(NamedTuple):
    """offset: the index of the first."""

    offset: int
    counts: list[int]

    def coarser(self, by: int) -> Buckets:
        """With a scale that is smaller by this, and none at the ends that are empty."""
        used = [at for at, count in enumerate(self.counts, self.offset) if count]
        if not used:
            return Buckets(0, [])
        first = used[0] >> by
        counts = [0] * ((used[-1] >> by) - first + 1)
        for at in used:
            counts[(at >> by) - first] += self.counts[at - self.offset]
        return Buckets(first, counts)


def explicit(
    scale: int,
    zero: tuple[float, int],
    positive: Buckets,
    negative: Buckets,
    bounds_max: int,
) -> tuple[list[float], list[int]]:
    """Bounds, and counts up to each and above the last; so coarse that they are not too many.

    zero: the bound of the values that count as 0, and how many there are.
    """
    by = max(0, scale - SCALE_MAX)
    while True:
        scale, positive, negative = scale - by, positive.coarser(by), negative.coarser(by)
        if len(positive.counts) + len(negative.counts) <= bounds_max - ENDS:
            break
        by = 1
    bounds: list[float] = []
    counts: list[int] = []
    for bound, count in _shown(scale, zero, positive, negative):
        if bounds and bound <= bounds[-1]:
            counts[-1] += count  # closer together than numbers can tell
        else:
            bounds.append(bound)
            counts.append(count)
    return bounds, [*counts, 0]


def _shown(
    scale: int, zero: tuple[float, int], positive: Buckets, negative: Buckets
) -> Iterator[tuple[float, int]]:
    """Upper bounds and what is below each and above the one before, empty ones included."""
    if negative.counts:
        yield -_power(scale, negative.offset + len(negative.counts)), 0
        for at in reversed(range(len(negative.counts))):
            yield -_power(scale, negative.offset + at), negative.counts[at]
    if zero[1] or not positive.counts:
        yield zero
    if positive.counts:
        yield _power(scale, positive.offset), 0
        for at, count in enumerate(positive.counts, positive.offset + 1):
            yield _power(scale, at), count


def _power(scale: int, index: int) -> float:
    try:
        return float(2.0 ** (index * 2.0**-scale))
    except OverflowError:
        return sys.float_info.max
