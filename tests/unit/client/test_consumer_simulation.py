"""Consumers against brokers that follow a script, with seeds: whatever befalls the brokers, every
record is returned, once and in order, and nothing else is committed (``consumer_simulation``).

KBROKER_CONSUMER_SEEDS says how many; ``tools/exam.py simulation --seeds`` runs more.
"""

from __future__ import annotations

import os

import pytest
from support.seed_runs import cheaply, repeat_command, run_consumers
from support.simulated_brokers import Brokers, World
from support.simulated_surroundings import SimulatedSurroundings

from kbroker.client.consumer.consumer_settings import consumer_settings
from kbroker.client.consumer.core import Core
from kbroker.client.consumer.lanes import Call

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


def test_a_commit_that_is_on_its_way_is_waited_for_without_polling():
    """One that takes longer than the interval of commits would be looked at a thousand times a
    second.
    """
    settings = consumer_settings({"bootstrap.servers": "broker:9000", "group.id": "g"}, {})
    core = Core(settings, SimulatedSurroundings(Brokers(World(0))))
    core.metadata._wanted = core.positions.missing = False
    now = core._commit_at + 1
    assert core._due_in(now) < 0.01

    core._committing = Call()

    assert core._due_in(now) > 1
