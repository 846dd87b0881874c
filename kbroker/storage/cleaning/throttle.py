"""A limit of bytes per second that several threads share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# Work may run ahead of the limit by this much, so that small pieces do not cost a sleep each.
AHEAD_S = 0.05
# How often a sleeping thread checks whether it still has to wait.
SLICE_S = 0.5


class Throttle:
    """``take`` sleeps until the bytes are within the limit."""

    def __init__(
        self,
        bytes_per_s: float,
        pause: Callable[[float], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """pause: sleeps for seconds; may return early when the process stops."""
        self._bytes_per_s = max(bytes_per_s, 1.0)
        self._pause = pause
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = clock()

    def set_rate(self, bytes_per_s: float) -> None:
        """Apply a changed setting; sleeping threads wake at once."""
        with self._lock:
            if max(bytes_per_s, 1.0) != self._bytes_per_s:
                self._bytes_per_s = max(bytes_per_s, 1.0)
                self._free_at = self._clock()

    def take(self, count: int, is_over: Callable[[], bool] = lambda: False) -> None:
        """Account for ``count`` bytes that were read or written. is_over: no need to sleep on."""
        with self._lock:
            rate = self._bytes_per_s
            due = self._free_at = max(self._free_at, self._clock()) + count / rate
        while not is_over() and rate == self._bytes_per_s:
            wait_s = due - self._clock()
            if wait_s <= AHEAD_S:
                return
            self._pause(min(wait_s, SLICE_S))
