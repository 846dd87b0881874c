"""Registration and election: one broker per id, one controller per epoch."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from kbroker.controller.election.membership import (
    AddressTaken,
    AlreadyRegistered,
    Elected,
    Registration,
    StoredRegistration,
    check_addresses,
    check_cluster,
    elect,
    register,
)
from kbroker.ipc.pending import run
from kbroker.metastore import paths
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.simulated import Faults, SimulatedEnsemble
from kbroker.metastore.store import StoreOperation, WrongCluster
from kbroker.types import BrokerId

pytestmark = pytest.mark.unit

PLAIN = [["PLAINTEXT", "host", 9092, "PLAINTEXT"]]


def finish(ensemble: SimulatedEnsemble, work: Coroutine[Any, Any, Any]) -> Any:
    outcome = run(work)
    ensemble.run_until(lambda: outcome.done)
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


def cluster(seed: int = 1, faults: Faults = Faults()) -> SimulatedEnsemble:
    ensemble = SimulatedEnsemble(seed, faults)
    session_id = ensemble.begin_session()
    for path in paths.PERSISTENT_PATHS:
        ensemble.apply([StoreOperation("create", path)], session_id)
    return ensemble


def me(number: int) -> Registration:
    return Registration(BrokerId(number), PLAIN, None)


async def registered(ensemble: SimulatedEnsemble, number: int) -> StoredRegistration:
    """In a session of its own."""
    store = ensemble.connect()
    return await register(SettledStore(store), me(number), store.session_id, 5)


def test_broker_epoch_grows_with_each_registration() -> None:
    ensemble = cluster()
    first = ensemble.connect()
    epoch, session_id = finish(ensemble, register(SettledStore(first), me(0), first.session_id, 5))
    assert session_id == first.session_id
    other = finish(ensemble, registered(ensemble, 1))
    finish(ensemble, until_closed(first))
    again = finish(ensemble, registered(ensemble, 0))
    assert 0 < epoch < other.epoch < again.epoch


async def until_closed(store: Any) -> None:
    await store.close()


def test_id_of_another_session_is_rejected() -> None:
    ensemble = cluster()
    finish(ensemble, registered(ensemble, 0))
    with pytest.raises(AlreadyRegistered, match="broker 0"):
        finish(ensemble, registered(ensemble, 0))


def test_address_of_another_broker_is_not_registered_twice() -> None:
    """As when a file is copied with its advertised.listeners: clients would go astray."""
    ensemble = cluster()
    finish(ensemble, registered(ensemble, 1))
    store = SettledStore(ensemble.connect())
    with pytest.raises(AddressTaken, match=r"broker 1 is registered with host:9092.*\(2\)"):
        finish(ensemble, check_addresses(store, me(2)))
    finish(ensemble, check_addresses(store, me(1)))  # its own, of an earlier session
    elsewhere = me(2)._replace(endpoints=[["PLAINTEXT", "host", 9093, "PLAINTEXT"]])
    finish(ensemble, check_addresses(store, elsewhere))


@pytest.mark.parametrize(
    ("stored", "says"), [(None, "knows no cluster id"), ("other", "is of cluster other")]
)
def test_store_of_another_cluster_is_not_joined(stored: str | None, says: str) -> None:
    ensemble = SimulatedEnsemble(0)
    session_id = ensemble.begin_session()
    if stored is not None:
        document = paths.encode_cluster_id(stored)
        operations = [
            StoreOperation("create", paths.CLUSTER),
            StoreOperation("create", paths.CLUSTER_ID, document),
        ]
        ensemble.apply(operations, session_id)
    with pytest.raises(WrongCluster, match=f"{says}.*of cluster mine"):
        finish(ensemble, check_cluster(SettledStore(ensemble.connect()), "mine"))


def test_store_of_the_same_cluster_is_joined_and_left_as_it_is() -> None:
    ensemble = SimulatedEnsemble(0)
    store, session_id = ensemble.connect(), ensemble.begin_session()
    operations = [
        StoreOperation("create", paths.CLUSTER),
        StoreOperation("create", paths.CLUSTER_ID, paths.encode_cluster_id("mine")),
    ]
    ensemble.apply(operations, session_id)
    before = ensemble.tree.subtree("/")
    finish(ensemble, check_cluster(SettledStore(store), "mine"))
    assert ensemble.tree.subtree("/") == before


def test_registration_of_a_resumed_session_is_kept_where_nobody_else_uses_the_store() -> None:
    ensemble = cluster()
    store = ensemble.connect()
    before = finish(ensemble, register(SettledStore(store), me(0), store.session_id, 5))
    moved = me(0)._replace(rack="r2")
    assert finish(ensemble, register(SettledStore(store), moved, store.session_id, 6)) == before
    assert b'"rack":"r2"' in ensemble.tree.get(paths.broker(0)).data


def test_registration_of_a_resumed_session_is_replaced_in_a_cluster() -> None:
    """What the controller told the previous process is lost: a new broker epoch is told all."""
    ensemble = cluster()
    store = ensemble.connect()
    mine = me(0)._replace(cluster_id="c")
    before = finish(ensemble, register(SettledStore(store), mine, store.session_id, 5))
    again = finish(ensemble, register(SettledStore(store), mine, store.session_id, 6))
    assert again.epoch > before.epoch
    assert again.session_id == store.session_id
    assert ensemble.tree.get(paths.broker(0)).stat.owner_session == store.session_id


def test_registration_is_continued_by_a_process_that_knows_what_the_last_one_was_told() -> None:
    ensemble = cluster()
    store = ensemble.connect()
    mine = me(0)._replace(cluster_id="c")
    before = finish(ensemble, register(SettledStore(store), mine, store.session_id, 5))
    heir = mine._replace(resumes=before.epoch, rack="r2")
    assert finish(ensemble, register(SettledStore(store), heir, store.session_id, 6)) == before
    assert b'"rack":"r2"' in ensemble.tree.get(paths.broker(0)).data
    of_another = mine._replace(resumes=before.epoch - 1)
    again = finish(ensemble, register(SettledStore(store), of_another, store.session_id, 7))
    assert again.epoch > before.epoch


def test_next_controller_has_the_next_epoch_and_fences_the_one_before() -> None:
    ensemble = cluster()
    stores = [ensemble.connect() for _ in range(2)]
    first = finish(ensemble, elect(SettledStore(stores[0]), BrokerId(0), 5))
    assert first.epoch == 1
    assert finish(ensemble, elect(SettledStore(stores[1]), BrokerId(1), 5)) is None
    acting = SettledStore(stores[0], first.fence)
    finish(ensemble, acting.multi().create("/by-first").commit())
    finish(ensemble, SettledStore(stores[1]).multi().delete(paths.CONTROLLER).commit())
    second = finish(ensemble, elect(SettledStore(stores[1]), BrokerId(1), 6))
    assert second.epoch == 2
    with pytest.raises(Fenced):
        finish(ensemble, acting.multi().create("/too-late").commit())
    assert ensemble.tree.exists("/too-late") is None


@pytest.mark.parametrize("seed", range(30))
def test_one_of_many_candidates_is_elected_whatever_befalls_connections(seed: int) -> None:
    ensemble = cluster(seed, Faults(loss_per_request=0.3, outage_max_ms=3_000))
    stores = [ensemble.connect() for _ in range(4)]
    outcomes = [
        run(elect(SettledStore(store), BrokerId(number), 5)) for number, store in enumerate(stores)
    ]
    ensemble.run_until(lambda: all(outcome.done for outcome in outcomes))
    assert [outcome.error for outcome in outcomes] == [None] * 4
    elected = [outcome.value for outcome in outcomes if outcome.value is not None]
    assert [type(won) for won in elected] == [Elected]
    assert elected[0].epoch == int(ensemble.tree.get(paths.CONTROLLER_EPOCH).data) == 1
