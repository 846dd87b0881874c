"""Registration and election: one broker for an id, one controller for an epoch."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from kbroker.controller.membership import AlreadyRegistered, Elected, Registration, elect, register
from kbroker.ipc.pending import run
from kbroker.metastore import paths
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.simulated import Faults, SimulatedEnsemble
from kbroker.metastore.store import Operation
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
        ensemble.apply([Operation("create", path)], session_id)
    return ensemble


def me(number: int) -> Registration:
    return Registration(BrokerId(number), PLAIN, None)


def test_broker_epoch_grows_with_each_registration() -> None:
    ensemble = cluster()
    first = ensemble.connect()
    epoch, session_id = finish(ensemble, register(SettledStore(first), me(0), 5))
    assert session_id == first.session_id
    other = finish(ensemble, register(SettledStore(ensemble.connect()), me(1), 5))
    finish(ensemble, until_closed(first))
    again = finish(ensemble, register(SettledStore(ensemble.connect()), me(0), 5))
    assert 0 < epoch < other.epoch < again.epoch


async def until_closed(store: Any) -> None:
    await store.close()


def test_id_of_another_session_is_rejected() -> None:
    ensemble = cluster()
    finish(ensemble, register(SettledStore(ensemble.connect()), me(0), 5))
    with pytest.raises(AlreadyRegistered, match="broker 0"):
        finish(ensemble, register(SettledStore(ensemble.connect()), me(0), 6))


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
