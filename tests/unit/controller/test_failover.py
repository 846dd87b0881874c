"""What a broker does about another one that is gone: by who it is, and what others say of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from support.controller.controllers import resolved

from kbroker.controller.election.failover import Failover
from kbroker.controller.state.state import ClusterState
from kbroker.ipc.pending import Pending, run
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.simulated import Faults, SimulatedEnsemble
from kbroker.metastore.store import StoreOperation
from kbroker.peers.evidence import NO_EPOCH, STILL_SERVED_MS, Attempt, Hearing, PeerEvidence
from kbroker.peers.link import LinkFailed
from kbroker.peers.watch import WatchedBroker, WatchOwner

pytestmark = pytest.mark.unit

ME, DEAD, THIRD = 1, 2, 3


class Brokers:
    """The background's ``BrokerChanges``."""

    def __init__(self) -> None:
        self.removed: list[tuple[int, int]] = []
        self.readmitted: list[tuple[int, int]] = []
        self.removed_early: dict[int, int] = {}

    async def remove_early(self, broker_id: int, epoch: int, why: str) -> Pending[Any]:
        self.removed.append((broker_id, epoch))
        self.removed_early[broker_id] = epoch
        return resolved([])

    async def readmit(self, broker_id: int, epoch: int) -> None:
        self.readmitted.append((broker_id, epoch))


class Scene:
    """Broker ME in a cluster; the test says what it knows and what others answer."""

    def __init__(self) -> None:
        self.ensemble = SimulatedEnsemble(1, Faults(delay_max_ms=2))
        self.session_id = self.ensemble.begin_session()
        created = [StoreOperation("create", path) for path in paths.PERSISTENT_PATHS]
        self.ensemble.apply(created, self.session_id)
        self.sessions: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.evidences: dict[int, PeerEvidence] = {}
        self.watched: Mapping[int, WatchedBroker] = {}
        self.answers: Callable[[int], Hearing | None] = lambda _: Hearing.GONE
        self.asked: list[tuple[int, int, int]] = []
        self.dropped: list[tuple[int, int]] = []
        self.heard_ms = 0
        self.is_on = True
        self.brokers = Brokers()
        self.background: Any = None
        connected = self.ensemble.connect()
        self.ensemble.run_until(lambda: connected.session_id != 0)
        host: Any = self
        self.failover = Failover(ME, SettledStore(connected), self, host, lambda: self.is_on)

    # -- the cluster --

    def register(self, *broker_ids: int, answers: bool = True) -> None:
        for broker_id in broker_ids:
            session = self.sessions[broker_id] = self.ensemble.begin_session()
            endpoints = [["PLAINTEXT", "host", 9092, "PLAINTEXT"]]
            document = paths.encode_broker(endpoints, None, 0, failover=int(answers))
            path = paths.broker(broker_id)
            self.ensemble.apply([StoreOperation("create", path, document, ephemeral=True)], session)
            self.epochs[broker_id] = self.ensemble.tree.get(path).stat.created_id

    def elect(self, broker_id: int) -> None:
        tree = self.ensemble.tree
        operations = [
            StoreOperation("create", paths.CONTROLLER, paths.encode_controller(broker_id, 0),
                      ephemeral=True),
            StoreOperation("create", paths.CONTROLLER_EPOCH, b"1")
            if tree.exists(paths.CONTROLLER_EPOCH) is None
            else StoreOperation("set", paths.CONTROLLER_EPOCH, b"2"),
        ]  # fmt: skip
        self.ensemble.apply(operations, self.sessions[broker_id])
        if broker_id == ME:
            self.background = self
            self.writes: Any = self
            self.state = self.brokers

    def put(self, work: Any) -> None:
        run(work())

    def die(self, broker_id: int, epoch: int | None = None) -> None:
        """There is evidence that it is gone."""
        evidence = self.evidences[broker_id] = PeerEvidence()
        known = self.epochs[broker_id] if epoch is None else epoch
        evidence.attempted(Attempt.REACHED, self.now_ms(), known)
        evidence.closed(self.now_ms())
        for later_ms in (0, 100, 200):
            evidence.attempted(Attempt.REFUSED, self.now_ms() + later_ms)

    def look(self) -> None:
        self.failover.look()
        self.settle(100)

    def report(self, broker_id: int, within_ms: int = 600) -> None:
        self.die(broker_id)
        self.look()
        self.failover.gone(broker_id)
        self.settle(within_ms)

    def settle(self, within_ms: int) -> None:
        waited = self.ensemble.sleep(within_ms)
        self.ensemble.run_until(lambda: waited.done)

    @property
    def controller(self) -> int | None:
        if self.ensemble.tree.exists(paths.CONTROLLER) is None:
            return None
        return paths.decode_controller(self.ensemble.tree.get(paths.CONTROLLER).data)

    # -- its peers --

    def watch(self, wanted: Mapping[int, WatchedBroker], owner: WatchOwner) -> None:
        self.watched = wanted

    def evidence(self, broker_id: int) -> PeerEvidence | None:
        return self.evidences.get(broker_id)

    async def ask(self, broker_id: int, about_id: int, about_epoch: int) -> Hearing:
        self.asked.append((broker_id, about_id, about_epoch))
        answer = self.answers(broker_id)
        if answer is None:
            raise LinkFailed("it does not answer")
        return answer

    # -- its host --

    def now_ms(self) -> int:
        return self.ensemble.now_ms

    def sleep(self, delay_ms: int) -> Pending[None]:
        return self.ensemble.sleep(delay_ms)

    def drop_follower(self, broker_id: int, closed_ms: int) -> Pending[int]:
        self.dropped.append((broker_id, closed_ms))
        return resolved(self.heard_ms)


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.register(ME, DEAD, THIRD)
    return made


