"""The passing of time, where that is what a test does."""

import time


def hold(seconds: float) -> None:
    """Let a load run, or a fault last, for so long.

    Not for waiting until something is so: that is ``wait_until``.
    """
    time.sleep(seconds)
