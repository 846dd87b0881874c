"""The progress of a commit on a terminal: a line that tasks rewrite, and the next line replaces."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

_CLEAR = "\r\x1b[K"


def on_terminal(quiet: bool, stream: TextIO | None = None) -> Callable[[int, int], None] | None:
    """What a runner calls with its tasks; None where nobody would see it."""
    where = stream or sys.stderr
    if quiet or not where.isatty():
        return None
    return TaskLine(where)


class TaskLine:
    """``3 of 12 tasks (25 %), 42 s``"""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._begun: float | None = None

    def __call__(self, done: int, count: int) -> None:
        """count: 0 when the tasks have ended; the line goes."""
        if not count:
            if self._begun is not None:
                self._stream.write(_CLEAR)
                self._stream.flush()
            self._begun = None
            return
        now = self._clock()
        self._begun = now if self._begun is None else self._begun
        self._stream.write(
            f"{_CLEAR}{done:,} of {count:,} {'task' if count == 1 else 'tasks'} "
            f"({100 * done // count} %), {now - self._begun:.0f} s"
        )
        self._stream.flush()
