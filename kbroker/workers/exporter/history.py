"""Rates and levels over time, for the console: an hour in steps of 10 s and a day in steps of 5
min, in bounded memory, without any other service.

Written by the exporter's thread, read by threads of the console. What has no figure at some time is
a gap there.
"""

from __future__ import annotations

import heapq
import math
import threading
from array import array
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kbroker.metrics.measured import HOUR

# Seconds of a step, and how many steps there are: an hour and a day.
FINE_S, FINE_POINTS = 10, 360
COARSE_S, COARSE_POINTS = 300, 288
# BOUND: series, of four bytes a point: 1.6 MB in all. Of how many topics, groups and clients they
# may be: of the busiest.
SERIES_MAX = 600
TOPICS_MAX, GROUPS_MAX, CLIENTS_MAX = 100, 200, 50
NOTHING = math.nan

# What is measured, and of what: the broker ("") or a topic, a group, a client id, a log
# directory.
Key = tuple[str, str]


class MetricCurves(NamedTuple):
    """times_ms: since 1970, the oldest first. series: by what is measured and of what; None: no
    figure. left_out: how many topics, groups and clients there is no series of.
    """

    step_s: int
    times_ms: list[int]
    series: dict[Key, list[float | None]]
    left_out: int


class _Ring:
    """The points of all series in one resolution."""

    def __init__(self, step_s: int, points: int) -> None:
        self.step_s = step_s
        self._points = points
        self.times = array("q")
        self.at = -1
        self.rows: dict[Key, array[float]] = {}

    def advance(self, now_ms: int) -> None:
        """To the place of the oldest point, which is forgotten."""
        self.at = (self.at + 1) % self._points
        if len(self.times) < self._points:
            self.times.append(now_ms)
            for row in self.rows.values():
                row.append(NOTHING)
        else:
            self.times[self.at] = now_ms
            for row in self.rows.values():
                row[self.at] = NOTHING

    def put(self, key: Key, value: float) -> None:
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = array("f", [NOTHING]) * len(self.times)
        row[self.at] = value

    def forget_empty(self) -> None:
        """Series without a point."""
        for key in [key for key, row in self.rows.items() if all(map(math.isnan, row))]:
            del self.rows[key]

    def curves(self, left_out: int) -> MetricCurves:
        first = (self.at + 1) % len(self.times) if self.times else 0
        return MetricCurves(
            self.step_s,
            [*self.times[first:], *self.times[:first]],
            {
                key: [None if math.isnan(one) else one for one in (*row[first:], *row[:first])]
                for key, row in self.rows.items()
            },
            left_out,
        )


class MetricHistory:
    """Both resolutions. A coarse point is the mean of the fine ones in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fine = _Ring(FINE_S, FINE_POINTS)
        self._coarse = _Ring(COARSE_S, COARSE_POINTS)
        self._sums: dict[Key, list[float]] = {}  # of the coarse point to come: sum, count
        self._left_out = 0

    def is_due(self, now_ms: int) -> bool:
        """Whether it is time for another point."""
        times, at = self._fine.times, self._fine.at
        return at < 0 or not 0 <= now_ms - times[at] < FINE_S * 1000

    def add(self, values: Mapping[Key, float], now_ms: int, left_out: int = 0) -> None:
        """Add a point to each series. Beyond SERIES_MAX, new ones are left out."""
        with self._lock:
            self._left_out = left_out
            self._fine.advance(now_ms)
            room = SERIES_MAX - len(self._fine.rows)
            for key, value in values.items():
                if key not in self._fine.rows:
                    if room <= 0:
                        self._left_out += 1
                        continue
                    room -= 1
                self._fine.put(key, value)
                sums = self._sums.setdefault(key, [0.0, 0])
                sums[0] += value
                sums[1] += 1
            if self._is_coarse_due(now_ms):
                self._fine.forget_empty()
                self._coarse.forget_empty()
                self._coarse.advance(now_ms)
                for key, (total, count) in self._sums.items():
                    if key in self._coarse.rows or len(self._coarse.rows) < SERIES_MAX:
                        self._coarse.put(key, total / count)
                self._sums = {}

    def _is_coarse_due(self, now_ms: int) -> bool:
        times, at = self._coarse.times, self._coarse.at
        since_ms = times[at] if at >= 0 else self._fine.times[0]
        return not 0 <= now_ms - since_ms < COARSE_S * 1000

    def of(self, span: str, wanted: Iterable[str]) -> MetricCurves:
        """span: HOUR or DAY. wanted: what is measured."""
        names = set(wanted)
        with self._lock:
            curves = (self._fine if span == HOUR else self._coarse).curves(self._left_out)
        kept = {key: row for key, row in curves.series.items() if key[0] in names}
        return curves._replace(series=kept)

    def slope_per_s(self, key: Key) -> float | None:
        """How fast a level changes: over the points of the last hour, of which there must be some
        minutes. None if nobody can say.
        """
        with self._lock:
            row = self._fine.rows.get(key)
            if row is None:
                return None
            points = [
                (at / 1000, value)
                for at, value in zip(self._fine.times, row, strict=True)
                if not math.isnan(value)
            ]
        return _slope(points)


# BOUND: a forecast of less than this is a guess.
_SLOPE_S_MIN = 120.0


def _slope(points: list[tuple[float, float]]) -> float | None:
    """By least squares."""
    if len(points) < 2:
        return None
    times = [at for at, _ in points]
    if max(times) - min(times) < _SLOPE_S_MIN:
        return None
    mean_at = sum(times) / len(points)
    mean_value = sum(value for _, value in points) / len(points)
    spread = sum((at - mean_at) ** 2 for at in times)
    return sum((at - mean_at) * (value - mean_value) for at, value in points) / spread


def busiest(values: Mapping[str, float], most: int) -> set[str]:
    """The names with the largest values."""
    return set(heapq.nlargest(most, values, key=values.__getitem__))