def test_others_are_watched_by_their_registrations(scene: Scene) -> None:
    scene.register(4, answers=False)
    scene.look()
    assert {number: one.answers for number, one in scene.watched.items()} == {
        DEAD: True, THIRD: True, 4: False
    }  # fmt: skip
    assert scene.watched[DEAD].epoch == scene.epochs[DEAD]
    scene.ensemble.end_session(scene.sessions[THIRD])
    scene.settle(50)
    assert sorted(scene.watched) == [DEAD, 4]


def test_controller_removes_it_when_the_others_agree(scene: Scene) -> None:
    scene.elect(ME)
    scene.report(DEAD)
    assert scene.dropped == [(DEAD, scene.evidences[DEAD].closed_ms)]
    assert scene.asked == [(THIRD, DEAD, scene.epochs[DEAD])]
    assert scene.brokers.removed == [(DEAD, scene.epochs[DEAD])]
    assert scene.failover.counts.removals == 1


def test_one_that_hears_from_it_is_a_veto(scene: Scene) -> None:
    scene.elect(ME)
    scene.answers = lambda _: Hearing.HEARS
    scene.report(DEAD, 5_000)
    assert scene.brokers.removed == []
    assert scene.failover.counts.vetoes >= 2, "it is asked again as long as there is evidence"


def test_veto_that_is_withdrawn_counts_no_more(scene: Scene) -> None:
    """The other broker's loop was late: it had not noticed yet."""
    scene.elect(ME)
    scene.answers = lambda _: Hearing.HEARS if len(scene.asked) < 3 else Hearing.GONE
    scene.report(DEAD, 5_000)
    assert scene.brokers.removed == [(DEAD, scene.epochs[DEAD])]


def test_nothing_is_removed_while_no_other_broker_answers(scene: Scene) -> None:
    scene.elect(ME)
    scene.answers = lambda _: None
    scene.report(DEAD, 5_000)
    assert scene.brokers.removed == []


def test_kafkas_are_not_asked(scene: Scene) -> None:
    scene.register(4, answers=False)
    scene.elect(ME)
    scene.report(DEAD)
    assert {other for other, *_ in scene.asked} == {THIRD}
    assert scene.brokers.removed == [(DEAD, scene.epochs[DEAD])]


def test_broker_that_still_fetches_here_lives(scene: Scene) -> None:
    """Only the way to it is closed."""
    scene.elect(ME)
    scene.die(DEAD)
    closed_ms = scene.evidences[DEAD].closed_ms
    assert closed_ms is not None
    scene.look()
    scene.heard_ms = closed_ms + STILL_SERVED_MS + 1
    scene.failover.gone(DEAD)
    scene.settle(3_000)
    assert scene.asked == scene.brokers.removed == []
    assert scene.failover.hearing(DEAD, NO_EPOCH) is Hearing.HEARS


def test_evidence_of_an_earlier_registration_is_none_of_a_later_one(scene: Scene) -> None:
    scene.elect(ME)
    scene.die(DEAD, scene.epochs[DEAD] - 1)
    scene.look()
    scene.failover.gone(DEAD)
    scene.settle(1_000)
    assert scene.brokers.removed == []


def test_broker_that_is_back_before_the_others_have_answered_stays(scene: Scene) -> None:
    scene.elect(ME)

    def answer(_: int) -> Hearing:
        scene.evidences[DEAD].attempted(Attempt.REACHED, scene.now_ms(), scene.epochs[DEAD])
        return Hearing.GONE

    scene.answers = answer
    scene.report(DEAD, 2_000)
    assert scene.brokers.removed == []


def test_other_brokers_leave_it_to_the_controller(scene: Scene) -> None:
    scene.elect(THIRD)
    scene.report(DEAD, 2_000)
    assert (scene.asked, scene.controller) == ([], THIRD)
    assert len(scene.dropped) == 1, "but their leaders do not wait for it"


def test_controller_that_is_gone_is_deposed(scene: Scene) -> None:
    scene.elect(DEAD)
    scene.report(DEAD)
    assert scene.controller is None
    assert scene.failover.counts.depositions == 1


def test_controller_is_deposed_once_by_the_same_evidence(scene: Scene) -> None:
    """A Kafka that was elected again although this broker does not reach it stays."""
    scene.elect(DEAD)
    scene.report(DEAD)
    scene.elect(DEAD)
    scene.failover.gone(DEAD)
    scene.settle(3_000)
    assert scene.controller == DEAD


