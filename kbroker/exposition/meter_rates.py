"""Rates of meters, a second, as ``/jmx`` shows them by the names of Kafka's meters.

They are made from the counts at one look and the next, whoever looks: nothing is done for a broker
that nobody asks. As in Kafka's library, a rate of late is an average whose weight decays, in one,
five or fifteen minutes; at the first look it is that since the start.
"""

from __future__ import annotations

import math
from typing import Any

MEAN_RATE = "MeanRate"
MINUTES = {"OneMinuteRate": 1, "FiveMinuteRate": 5, "FifteenMinuteRate": 15}
# BOUND: meters that are remembered, 200 bytes each; of others there is the mean.
METERS_MAX = 20_000
# Two that look at the same time do not each begin a step.
_STEP_MIN_S = 1.0


class MeterRates:
    """started_s: when all counts were 0, of the clock that ``look`` is told."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._at_s = started_s
        self._step_s = 0.0  # of this look; 0: the rates stay as they are
        self._known: dict[str, tuple[int, list[float]]] = {}
        self._before: dict[str, tuple[int, list[float]]] = {}

    def look(self, now_s: float) -> None:
        """All meters are asked for next; those that are not are forgotten at the look after it."""
        self._step_s = 0.0
        if now_s - self._at_s >= _STEP_MIN_S or not self._known:
            self._step_s = max(now_s - self._at_s, _STEP_MIN_S)
            self._before, self._known = self._known, {}
            self._at_s = now_s

    def attributes(self, name: str, count: int) -> dict[str, Any]:
        """The rates of a meter, by the names of attributes."""
        mean = count / max(self._at_s - self._started_s, _STEP_MIN_S)
        state = self._known.get(name)
        if state is None:
            state = self._advanced(name, count, mean)
        return {MEAN_RATE: mean, **dict(zip(MINUTES, state[1], strict=True))}

    def _advanced(self, name: str, count: int, mean: float) -> tuple[int, list[float]]:
        before = self._before.get(name)
        if before is None or count < before[0]:
            state = count, [mean] * len(MINUTES)
        else:
            now = (count - before[0]) / self._step_s if self._step_s else mean
            rates = [
                rate + (now - rate) * -math.expm1(-self._step_s / (60 * minutes))
                for rate, minutes in zip(before[1], MINUTES.values(), strict=True)
            ]
            state = count, rates
        if len(self._known) < METERS_MAX:
            self._known[name] = state
        return state


def started_s(pid: int, now_s: float) -> float:
    """When a process started, on the clock ``now_s`` is of; now, if that cannot be told."""
    import os

    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime", encoding="ascii") as file:
            uptime_s = float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return now_s
    return now_s - max(uptime_s - ticks / os.sysconf("SC_CLK_TCK"), 0.0)
