"""Consumers against brokers that follow a script, with seeds: whatever befalls the brokers, every
record is returned, once and in order, and nothing else is committed (``consumer_simulation``).

KBROKER_CONSUMER_SEEDS says how many; ``tools/exam.py simulation --seeds`` runs more.
"""

from __future__ import annotations

import os

import pytest
from support.seed_runs import cheaply, repeat_command, run_consumers

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("KBROKER_CONSUMER_SEEDS", "400"))
# Many in one test, because each takes some milliseconds.
SEEDS_AT_ONCE = 100


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_AT_ONCE))
def test_every_record_is_returned_once_and_in_order(first: int) -> None:
    returned = 0
    with cheaply():
        for seed in range(first, min(SEEDS, first + SEEDS_AT_ONCE)):
            print(repeat_command("consumers", seed))
            returned += run_consumers(seed)
    assert returned > SEEDS_AT_ONCE, "nothing happened"
