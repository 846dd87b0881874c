"""Producers against brokers that follow a script, with seeds: whatever befalls the brokers, every
future ends, acknowledged records are in the logs, once and in order, and transactions are whole
(``producer_simulation``).

KBROKER_PRODUCER_SEEDS says how many; ``tools/exam.py simulation --seeds`` runs more.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from support.simulation.producer_simulation import Simulation
from support.simulation.seed_runs import cheaply, repeat_command, run_producers

from kbroker.client.errors import ClientError, Timeout
from kbroker.client.producer.identity import OPEN, READY

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("KBROKER_PRODUCER_SEEDS", "400"))
# Many in one test, because each takes some milliseconds.
SEEDS_AT_ONCE = 100


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_AT_ONCE))
def test_every_record_is_in_the_log_as_its_producer_was_told(first: int) -> None:
    sent = 0
    with cheaply():
        for seed in range(first, min(SEEDS, first + SEEDS_AT_ONCE)):
            print(repeat_command("producers", seed))
            sent += run_producers(seed)
    assert sent > SEEDS_AT_ONCE, "nothing happened"


@pytest.mark.parametrize("error", [None, Timeout("add partitions", 1.0)], ids=str)
def test_a_late_answer_about_a_transaction_changes_nothing_in_the_next(error: ClientError | None):
    """What was written to a partition that the coordinator does not know of is never committed, and
    readers of committed records stand before it. Nor does the next one have the error.
    """
    producer = next(made for made in map(Simulation, range(50)) if made.kind == "transactional")
    made, sender = producer.producer, producer.producer._sender
    added: list[Any] = []
    answers: list[Any] = []
    sender._pool = SimpleNamespace(  # type: ignore[assignment]
        begin_transaction=lambda: None, added=lambda *row: added.append(row)
    )
    sender.beside = SimpleNamespace(  # type: ignore[assignment]
        run=lambda what, call, then: answers.append(then)
    )
    sender.begin_transaction()
    sender._on_add([("a", 0)])
    sender.begin_transaction()
    made._identity.state = OPEN

    answers[0](None, error)

    assert added == []
    assert made._identity.state == OPEN
    made._identity.state = READY
    made.drop()
