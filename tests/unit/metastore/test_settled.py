"""Writes with an unknown outcome are settled, and a fenced writer does not write."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from kbroker.ipc.pending import run
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.simulated import Faults, SimulatedEnsemble
from kbroker.metastore.store import BadVersion, NodeExists, NoNode, StoreOperation

pytestmark = pytest.mark.unit


def finish(ensemble: SimulatedEnsemble, work: Coroutine[Any, Any, Any]) -> Any:
    outcome = run(work)
    ensemble.run_until(lambda: outcome.done)
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


@pytest.mark.parametrize("seed", range(30))
def test_every_write_takes_effect_once_over_lost_connections(seed: int) -> None:
    """A counter that is read and set: a write applied twice, or not at all, is visible in it."""
    ensemble = SimulatedEnsemble(seed, Faults(loss_per_request=0.2, outage_max_ms=3_000))
    store = SettledStore(ensemble.connect())

    async def count() -> None:
        await store.multi().create("/n", b"0").create("/m").commit()
        for _ in range(20):
            node = await store.get("/n")
            following = b"%d" % (int(node.data) + 1)
            transaction = store.multi().set("/n", following, node.stat.version)
            await transaction.create("/m/" + following.decode()).commit()
        for name in await store.children("/m"):
            await store.multi().delete(f"/m/{name}", 0).commit()

    finish(ensemble, count())
    assert ensemble.tree.get("/n").data == b"20"
    assert ensemble.tree.get("/n").stat.version == 20
    assert ensemble.tree.children("/m") == []


@pytest.mark.parametrize("seed", range(30))
def test_write_of_somebody_else_is_not_taken_for_ones_own(seed: int) -> None:
    """If two clients set the same version to different data, or create a node, one is rejected."""
    ensemble = SimulatedEnsemble(seed, Faults(loss_per_request=0.3, outage_max_ms=3_000))
    stores = [SettledStore(ensemble.connect()) for _ in range(2)]
    finish(ensemble, stores[0].multi().create("/n").commit())
    won: list[tuple[str, int]] = []

    async def contend(number: int) -> None:
        mine = b"%d" % number
        try:
            await stores[number].multi().set("/n", mine, 0).commit()
            won.append(("set", number))
        except BadVersion:
            pass
        try:
            await stores[number].multi().create("/e", mine, ephemeral=True).commit()
            won.append(("create", number))
        except NodeExists:
            pass

    outcomes = [run(contend(number)) for number in range(2)]
    ensemble.run_until(lambda: all(outcome.done for outcome in outcomes))
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert sorted(kind for kind, _ in won) == ["create", "set"]
    assert ("set", int(ensemble.tree.get("/n").data)) in won
    assert ("create", int(ensemble.tree.get("/e").data)) in won


def test_fence_that_does_not_hold_ends_all_writes() -> None:
    ensemble = SimulatedEnsemble(1)
    plain = SettledStore(connection := ensemble.connect())
    finish(ensemble, plain.multi().create("/epoch").commit())
    fenced = SettledStore(connection, StoreOperation("check", "/epoch", version=0))
    assert finish(ensemble, fenced.multi().create("/a").commit()) == ["/a"]
    with pytest.raises(NoNode):
        finish(ensemble, fenced.multi().set("/none", b"", 0).commit())
    finish(ensemble, plain.multi().set("/epoch", b"", 0).commit())
    with pytest.raises(Fenced):
        finish(ensemble, fenced.multi().create("/b").commit())
    with pytest.raises(Fenced):
        finish(ensemble, fenced.get("/a"))
    assert ensemble.tree.exists("/b") is None


def test_stop_ends_what_waits_for_a_connection() -> None:
    ensemble = SimulatedEnsemble(1)
    connection = ensemble.connect()
    store = SettledStore(connection)
    finish(ensemble, store.children("/"))
    connection.lose(5_000)
    waiting = run(store.children("/"))
    ensemble.step()
    assert not waiting.done
    store.stop()
    assert isinstance(waiting.error, Fenced)


def test_missing_nodes_are_created_by_several_clients_at_once() -> None:
    ensemble = SimulatedEnsemble(1, Faults(loss_per_request=0.1, outage_max_ms=100))
    ensemble.apply([StoreOperation("create", "/a"), StoreOperation("set", "/a", b"kept")], 0)
    wanted = ("/a", "/a/b", "/a/b/c", "/d")
    ensured = [run(SettledStore(ensemble.connect()).ensure(wanted)) for _ in range(4)]
    ensemble.run_until(lambda: all(one.done for one in ensured))

    assert [one.error for one in ensured] == [None] * 4
    assert all(ensemble.tree.exists(path) is not None for path in wanted)
    assert ensemble.tree.get("/a").data == b"kept"


def test_missing_nodes_are_created_in_one_transaction() -> None:
    """A broker that starts, and its clients, wait for each sync of a disk: 21 for ACLs before."""
    ensemble = SimulatedEnsemble(1)
    ensemble.apply([StoreOperation("create", "/a")], 0)
    store = ensemble.connect()
    written: list[list[str]] = []
    apply = store.apply
    store.apply = lambda asked: (written.append([o.path for o in asked]), apply(asked))[1]  # type: ignore

    finish(ensemble, SettledStore(store).ensure(("/a", "/a/b", "/a/b/c", "/d")))
    finish(ensemble, SettledStore(store).ensure(("/a", "/d")))

    assert written == [["/a/b", "/a/b/c", "/d"]]
