"""Producers of whole batches against brokers that follow a script, with seeds
(``batch_producer_simulation``).

KBROKER_PRODUCER_SEEDS says how many; ``tools/exam.py simulation --seeds`` runs more.
"""

from __future__ import annotations

import os

import pytest
from support.simulation.seed_runs import cheaply, repeat_command, run_batches

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("KBROKER_PRODUCER_SEEDS", "200"))
# Many in one test, because each takes some milliseconds.
SEEDS_AT_ONCE = 100


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_AT_ONCE))
def test_every_batch_is_in_the_log_as_its_producer_was_told(first: int) -> None:
    sent = 0
    with cheaply():
        for seed in range(first, min(SEEDS, first + SEEDS_AT_ONCE)):
            print(repeat_command("batches", seed))
            sent += run_batches(seed)
    assert sent > SEEDS_AT_ONCE, "nothing happened"
