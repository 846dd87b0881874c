"""Time as a dependency: the wall clock for timestamps, the monotonic one for all that waits."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What code that needs the time is handed."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970. May jump."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment; never goes back."""


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class ManualClock:
    """A clock that moves when told to, for tests."""

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
