"""The seed of a random test: a new one each time, unless a run must be reproducible."""

from __future__ import annotations

import os
from random import Random, SystemRandom


def seeded(variant: int = 0) -> Random:
    """Random numbers with a printed seed; KBROKER_SEED sets it.

    With KBROKER_FAULT_SEED, as .ci/run has it, it follows from that and from ``variant``, which
    tells the cases of one test apart.
    """
    if "KBROKER_SEED" in os.environ:
        seed = int(os.environ["KBROKER_SEED"])
    elif "KBROKER_FAULT_SEED" in os.environ:
        seed = int(os.environ["KBROKER_FAULT_SEED"]) * 1000 + variant
    else:
        seed = SystemRandom().randrange(1 << 32)
    print(f"KBROKER_SEED={seed}")
    return Random(seed)
