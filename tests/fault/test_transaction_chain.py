"""Exactly once through three transactional hops while processes, or all of them, are killed."""

from __future__ import annotations

import random
import time

import pytest
from fault.chain import SETTINGS, Chain
from fault.leftovers import Leftovers
from support.faults.history import History
from support.running.pace import hold

from kbroker.testing import Broker

pytestmark = [pytest.mark.fault, pytest.mark.timeout(240)]

LONG_ROUNDS = 12


def kill(broker: Broker, kind: str, chance: random.Random) -> None:
    """Kill one process of that kind, or the whole tree, which is restarted."""
    if kind == "tree":
        broker.kill_all()
        broker.start()
    else:
        broker.kill(kind, chance.randrange(2) if kind in ("io", "network") else 0)


def run(kinds: list[str], seed: int, leftovers: Leftovers) -> None:
    history = History()
    chance = random.Random(seed)
    with Broker(SETTINGS) as broker:
        with Chain(broker, history, seed) as chain:
            chain.wait_for_progress()
            for kind in kinds:
                hold(chance.uniform(0, 0.7))
                began = time.monotonic()
                kill(broker, kind, chance)
                leftovers.note(broker)
                chain.wait_for_progress()
                print(f"{kind} killed: all hops go on after {time.monotonic() - began:.1f} s")
        leftovers.note(broker)
        chain.check()
    leftovers.check()


def test_chain_is_exactly_once_when_processes_are_killed(
    seed: int, scale: int, leftovers: Leftovers
) -> None:
    kinds = ["io", "network", "io", "tree"] * scale
    random.Random(seed).shuffle(kinds)
    run(kinds, seed, leftovers)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_chain_is_exactly_once_when_processes_are_killed_for_long(
    seed: int, scale: int, leftovers: Leftovers
) -> None:
    kinds = ["io", "io", "network", "controller", "tree", "tree"]
    chance = random.Random(seed)
    run([chance.choice(kinds) for _ in range(LONG_ROUNDS * scale)], seed, leftovers)
