"""Several brokers on one store, with seeds: connections and sessions are lost, processes die.

Whatever befalls them, an epoch has one controller, and a controller changes nothing once the store
knows a later epoch. When the faults end, every broker is registered, and one is the controller.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbroker.controller.election.membership import AlreadyRegistered, Elected, Registration
from kbroker.controller.election.session import BrokerSession
from kbroker.ipc.pending import Pending, run
from kbroker.metastore import paths
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.simulated import SESSION_TIMEOUT_MS, Faults, SimulatedEnsemble
from kbroker.metastore.store import ANY_VERSION, ConnectionLoss, StoreOperation
from kbroker.types import BrokerId

pytestmark = pytest.mark.unit

PLAIN = [["PLAINTEXT", "host", 9092, "PLAINTEXT"]]
WRITES = "/writes"


class Ensemble(SimulatedEnsemble):
    """Records writes of controllers, with the epoch in the store at that time."""

    def __init__(self, seed: int, faults: Faults) -> None:
        super().__init__(seed, faults)
        self.written: list[tuple[int, int, int]] = []  # epoch of the writer, broker, epoch known
        session_id = self.begin_session()
        for path in (*paths.PERSISTENT_PATHS, WRITES):
            self.apply([StoreOperation("create", path)], session_id)

    def apply(self, operations: list[StoreOperation], session_id: int) -> list[str]:
        made = super().apply(operations, session_id)
        for operation in operations:
            if operation.path.startswith(WRITES + "/"):
                epoch, broker, _ = map(int, operation.path.rpartition("/")[2].split("-"))
                known = int(self.tree.get(paths.CONTROLLER_EPOCH).data)
                self.written.append((epoch, broker, known))
        return made


class Broker:
    """A process: its store, and a controller that writes for as long as it may."""

    def __init__(self, ensemble: Ensemble, number: int, cluster_id: str = "") -> None:
        self.number = number
        self.ensemble = ensemble
        self.store = ensemble.connect()
        self.epoch: int | None = None  # of its candidacy
        self.controller_epoch = 0
        self.ended_by_start = 0  # the session of its last run
        self.not_elected_count = 0
        self.failures: list[BaseException] = []
        self.registrations: list[tuple[int, int]] = []
        me = Registration(BrokerId(number), PLAIN, None, cluster_id)
        self.session = BrokerSession(self.store, me, self)
        self.session.start()

    def now_ms(self) -> int:
        return self.ensemble.now_ms

    def sleep(self, delay_ms: int) -> Pending[None]:
        return self.ensemble.sleep(delay_ms)

    def registered(self, broker_epoch: int, controller_epoch: int) -> None:
        self.registrations.append((broker_epoch, controller_epoch))

    async def end_last_session(self, session_id: int) -> bool:
        if session_id != self.ended_by_start:
            return False
        self.ensemble.end_session(session_id)
        return True

    async def before_hosting(self, session_id: int) -> None:
        await self.ensemble.sleep(1)
        assert self.registrations and self.epoch is None  # it is not elected meanwhile

    def connected(self, is_connected: bool) -> None:
        pass

    async def begin_term(self, elected: Elected, store: SettledStore) -> None:
        self.epoch = elected.epoch
        run(self._write(elected.epoch, store)).then(self._wrote)

    def resign(self) -> None:
        self.epoch = None

    def not_elected(self) -> None:
        self.not_elected_count += 1

    def failed(self, error: BaseException) -> None:
        self.failures.append(error)

    async def _write(self, epoch: int, store: SettledStore) -> None:
        number = 0
        while True:
            number += 1
            path = f"{WRITES}/{epoch}-{self.number}-{number}"
            await store.multi().create(path, b"").commit()
            await self.ensemble.sleep(self.ensemble.random.randint(1, 300))

    def _wrote(self, outcome: Pending[None]) -> None:
        if not isinstance(outcome.error, Fenced):
            self.failures.append(outcome.error or AssertionError("it ended"))


def befall(ensemble: Ensemble, brokers: list[Broker]) -> None:
    """One random event for one broker."""
    at = ensemble.random.randrange(len(brokers))
    kind = ensemble.random.choice(("crash", "expire", "lose", "lose long"))
    store = brokers[at].store
    if kind == "crash":
        store.crash()
        brokers[at] = Broker(ensemble, at)
    elif kind == "expire":
        store.expire()
    else:
        store.lose(ensemble.random.randint(1, 4_000 if kind == "lose" else 20_000))


def is_settled(ensemble: Ensemble, brokers: list[Broker]) -> bool:
    """Whether every broker is registered by its session, and one of them is the controller."""
    if ensemble.tree.exists(paths.CONTROLLER) is None:
        return False
    for broker in brokers:
        stat = ensemble.tree.exists(paths.broker(broker.number))
        if stat is None or stat.owner_session != broker.store.session_id:
            return False
        if stat.created_id != broker.session.broker_epoch:
            return False
    elected = json.loads(ensemble.tree.get(paths.CONTROLLER).data)["brokerid"]
    epoch = int(ensemble.tree.get(paths.CONTROLLER_EPOCH).data)
    return [broker.epoch for broker in brokers] == [
        epoch if broker.number == elected else None for broker in brokers
    ]


@pytest.mark.parametrize("seed", range(40))
def test_one_controller_acts_in_an_epoch_and_all_settle(seed: int) -> None:
    ensemble = Ensemble(seed, Faults(loss_per_request=0.02))
    brokers = [Broker(ensemble, number) for number in range(3)]
    for _ in range(15):
        until_ms = ensemble.now_ms + ensemble.random.randint(0, 5_000)
        ensemble.run_until(lambda until_ms=until_ms: ensemble.now_ms >= until_ms)
        befall(ensemble, brokers)
    ensemble.faults = Faults()
    ensemble.run_until(lambda: is_settled(ensemble, brokers), within_ms=120_000)

    assert [broker.failures for broker in brokers] == [[], [], []]
    writers: dict[int, set[int]] = {}
    for epoch, broker, known in ensemble.written:
        writers.setdefault(epoch, set()).add(broker)
        assert epoch == known, "a controller wrote after another was elected"
    assert all(len(brokers_of) == 1 for brokers_of in writers.values())
    assert list(writers) == sorted(writers)
    assert writers


def test_id_of_a_living_broker_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """Kafka exits at once, also after a crash, whose session has to end first."""
    ensemble = Ensemble(1, Faults())
    first = Broker(ensemble, 0)
    ensemble.run_until(lambda: is_settled(ensemble, [first]))
    second = Broker(ensemble, 0)
    ensemble.run_until(lambda: "broker 0 is registered by another session" in caplog.text)
    (text,) = {record.getMessage() for record in caplog.records}
    assert text.count("(PLAINTEXT://host:9092)") == 2  # where each of them is
    assert "give one of them another broker.id" in text and "waiting for it to end" in text
    first.store.crash()
    ensemble.run_until(lambda: is_settled(ensemble, [second]))
    assert second.session.broker_epoch > first.session.broker_epoch


def test_broker_that_was_killed_ends_the_session_of_its_last_run() -> None:
    """It is kept in its data directory; nobody waits until it expires."""
    ensemble = Ensemble(1, Faults())
    first = Broker(ensemble, 0)
    ensemble.run_until(lambda: is_settled(ensemble, [first]))
    first.store.crash()
    second = Broker(ensemble, 0)
    second.ended_by_start = first.store.session_id
    killed_ms = ensemble.now_ms
    ensemble.run_until(lambda: is_settled(ensemble, [second]))
    assert ensemble.now_ms - killed_ms < SESSION_TIMEOUT_MS
    assert second.session.broker_epoch > first.session.broker_epoch


def test_session_at_another_address_is_not_ended() -> None:
    """A second broker has the id, or this one has moved: the session decides, as ever."""
    ensemble = Ensemble(1, Faults())
    document = paths.encode_broker([["PLAINTEXT", "elsewhere", 9092, "PLAINTEXT"]], None, 0)
    other = ensemble.begin_session()
    ensemble.apply([StoreOperation("create", paths.broker(0), document, ephemeral=True)], other)
    broker = Broker(ensemble, 0)
    broker.ended_by_start = other
    waited = ensemble.sleep(2_000)
    ensemble.run_until(lambda: waited.done)
    assert ensemble.is_alive(other)
    assert broker.session.broker_epoch == -1


def in_cluster(cluster_id: str) -> Ensemble:
    ensemble = Ensemble(1, Faults())
    known = StoreOperation("create", paths.CLUSTER_ID, paths.encode_cluster_id(cluster_id))
    ensemble.apply([known], ensemble.begin_session())
    return ensemble


def test_start_is_refused_while_a_living_broker_has_the_id() -> None:
    ensemble = in_cluster("mine")
    first = Broker(ensemble, 0, "mine")
    ensemble.run_until(lambda: is_settled(ensemble, [first]))
    second = Broker(ensemble, 0, "mine")
    began_ms = ensemble.now_ms
    ensemble.run_until(lambda: bool(second.failures), within_ms=60_000)

    assert ensemble.now_ms - began_ms > Registration(BrokerId(0), PLAIN, None).session_ms
    (error,) = second.failures
    assert isinstance(error, AlreadyRegistered)
    assert str(error).count("(PLAINTEXT://host:9092)") == 2  # where each of them is
    assert "give one of them another broker.id" in str(error)
    assert first.failures == [] and is_settled(ensemble, [first])


def test_broker_that_serves_waits_for_its_id_as_long_as_it_takes() -> None:
    ensemble = in_cluster("mine")
    broker = Broker(ensemble, 0, "mine")
    ensemble.run_until(lambda: is_settled(ensemble, [broker]))
    broker.store.lose(20_000)
    other = Broker(ensemble, 0)
    ensemble.run_until(lambda: bool(other.registrations), within_ms=60_000)
    until_ms = ensemble.now_ms + 60_000
    ensemble.run_until(lambda: ensemble.now_ms >= until_ms, within_ms=70_000)
    assert broker.failures == [] and len(broker.registrations) == 1
    other.store.crash()
    ensemble.run_until(lambda: is_settled(ensemble, [broker]), within_ms=60_000)

    assert len(broker.registrations) == 2


def test_broker_that_serves_goes_on_while_the_store_is_of_another_cluster(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Somebody has wiped ZooKeeper: a broker that stopped would make it worse."""
    ensemble = Ensemble(1, Faults())
    known = StoreOperation("create", paths.CLUSTER_ID, paths.encode_cluster_id("mine"))
    client = ensemble.begin_session()
    ensemble.apply([known], client)
    broker = Broker(ensemble, 0, "mine")
    ensemble.run_until(lambda: is_settled(ensemble, [broker]))
    epoch = broker.session.broker_epoch

    ensemble.apply([StoreOperation("delete", paths.CLUSTER_ID, version=ANY_VERSION)], client)
    broker.store.expire()
    ensemble.run_until(lambda: "knows no cluster id" in caplog.text)
    assert broker.failures == [] and broker.session.broker_epoch == epoch
    ensemble.apply([known], client)
    ensemble.run_until(lambda: is_settled(ensemble, [broker]))
    assert broker.session.broker_epoch > epoch


