"""A Python worker that keeps what it has imported out of each collection of garbage."""

from __future__ import annotations

import gc
import os

_frozen_in = 0


def freeze_modules() -> None:
    """Once in a process: what lives now is not looked at by the collector any more.

    Spark's workers collect garbage after every task. With Spark, pandas and Arrow imported that
    is 42 ms of CPU for objects that stay, most of what a small task costs.
    """
    global _frozen_in
    if _frozen_in != os.getpid():
        _frozen_in = os.getpid()
        gc.collect()
        gc.freeze()
