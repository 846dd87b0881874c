"""Waits for a condition to become true, instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 0.0
"""The minimum for all timeouts. Suites on machines that may stall for seconds set it."""
POLL_S = 0.005
POLL_MAX_S = 0.1


class ProcessEnded(Exception):
    """A process that is waited for has ended: what it should do will not happen."""


def wait_until(condition: Callable[[], T], timeout: float = 10.0, what: str = "") -> T:
    """Call ``condition`` until it returns something true, and return that.

    An AssertionError inside counts as "not yet"; any other exception ends the wait. After
    ``timeout`` seconds, PATIENCE_S at least, raises AssertionError with the last state seen: what
    the condition returned, or its own error. With a timeout of 0 it looks once.
    """
    if timeout > 0:
        timeout = max(timeout, PATIENCE_S)
    deadline = time.monotonic() + timeout
    pause = POLL_S
    while True:
        error: AssertionError | None = None
        state: object = None
        try:
            value = condition()
            if value:
                return value
            state = value
        except AssertionError as raised:
            error = raised
        if time.monotonic() >= deadline:
            seen = f"{error}" if error is not None else f"last state {state!r}"
            raise AssertionError(
                f"not within {timeout:g} s: {what or condition}; {seen}"
            ) from error
        time.sleep(pause)
        pause = min(pause * 1.5, POLL_MAX_S)