def test_short_loss_keeps_the_office() -> None:
    ensemble = Ensemble(1, Faults())
    broker = Broker(ensemble, 0)
    ensemble.run_until(lambda: is_settled(ensemble, [broker]))
    count = len(ensemble.written)
    broker.store.lose(3_000)
    ensemble.run_until(lambda: len(ensemble.written) > count + 3)
    assert broker.epoch == 1
    assert {epoch for epoch, _, _ in ensemble.written} == {1}


def test_failure_of_a_turn_is_told() -> None:
    ensemble = Ensemble(1, Faults())
    broker = Broker(ensemble, 0)

    async def broken(*_: Any) -> None:
        raise ValueError("the topics cannot be read")

    broker.begin_term = broken  # type: ignore[method-assign]
    ensemble.run_until(lambda: bool(broker.failures))
    assert isinstance(broker.failures[0], ValueError)


def test_office_that_could_not_be_taken_is_stood_for_again() -> None:
    """A connection lost halfway left a controller with half of the topics."""
    ensemble = Ensemble(1, Faults())
    broker = Broker(ensemble, 0)
    begin_term, tries = broker.begin_term, [ConnectionLoss(), None]

    async def interrupted(elected: Elected, store: SettledStore) -> None:
        error = tries.pop(0)
        if error is not None:
            broker.store.lose(10)
            raise error
        await begin_term(elected, store)

    broker.begin_term = interrupted  # type: ignore[method-assign]
    ensemble.run_until(lambda: is_settled(ensemble, [broker]))
    assert (broker.epoch, broker.failures) == (2, [])


