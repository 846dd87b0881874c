"""Producers against brokers that follow a script, with seeds: whatever befalls the brokers, every
future ends, acknowledged records are in the logs, once and in order, and transactions are whole
(``producer_simulation``).

KBROKER_PRODUCER_SEEDS says how many; CI runs 400 (.ci/run), and ``tools/exam.py simulation
--seeds`` as many as one likes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.running.seeds import in_chunks
from support.simulation.producer_simulation import Simulation
from support.simulation.seed_runs import cheaply, repeat_command, run_producers

from kbroker.client.errors import ClientError, Timeout
from kbroker.client.producer.identity import OPEN, READY

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("seeds", in_chunks("KBROKER_PRODUCER_SEEDS", 400), ids=str)
def test_every_record_is_in_the_log_as_its_producer_was_told(seeds: range) -> None:
    sent = 0
    with cheaply():
        for seed in seeds:
            print(repeat_command("producers", seed))
            sent += run_producers(seed)
    assert sent > len(seeds), "nothing happened"


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
