"""The simulated store: faults of its connections, and reproducible runs by seed."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.ipc.pending import Pending
from kbroker.metastore.simulated import (
    SESSION_TIMEOUT_MS,
    Faults,
    SimulatedEnsemble,
    SimulatedStore,
)
from kbroker.metastore.store import ConnectionLoss, NoNode, SessionState

pytestmark = pytest.mark.unit


def connected(ensemble: SimulatedEnsemble) -> SimulatedStore:
    store = ensemble.connect()
    ensemble.run_until(lambda: store.session_id > 0)
    return store


def outcome(ensemble: SimulatedEnsemble, pending: Pending[Any]) -> Any:
    ensemble.run_until(lambda: pending.done)
    return pending.value if pending.error is None else type(pending.error)


def test_short_loss_keeps_the_session_and_its_nodes() -> None:
    ensemble = SimulatedEnsemble(1)
    store = connected(ensemble)
    states: list[SessionState] = []
    store.watch_session(states.append)
    assert outcome(ensemble, store.create("/a", ephemeral=True)) == ["/a"]
    session_id = store.session_id
    store.lose(SESSION_TIMEOUT_MS // 2)
    assert outcome(ensemble, store.get("/a")) is ConnectionLoss
    ensemble.run_until(lambda: states[-1] == SessionState.CONNECTED)
    assert states == [SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.CONNECTED]
    assert store.session_id == session_id
    assert outcome(ensemble, store.exists("/a")).owner_session == session_id


def test_long_loss_ends_the_session_before_its_owner_knows() -> None:
    ensemble = SimulatedEnsemble(1)
    store, other = connected(ensemble), connected(ensemble)
    states: list[SessionState] = []
    store.watch_session(states.append)
    outcome(ensemble, store.create("/a", ephemeral=True))
    session_id = store.session_id
    store.lose(3 * SESSION_TIMEOUT_MS)
    ensemble.run_until(lambda: outcome(ensemble, other.exists("/a")) is None)
    assert states[-1] == SessionState.SUSPENDED
    ensemble.run_until(lambda: states[-1] == SessionState.CONNECTED)
    assert states[1:] == [SessionState.SUSPENDED, SessionState.EXPIRED, SessionState.CONNECTED]
    assert store.session_id > session_id


def test_crash_ends_the_session_after_its_timeout_and_nothing_gets_a_response() -> None:
    ensemble = SimulatedEnsemble(1)
    store, other = connected(ensemble), connected(ensemble)
    outcome(ensemble, store.create("/a", ephemeral=True))
    asked = store.get("/a")
    crashed_ms = ensemble.now_ms
    store.crash()
    ensemble.run_until(lambda: outcome(ensemble, other.exists("/a")) is None)
    assert ensemble.now_ms >= crashed_ms + SESSION_TIMEOUT_MS
    assert not asked.done
    assert not store.get("/").done


def test_lost_write_took_effect_or_did_not_and_later_ones_only_with_earlier_ones() -> None:
    """Both outcomes must occur, or the code that settles them is not tested."""
    written = set()
    for seed in range(40):
        ensemble = SimulatedEnsemble(seed)
        store = connected(ensemble)
        lost = [store.create(f"/{number}") for number in range(4)]
        store.lose(100)
        assert {outcome(ensemble, pending) for pending in lost} == {ConnectionLoss}
        names = ConnectionLoss
        while names is ConnectionLoss:
            names = outcome(ensemble, store.children("/"))
        assert names == [str(number) for number in range(len(names))]
        written.add(len(names))
    assert written == {0, 1, 2, 3, 4}


def test_requests_of_two_stores_overtake_each_other() -> None:
    first = set()
    for seed in range(20):
        ensemble = SimulatedEnsemble(seed)
        a, b = connected(ensemble), connected(ensemble)
        asked = a.create("/x", b"a"), b.create("/x", b"b")
        ensemble.run_until(lambda asked=asked: all(pending.done for pending in asked))
        first.add(ensemble.tree.get("/x").data)
    assert first == {b"a", b"b"}


def test_one_seed_is_one_run() -> None:
    def history(seed: int) -> list[tuple[int, Any]]:
        ensemble = SimulatedEnsemble(seed, Faults(loss_per_request=0.2))
        store = connected(ensemble)
        told = []
        for number in range(50):
            found = outcome(ensemble, store.create(f"/{number}"))
            told.append((ensemble.now_ms, found if isinstance(found, list) else found.__name__))
        return told

    assert history(7) == history(7) != history(8)
    assert any(found == "ConnectionLoss" for _, found in history(7))


def test_change_that_does_not_come_about_ends_the_wait() -> None:
    ensemble = SimulatedEnsemble(1)
    store = connected(ensemble)
    with pytest.raises(AssertionError, match="the condition was not met"):
        ensemble.run_until(lambda: store.session_id == 0)
    assert outcome(ensemble, store.get("/none")) is NoNode