@pytest.mark.parametrize("path", [paths.CONTROLLER, paths.CONTROLLER_EPOCH])
def test_damaged_node_of_the_controller_ends_in_another_election(path: str) -> None:
    """Nobody would find the controller, or it could write nothing."""
    ensemble = Ensemble(1, Faults())
    brokers = [Broker(ensemble, number) for number in range(2)]
    ensemble.run_until(lambda: is_settled(ensemble, brokers))
    before = ensemble.tree.get(paths.CONTROLLER_EPOCH).data

    session_id = ensemble.begin_session()
    ensemble.apply([StoreOperation("set", path, b"{")], session_id)

    def is_over() -> bool:
        is_present = ensemble.tree.exists(path) is not None
        return is_present and ensemble.tree.get(path).data != b"{" and is_settled(ensemble, brokers)

    ensemble.run_until(is_over)
    assert int(ensemble.tree.get(paths.CONTROLLER_EPOCH).data) > int(before)
    assert not any(broker.failures for broker in brokers)


def test_epoch_that_cannot_be_read_is_followed_by_one_above_all_that_are_known() -> None:
    """Brokers reject a controller with a lower one."""
    ensemble = Ensemble(1, Faults())
    broker = Broker(ensemble, 0)
    broker.controller_epoch = 900
    session_id = ensemble.begin_session()
    ensemble.apply([StoreOperation("create", paths.CONTROLLER_EPOCH, b"many")], session_id)

    ensemble.run_until(lambda: broker.epoch is not None)

    assert (broker.epoch, broker.registrations[0][1]) == (901, 0)


def test_broker_knows_the_latest_controller_epoch_when_it_is_registered() -> None:
    """So that it rejects a controller that was replaced before the broker registered."""
    ensemble = Ensemble(1, Faults())
    session_id = ensemble.begin_session()
    ensemble.apply([StoreOperation("create", paths.CONTROLLER_EPOCH, b"7")], session_id)
    broker = Broker(ensemble, 0)
    ensemble.run_until(lambda: broker.registrations)
    ((broker_epoch, controller_epoch),) = broker.registrations
    assert broker_epoch > 0 and controller_epoch == 7
