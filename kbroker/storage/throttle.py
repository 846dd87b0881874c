"""A limit of bytes per second that several threads share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# Work may run ahead of the limit by this much, so that small pieces do not cost a sleep each.
AHEAD_S = 0.05


class Throttle:
    """``take`` sleeps until the bytes are within the limit."""

    def __init__(
        self,
        bytes_per_s: float,
        pause: Callable[[float], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """pause: sleeps for seconds; may return early when the process stops."""
        self.bytes_per_s = bytes_per_s
        self._pause = pause
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = clock()

    def take(self, count: int) -> None:
        """Account for ``count`` bytes that were read or written."""
        with self._lock:
            now = self._clock()
            self._free_at = max(self._free_at, now) + count / max(self.bytes_per_s, 1.0)
            wait_s = self._free_at - now
        if wait_s > AHEAD_S:
            self._pause(wait_s)
