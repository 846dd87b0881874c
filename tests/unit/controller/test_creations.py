"""Which creation of its topic a LeaderAndIsr is about: the store is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kbroker.cluster.control_requests import (
    ControlRequest,
    ControlResponse,
    LeaderAndIsr,
    LedPartition,
    Sender,
    StopReplica,
)
from kbroker.controller.store import creations
from kbroker.controller.store.creations import Creations, OwnHosting
from kbroker.ipc.pending import Pending, run
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.simulated import Faults, SimulatedEnsemble
from kbroker.metastore.store import StoreOperation
from kbroker.storage.dirs.creation_note import is_other_creation, is_same_store

pytestmark = pytest.mark.unit

SENDER = Sender(0, 1)


class Broker:
    """Its hosting answers at once."""

    def __init__(self) -> None:
        self.ensemble = SimulatedEnsemble(1, Faults(delay_max_ms=5))
        self.session_id = self.ensemble.begin_session()
        for path in (*paths.PERSISTENT_PATHS, paths.CLUSTER_ID):
            self.apply("create", path)
        self.store = self.ensemble.connect()
        self.known: dict[str, bytes] = {}
        self.taken: list[Any] = []
        self.creations = Creations(SettledStore(self.store), self, self.ensemble.sleep)
        self.own = OwnHosting(self, self.creations)

    def apply(self, kind: Any, path: str) -> None:
        self.ensemble.apply([StoreOperation(kind, path)], self.session_id)

    def creation(self, name: str) -> bytes:
        return self.known.get(name, b"")

    def learn_creations(self, found: Mapping[str, bytes]) -> None:
        self.known |= found

    def take(self, request: ControlRequest) -> Pending[ControlResponse]:
        self.taken.append(request)
        done: Pending[ControlResponse] = Pending()
        done.resolve(ControlResponse())
        return done

    def complete(self, *names: str, is_new: bool = False) -> dict[str, bytes]:
        done = run(self.creations.complete(led(*names, is_new=is_new)))
        self.ensemble.run_until(lambda: done.done)
        assert isinstance(done.value, LeaderAndIsr)
        return dict(done.value.creations)


@pytest.fixture
def broker() -> Broker:
    return Broker()


def led(*names: str, is_new: bool = False) -> LeaderAndIsr:
    rows = [LedPartition(name, 0, 1, 0, 0, [0], 0, [0], is_new) for name in names]
    return LeaderAndIsr(SENDER, rows, {})


def test_topic_that_was_created_again_has_another_creation_of_the_same_store(
    broker: Broker,
) -> None:
    broker.apply("create", paths.topic("t"))
    broker.apply("create", paths.topic("u"))
    first = broker.complete("t", "u", "gone")
    broker.apply("delete", paths.topic("t"))
    broker.apply("create", paths.topic("t"))

    second = broker.complete("t", "u")

    assert first.keys() == second.keys() == {"t", "u"}
    assert first["u"] == second["u"]
    assert is_other_creation(first["t"], second["t"])


def test_store_that_was_set_up_again_is_another_one(broker: Broker) -> None:
    broker.apply("create", paths.topic("t"))
    first = broker.complete("t")
    broker.apply("delete", paths.CLUSTER_ID)
    broker.apply("create", paths.CLUSTER_ID)

    assert not is_same_store(first["t"], broker.complete("t")["t"])


def test_only_topics_that_are_not_known_or_that_are_new_are_asked_for(broker: Broker) -> None:
    broker.known = {"t": b"c" * 16}

    assert broker.creations.unknown(led("t", "u")) == ["u"]
    assert broker.creations.unknown(led("t", "u", is_new=True)) == ["t", "u"]
    assert broker.creations.unknown(StopReplica(SENDER, [])) == []


def test_store_that_does_not_answer_is_not_waited_for_for_long(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The partition is led by name, as in Kafka, rather than not at all."""
    broker.apply("create", paths.topic("t"))
    broker.ensemble.run_until(lambda: broker.store.session_id != 0)
    broker.store.lose(60_000)
    before = broker.ensemble.now_ms

    assert broker.complete("t") == {}
    assert broker.ensemble.now_ms - before <= creations.READ_MS + 10
    assert "going by their names" in caplog.text


def test_own_controller_is_not_held_up_and_what_it_knows_is_not_asked_for(broker: Broker) -> None:
    """Slots are reserved for a new topic until its replicas are there."""
    broker.apply("create", paths.topic("t"))
    request = led("t", "u")._replace(creations={"u": b"u" * 16})

    assert broker.own.take(request).done
    assert broker.taken == [request] and broker.known == {}

    broker.ensemble.run_until(lambda: bool(broker.known))
    assert broker.known.keys() == {"t"}
    assert broker.creations.unknown(request) == []
    assert broker.creations.unknown(led("t", is_new=True)) == ["t"]
    assert broker.creations.unknown(request._replace(creations=broker.known)) == ["u"]
