"""Time as a dependency: the wall clock for timestamps, the monotonic clock for all waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """The clocks, as they are passed to code that needs the time."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970. May jump."""

    def monotonic_ms(self) -> int:
        """Milliseconds since an arbitrary fixed point; never decreases."""


CLOCK_JUMP_MS = 3_600_000
"""A wall clock that moved this much further than time did is not believed at first."""
CONFIRMED_MS = 300_000
"""A jump is believed once the clock has been consistent for this long, or for one interval of
checks.
"""


class ClockGuard:
    """Whether the wall clock can be trusted for deletions.

    Compares the wall clock with the monotonic one between two checks. After a jump of more than an
    hour, either way, nothing is deleted by time until the clocks have been in step for an interval:
    so a clock that was set wrong for a moment deletes nothing, and one that was set right is
    followed an interval later. A machine may also start with a wrong clock, so it waits at first.
    """

    __slots__ = ("_in_step_since_ms", "_monotonic", "_monotonic_ms", "_wall", "_wall_ms")

    def __init__(
        self,
        wall: Callable[[], int],
        monotonic: Callable[[], int],
        *,
        trust_start: bool = False,
    ) -> None:
        """wall, monotonic: read the clocks. trust_start: trust the wall clock until it jumps,
        because there is evidence that it was right just before the start.
        """
        self._wall, self._monotonic = wall, monotonic
        self._wall_ms, self._monotonic_ms = wall(), monotonic()
        self._in_step_since_ms = self._monotonic_ms - (CONFIRMED_MS if trust_start else 0)

    @property
    def wall_ms(self) -> int:
        """The wall clock at the last check, to which the verdict of that check applies."""
        return self._wall_ms

    def is_trusted(self, interval_ms: int) -> bool:
        """Whether deletion by time is allowed. Call once per check. interval_ms: between two."""
        wall_ms, monotonic_ms = self._wall(), self._monotonic()
        drift = (wall_ms - self._wall_ms) - (monotonic_ms - self._monotonic_ms)
        self._wall_ms, self._monotonic_ms = wall_ms, monotonic_ms
        if abs(drift) > CLOCK_JUMP_MS:
            self._in_step_since_ms = monotonic_ms
        return monotonic_ms - self._in_step_since_ms >= min(interval_ms, CONFIRMED_MS)


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class ManualClock:
    """A clock that advances only when told to, for tests."""

    __slots__ = ("_monotonic_ms", "_now_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Let ``ms`` milliseconds pass."""
        self._now_ms += ms
        self._monotonic_ms += ms

    def jump(self, ms: int) -> None:
        """Set the wall clock forward, or back, with no time passing."""
        self._now_ms += ms
