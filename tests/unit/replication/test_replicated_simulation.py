"""Three brokers with logs, with seeds: whatever befalls them, what was acknowledged is kept
(``replica_simulation``).

KBROKER_REPLICATION_SEEDS says how many; CI runs 2,000 (.ci/run), and
``tools/exam.py simulation --seeds`` as many as one likes.
"""

from __future__ import annotations

import os

import pytest
from support.simulation.seed_runs import cheaply, repeat_command, run_replicas

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("KBROKER_REPLICATION_SEEDS", "100"))
# Many in one test, because each takes some milliseconds.
SEEDS_AT_ONCE = 100


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_AT_ONCE))
def test_what_was_acknowledged_is_kept(first: int) -> None:
    acknowledged = 0
    with cheaply():
        for seed in range(first, min(SEEDS, first + SEEDS_AT_ONCE)):
            print(repeat_command("replicas", seed))
            acknowledged += run_replicas(seed)
    assert acknowledged > SEEDS_AT_ONCE, "nothing happened"
