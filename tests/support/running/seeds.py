"""The seed of a random test: a new one each time, unless a run must be reproducible; and seeds of
simulations, many in one test.
"""

from __future__ import annotations

import os
from random import Random, SystemRandom
from typing import Any

from support.running.grids import some_of

# Each takes some milliseconds.
SEEDS_AT_ONCE = 50


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


def in_chunks(variable: str, count: int) -> list[Any]:
    """The ranges of ``count`` seeds, for a parametrized test: the first for every run, the others
    for slow tests. With ``variable`` in the environment, which then says how many, all are for
    every run.
    """
    wanted = os.environ.get(variable)
    last = int(wanted or count)
    chunks = [
        range(first, min(last, first + SEEDS_AT_ONCE)) for first in range(0, last, SEEDS_AT_ONCE)
    ]
    return some_of(chunks, chunks if wanted else chunks[:1])
