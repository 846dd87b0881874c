"""An elected controller: which decisions it repeats, and what it waits for."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.cluster.control_requests import (
    LEADER_DURING_DELETE,
    ControlRequest,
    ControlResponse,
    LeaderAndIsr,
    StopReplica,
    UpdateMetadata,
)
from kbroker.controller.configs.configs import ConfigsChanged
from kbroker.controller.election import announcements
from kbroker.controller.election.active_controller import ActiveController
from kbroker.controller.state import decisions
from kbroker.controller.state.state import Change, ClusterState, DeletionBegun
from kbroker.controller.state.topics import PlannedTopic
from kbroker.controller.store import persistence
from kbroker.ipc.pending import Pending, run
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.simulated import SimulatedEnsemble
from kbroker.metastore.store import NodeExists, StoreOperation

pytestmark = pytest.mark.unit

TOPIC = PlannedTopic("t", b"t" * 16, {0: [0, 1], 1: [1, 0]}, {"retention.ms": "5"})


class Brokers:
    """The test decides when they respond."""

    def __init__(self) -> None:
        self.open: list[tuple[int, ControlRequest, Pending[ControlResponse]]] = []

    def send(self, broker_id: int, request: ControlRequest) -> Pending[ControlResponse]:
        self.open.append((broker_id, request, Pending()))
        return self.open[-1][2]

    def set_live(self, brokers: Any) -> None:
        pass

    def set_configs(self, changed: ConfigsChanged) -> Pending[dict[str, int]]:
        return Pending()

    def forget_topic(self, name: str) -> None:
        pass

    def answer(self, kind: type) -> None:
        """Respond to pending requests of this type."""
        answered = [entry for entry in self.open if isinstance(entry[1], kind)]
        self.open = [entry for entry in self.open if not isinstance(entry[1], kind)]
        for _, _, pending in answered:
            pending.resolve(ControlResponse())


class Cluster:
    """A store with the nodes of every cluster, and a controller of two brokers on it."""

    def __init__(self) -> None:
        self.ensemble = SimulatedEnsemble(1)
        session_id = self.ensemble.begin_session()
        for path in paths.PERSISTENT_PATHS:
            self.ensemble.apply([StoreOperation("create", path)], session_id)
        self.brokers = Brokers()
        self.state = ClusterState(0, controller_epoch=3)
        for broker_id in (0, 1):
            self.state.set_broker(broker_id, [], None, epoch=10 + broker_id)
        connected = self.ensemble.connect()
        self.store = SettledStore(connected)
        self.ensemble.run_until(lambda: connected.session_id != 0)
        self.controller = ActiveController(self.state, self.store, self.brokers, self.brokers)

    def by_another(self, *operations: StoreOperation) -> None:
        self.ensemble.apply(list(operations), session_id=1)

    def write(self, decide: Any) -> Any:
        async def reread() -> list[Change]:
            return await persistence.reread_topics(self.store, self.state, ["t"])

        outcome = run(self.controller.write(decide, reread))
        self.ensemble.run_until(lambda: outcome.done)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def create(self) -> None:
        decision = self.write(lambda: decisions.create(self.state, [TOPIC]))
        self.controller.enter(decision.changes)
        self.brokers.answer(object)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_what_another_client_left_is_read_and_it_is_decided_again(cluster: Cluster) -> None:
    """Configs of a topic that does not exist: their node has an unknown version."""
    left = StoreOperation("create", paths.topic_config("t"), paths.encode_config({"left": "1"}))
    cluster.by_another(left)
    cluster.create()
    node = cluster.ensemble.tree.get(paths.topic_config("t"))
    assert paths.decode_config(node.data) == {"retention.ms": "5"}
    assert cluster.state.configs.versions[paths.topic_config("t")] == node.stat.version == 1


def test_topic_that_another_client_made_is_entered_and_told(cluster: Cluster) -> None:
    elsewhere = ClusterState(1, 2)
    elsewhere.brokers = cluster.state.brokers
    other = decisions.create(elsewhere, [TOPIC._replace(topic_id=b"o" * 16)])
    cluster.by_another(*other.writes)
    decided: list[bool] = []

    def decide() -> decisions.Decision:
        decided.append(cluster.state.topic("t") is not None)
        if decided[-1]:
            return decisions.Decision([], [])
        return decisions.create(cluster.state, [TOPIC])

    cluster.write(decide)
    assert decided == [False, True]
    assert cluster.state.existing("t").topic_id == b"o" * 16
    told = [(broker_id, type(request)) for broker_id, request, _ in cluster.brokers.open]
    assert told == [(n, kind) for kind in (LeaderAndIsr, UpdateMetadata) for n in (0, 1)]


def test_a_new_controller_says_which_topics_are_being_deleted(cluster: Cluster) -> None:
    """A broker that hears nothing of a topic keeps what it knew; the controller that the topic was
    marked under may have died before it said so."""
    cluster.create()
    cluster.state.mark_deleting(["t"])

    requests = announcements.at_start(cluster.state, [0, 1])

    told = {
        (broker_id, row.topic, row.partition): row.leader
        for broker_id, request in requests
        if isinstance(request, UpdateMetadata)
        for row in request.partitions
    }
    places = [(broker_id, "t", number) for broker_id in (0, 1) for number in (0, 1)]
    assert told == dict.fromkeys(places, LEADER_DURING_DELETE)


def test_deciding_again_has_an_end(cluster: Cluster) -> None:
    cluster.by_another(StoreOperation("create", paths.delete_topic("other")))
    decided: list[int] = []

    def decide() -> decisions.Decision:
        decided.append(1)
        return decisions.begin_deletion(["other"])

    with pytest.raises(NodeExists):
        cluster.write(decide)
    assert len(decided) == persistence.ATTEMPTS


def test_partitions_changed_by_another_client_are_told(cluster: Cluster) -> None:
    cluster.create()
    state = paths.encode_partition_state(1, 7, [1], 9)
    cluster.by_another(StoreOperation("set", paths.partition_state("t", 0), state, 0))
    changes = run(persistence.reread_topics(cluster.store, cluster.state, ["t"]))
    cluster.ensemble.run_until(lambda: changes.done)
    cluster.controller.enter(changes.value)
    leaders = [r for _, r, _ in cluster.brokers.open if isinstance(r, LeaderAndIsr)]
    (row,) = leaders[0].partitions
    assert (row.key, row.leader, row.leader_epoch, row.isr) == (("t", 0), 1, 7, [1])
    assert row.partition_epoch == 1


def test_settings_changed_by_another_client_are_decided_on_again(cluster: Cluster) -> None:
    cluster.create()
    path = paths.topic_config("t")
    cluster.by_another(StoreOperation("set", path, paths.encode_config({"a": "1"}), 0))
    wanted = ConfigsChanged(topics={"t": {"b": "2"}})

    async def reread() -> list[Change]:
        configs = cluster.state.configs
        return [await persistence.reread_configs(cluster.store, configs, wanted)]

    def decide() -> decisions.Decision:
        configs = cluster.state.configs
        present = ConfigsChanged(topics={"t": {**configs.topic("t"), "b": "2"}})
        return decisions.configure(configs, present, is_shared=True)

    outcome = run(cluster.controller.write(decide, reread))
    cluster.ensemble.run_until(lambda: outcome.done)
    assert paths.decode_config(cluster.ensemble.tree.get(path).data) == {"a": "1", "b": "2"}


def test_request_names_controller_and_registration(cluster: Cluster) -> None:
    cluster.create()
    cluster.controller.enter([DeletionBegun("t")])
    senders = [request.sender for _, request, _ in cluster.brokers.open]
    assert [tuple(sender) for sender in senders] == [(0, 3, 10), (0, 3, 11)]


def test_own_broker_can_be_waited_for_alone(cluster: Cluster) -> None:
    """Another broker may be disconnected, and respond only when its session has expired."""
    cluster.create()
    cluster.controller.enter([DeletionBegun("t")])
    here, everywhere = cluster.controller.told_here(), cluster.controller.all_told()
    answers = {broker_id: pending for broker_id, _, pending in cluster.brokers.open}
    assert not here.done

    answers[0].resolve(ControlResponse())
    assert here.done and not everywhere.done

    answers[1].resolve(ControlResponse())
    assert everywhere.done


def test_orders_to_stop_are_not_waited_for_by_who_needs_a_topic(cluster: Cluster) -> None:
    """StopReplica may take until an io worker has restarted."""
    cluster.create()
    cluster.controller.enter([DeletionBegun("t")])
    stopped = cluster.controller.send(announcements.stop(cluster.state, ["t"]))
    told = cluster.controller.all_told()
    assert not told.done
    cluster.brokers.answer(UpdateMetadata)
    assert told.done and not stopped.done
    assert cluster.controller.all_told().done
    cluster.brokers.answer(StopReplica)
    assert [answered.broker_id for answered in stopped.value] == [0, 1]
