"""Seed and size of the fault tests.

KBROKER_FAULT_SEED: repeats a run; a failing test prints the seed it had. KBROKER_FAULT_SCALE: how
much more than by default (1) there is of everything that repeats.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from fault.leftovers import Leftovers

SCALE = max(1, int(os.environ.get("KBROKER_FAULT_SCALE", "1")))


@pytest.fixture
def seed() -> Iterator[int]:
    """A new seed unless KBROKER_FAULT_SEED is set; printed, which shows when a test fails."""
    chosen = int(os.environ.get("KBROKER_FAULT_SEED") or random.SystemRandom().randrange(1 << 31))
    print(f"KBROKER_FAULT_SEED={chosen}")
    yield chosen


@pytest.fixture
def scale() -> int:
    """Multiplies counts."""
    return SCALE


@pytest.fixture
def leftovers() -> Leftovers:
    """Created before the broker of the test."""
    return Leftovers()
