"""The lag of groups over time, for the console: the last two hours, in bounded memory.

Written by the exporter's thread when it has been told of committed offsets, read by threads of the
console.
"""

from __future__ import annotations

import heapq
import threading
import time
from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# BOUND: points of each curve, eight bytes each, and pairs of group and topic with a curve.
POINTS_MAX = 240
PAIRS_MAX = 1_000
# Between two points.
EVERY_MS = 30_000
# BOUND: with more committed offsets on this broker, io workers are not asked for the curves alone:
# there are points where a scrape has asked.
ASKED_OFFSETS_MAX = 100_000
UNKNOWN = -1
# For so long a lag is that of now: io workers are asked every 30 s.
NOTED_S = 45.0

Pair = tuple[str, str]  # group and topic


class LagCurves(NamedTuple):
    """times_ms: since 1970, of all curves. by_topic: a lag in records for each; UNKNOWN: none."""

    times_ms: list[int]
    by_topic: dict[str, list[int]]


class LagHistory:
    """A ring of points for each pair."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times = array("q")
        self._at = -1  # the place of the newest point
        self._rings: dict[Pair, array[int]] = {}
        self._heard_at_ms: dict[Pair, int] = {}
        self._by_group: dict[str, int] = {}
        self._noted_s = 0.0

    def note(self, lags: Iterable[tuple[str, int]]) -> None:
        """What has just been found out: lags of a group, one for each topic."""
        by_topic: dict[str, int] = {}
        for group, lag in lags:
            if lag != UNKNOWN:
                by_topic[group] = by_topic.get(group, 0) + lag
        self._by_group, self._noted_s = by_topic, time.monotonic()

    @property
    def by_group(self) -> dict[str, int]:
        """The lag of each group; empty if nobody has asked for a while."""
        return self._by_group if time.monotonic() - self._noted_s < NOTED_S else {}

    def is_due(self, now_ms: int) -> bool:
        """Whether it is time for another point."""
        return self._at < 0 or not 0 <= now_ms - self._times[self._at] < EVERY_MS

    def maybe_add(self, lags: Iterable[tuple[Pair, int]], now_ms: int) -> bool:
        """Add a point to each curve, if it is time for one. lags: in records; UNKNOWN: none."""
        if not self.is_due(now_ms):
            return False
        with self._lock:
            self._advance(now_ms)
            self._forget()
            for pair, lag in self._kept(lags):
                self._rings[pair][self._at] = lag
                if lag != UNKNOWN:
                    self._heard_at_ms[pair] = now_ms
        return True

    def _advance(self, now_ms: int) -> None:
        """To the next place, which has the oldest point, if there is one."""
        self._at = (self._at + 1) % POINTS_MAX
        if len(self._times) < POINTS_MAX:
            self._times.append(now_ms)
            for ring in self._rings.values():
                ring.append(UNKNOWN)
        else:
            self._times[self._at] = now_ms
            for ring in self._rings.values():
                ring[self._at] = UNKNOWN

    def _forget(self) -> None:
        """Forget curves without a point."""
        oldest_ms = min(self._times)
        for pair in [pair for pair, at_ms in self._heard_at_ms.items() if at_ms < oldest_ms]:
            del self._rings[pair], self._heard_at_ms[pair]

    def _kept(self, lags: Iterable[tuple[Pair, int]]) -> Iterator[tuple[Pair, int]]:
        """Those with a curve; new ones are begun, of the largest lags if not all fit.

        There may be a million, so they are not copied.
        """
        room = PAIRS_MAX - len(self._rings)
        new: list[tuple[int, Pair]] = []
        for pair, lag in lags:
            if pair in self._rings:
                yield pair, lag
            elif lag != UNKNOWN and len(new) < room:
                heapq.heappush(new, (lag, pair))
            elif lag != UNKNOWN and room:
                heapq.heappushpop(new, (lag, pair))
        for lag, pair in new:
            self._rings[pair] = array("q", [UNKNOWN]) * len(self._times)
            yield pair, lag

    def of(self, group: str) -> LagCurves:
        """The curves of a group, from the oldest point on."""
        with self._lock:
            first = (self._at + 1) % len(self._times) if self._times else 0
            return LagCurves(
                _from(self._times, first),
                {
                    topic: _from(ring, first)
                    for (name, topic), ring in self._rings.items()
                    if name == group
                },
            )


def _from(ring: array[int], first: int) -> list[int]:
    return [*ring[first:], *ring[:first]]
