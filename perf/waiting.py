"""Waiting until something is so."""

import time
from collections.abc import Callable


def wait_until(
    is_so: Callable[[], object],
    what: str | Callable[[], str],
    timeout: float = 30.0,
    pause_s: float = 0.02,
    *,
    is_costly: bool = False,
) -> float:
    """Returns the time.monotonic() when it is so. Raises TimeoutError, which says what is not.

    pause_s: between two looks. is_costly: it is at least as long as the look: looking must not keep
    those busy who are looked at.
    """
    deadline = time.monotonic() + timeout
    while True:
        began = time.monotonic()
        if is_so():
            return time.monotonic()
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"not within {timeout:g} s: {what if isinstance(what, str) else what()}"
            )
        time.sleep(max(pause_s, time.monotonic() - began) if is_costly else pause_s)
