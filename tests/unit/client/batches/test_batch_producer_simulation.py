"""Producers of whole batches against brokers that follow a script, with seeds
(``batch_producer_simulation``).

KBROKER_PRODUCER_SEEDS says how many; CI runs 200 (.ci/run), and ``tools/exam.py simulation
--seeds`` as many as one likes.
"""

from __future__ import annotations

import pytest
from support.running.seeds import in_chunks
from support.simulation.seed_runs import cheaply, repeat_command, run_batches

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("seeds", in_chunks("KBROKER_PRODUCER_SEEDS", 200), ids=str)
def test_every_batch_is_in_the_log_as_its_producer_was_told(seeds: range) -> None:
    sent = 0
    with cheaply():
        for seed in seeds:
            print(repeat_command("batches", seed))
            sent += run_batches(seed)
    assert sent > len(seeds), "nothing happened"
