"""Waiting, where the test is about the passing of time."""

import time


def hold(seconds: float) -> None:
    """Let a load run, or a fault last, for this long.

    Not for waiting until something is so: that is ``wait_until``.
    """
    time.sleep(seconds)