def test_controller_stays_if_another_broker_hears_from_it(scene: Scene) -> None:
    scene.elect(DEAD)
    scene.answers = lambda _: Hearing.HEARS
    scene.report(DEAD, 3_000)
    assert scene.controller == DEAD


def test_controller_that_was_elected_meanwhile_stays(scene: Scene) -> None:
    """The node is compared with what was read before the others were asked."""
    scene.elect(DEAD)

    def answer(_: int) -> Hearing:
        if scene.controller == DEAD:
            deleted = StoreOperation("delete", paths.CONTROLLER)
            scene.ensemble.apply([deleted], scene.sessions[DEAD])
            scene.elect(THIRD)
        return Hearing.GONE

    scene.answers = answer
    scene.report(DEAD, 1_000)
    assert scene.controller == THIRD
    assert scene.failover.counts.depositions == 0


def test_new_controller_removes_what_was_gone_before(scene: Scene) -> None:
    scene.elect(DEAD)
    scene.report(DEAD)
    scene.elect(ME)
    scene.failover.elected()
    scene.settle(600)
    assert scene.brokers.removed == [(DEAD, scene.epochs[DEAD])]


def test_controller_elected_while_it_asks_about_its_predecessor_removes_it(scene: Scene) -> None:
    """Another broker has deposed the old one first."""
    scene.elect(DEAD)

    def answer(_: int) -> Hearing:
        if scene.controller == DEAD:
            deleted = StoreOperation("delete", paths.CONTROLLER)
            scene.ensemble.apply([deleted], scene.sessions[DEAD])
            scene.elect(ME)
            scene.failover.elected()
        return Hearing.GONE

    scene.answers = answer
    scene.report(DEAD, 1_000)
    assert scene.brokers.removed == [(DEAD, scene.epochs[DEAD])]


def test_removed_broker_that_is_reached_in_its_session_is_readmitted(scene: Scene) -> None:
    scene.elect(ME)
    scene.report(DEAD)
    evidence = scene.evidences[DEAD]
    evidence.attempted(Attempt.REACHED, scene.now_ms(), scene.epochs[DEAD] + 9)
    scene.failover.reached(DEAD)
    assert scene.brokers.readmitted == [], "that is another run of it"
    evidence.attempted(Attempt.REACHED, scene.now_ms(), scene.epochs[DEAD])
    scene.failover.reached(DEAD)
    assert scene.brokers.readmitted == [(DEAD, scene.epochs[DEAD])]


def test_nothing_happens_when_it_is_switched_off(scene: Scene) -> None:
    scene.is_on = False
    scene.elect(ME)
    scene.report(DEAD, 2_000)
    assert (scene.watched, scene.dropped, scene.brokers.removed) == ({}, [], [])
    assert scene.failover.hearing(DEAD, NO_EPOCH) is Hearing.UNKNOWN


def test_answers_to_others_follow_from_what_is_known(scene: Scene) -> None:
    scene.look()
    assert scene.failover.hearing(9, NO_EPOCH) is Hearing.UNKNOWN
    assert scene.failover.hearing(ME, NO_EPOCH) is Hearing.HEARS
    scene.die(DEAD)
    assert scene.failover.hearing(DEAD, NO_EPOCH) is Hearing.GONE
    scene.evidences[DEAD].attempted(Attempt.REACHED, 9, 9)
    assert scene.failover.hearing(DEAD, NO_EPOCH) is Hearing.HEARS


def test_controller_that_was_deposed_is_left_out_by_the_next_one(scene: Scene) -> None:
    """Nobody is told of it as of one that lives."""
    scene.elect(DEAD)
    scene.report(DEAD)
    state = ClusterState(ME, 2)
    for number in (ME, DEAD, THIRD):
        state.set_broker(number, [], None, scene.epochs[number])
    scene.failover.leave_out(state)
    assert (sorted(state.brokers), state.removed_early) == ([ME, THIRD], {DEAD: scene.epochs[DEAD]})


def test_controller_that_is_back_is_not_left_out(scene: Scene) -> None:
    scene.elect(DEAD)
    scene.report(DEAD)
    scene.evidences[DEAD].attempted(Attempt.REACHED, scene.now_ms(), scene.epochs[DEAD])
    state = ClusterState(ME, 2)
    state.set_broker(DEAD, [], None, scene.epochs[DEAD])
    scene.failover.leave_out(state)
    assert sorted(state.brokers) == [DEAD]


def test_broker_that_is_back_when_its_turn_comes_is_not_removed(scene: Scene) -> None:
    """Other events of the controller came first."""
    scene.elect(ME)
    put, late = scene.put, list[Any]()
    scene.put = late.append  # type: ignore[method-assign]
    scene.report(DEAD)
    scene.evidences[DEAD].attempted(Attempt.REACHED, scene.now_ms(), scene.epochs[DEAD])
    put(late.pop())
    assert scene.brokers.removed == []
