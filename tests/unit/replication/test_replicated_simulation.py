"""Three brokers with logs, with seeds: whatever befalls them, what was acknowledged is kept
(``replica_simulation``).

KBROKER_REPLICATION_SEEDS says how many; CI runs 2,000 (.ci/run), and
``tools/exam.py simulation --seeds`` as many as one likes.
"""

from __future__ import annotations

import pytest
from support.running.seeds import in_chunks
from support.simulation.seed_runs import cheaply, repeat_command, run_replicas

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("seeds", in_chunks("KBROKER_REPLICATION_SEEDS", 100), ids=str)
def test_what_was_acknowledged_is_kept(seeds: range) -> None:
    acknowledged = 0
    with cheaply():
        for seed in seeds:
            print(repeat_command("replicas", seed))
            acknowledged += run_replicas(seed)
    assert acknowledged > len(seeds), "nothing happened"
