"""A controller with its background on a simulated store, and brokers that accept everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from support.controller.controllers import resolved

from kbroker.cluster.control_requests import (
    ControlRequest,
    ControlResponse,
    LeaderAndIsr,
    StopReplica,
    UpdateMetadata,
)
from kbroker.cluster.features import SUPPORTED
from kbroker.cluster.topic_ids import TopicIds
from kbroker.controller.configs.configs import ConfigsChanged
from kbroker.controller.election.active_controller import ActiveController
from kbroker.controller.replicas.background import Background
from kbroker.controller.state.state import ClusterState, PartitionState, RegisteredBroker
from kbroker.controller.store import persistence
from kbroker.errors import ErrorCode
from kbroker.ipc.pending import Pending, run
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.simulated import Faults, SimulatedEnsemble
from kbroker.metastore.store import StoreOperation

SETTINGS: dict[str, Any] = {
    "unclean.leader.election.enable": False,
    "auto.leader.rebalance.enable": True,
    "leader.imbalance.check.interval.seconds": 300,
    "leader.imbalance.per.broker.percentage": 10,
    "delete.topic.enable": True,
    "cluster.features.enable": False,
    "inter.broker.protocol.version": "2.7-IV2",
}


class Controlled:
    """``start`` elects the controller. ``answers``: the brokers' responses. ``silent``: those
    without; their requests end with their registrations.
    """

    def __init__(self) -> None:
        self.ensemble = SimulatedEnsemble(1, Faults(delay_max_ms=5))
        self.session_id = self.ensemble.begin_session()
        self.apply(*[StoreOperation("create", path) for path in paths.PERSISTENT_PATHS])
        self.sessions: dict[int, int] = {}
        self.sent: list[tuple[int, ControlRequest]] = []
        self.live: list[Mapping[int, RegisteredBroker]] = []
        none = ControlResponse()
        self.answers: Callable[[int, ControlRequest], ControlResponse] = lambda *_: none
        self.silent: set[int] = set()
        self.unanswered: list[tuple[int, ControlRequest, Pending[ControlResponse]]] = []
        self.settings = dict(SETTINGS)
        self.deletions: list[str] = []  # that are to be finished
        self.configs: list[ConfigsChanged] = []
        self._connected = self.ensemble.connect()
        self.store = SettledStore(self._connected)

    # -- the store --

    def apply(self, *operations: StoreOperation) -> None:
        """Write as another client."""
        self.ensemble.apply(list(operations), self.session_id)

    def register(self, *broker_ids: int, host: str = "host") -> None:
        for broker_id in broker_ids:
            session = self.sessions[broker_id] = self.ensemble.begin_session()
            document = paths.encode_broker(
                [["P", host, 9092, "PLAINTEXT"]], None, 0, features=SUPPORTED
            )
            created = StoreOperation("create", paths.broker(broker_id), document, ephemeral=True)
            self.ensemble.apply([created], session)

    def leave(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self.ensemble.end_session(self.sessions.pop(broker_id))

    def create_topic(
        self, name: str, *replicas: list[int], states: Mapping[int, PartitionState] | None = None
    ) -> None:
        """Create it as Kafka's tools do, with states as an earlier controller has left them."""
        assignment = dict(enumerate(replicas))
        created = [StoreOperation("create", paths.topic_config(name), paths.encode_config({}))]
        document = paths.encode_topic(None, assignment)
        created.append(StoreOperation("create", paths.topic(name), document))
        if states:
            created.append(StoreOperation("create", paths.topic_partitions(name)))
        for number, state in (states or {}).items():
            created.append(StoreOperation("create", paths.partition(name, number)))
            data = paths.encode_partition_state(state.leader, state.leader_epoch, state.isr, 0)
            created.append(StoreOperation("create", paths.partition_state(name, number), data))
        self.apply(*created)

    def stored(self, name: str = "t", number: int = 0) -> tuple[int, int, list[int]]:
        """Leader, leader epoch, in-sync replicas."""
        node = self.ensemble.tree.get(paths.partition_state(name, number))
        return paths.decode_partition_state(node.data)

    def lose(self, outage_ms: int) -> None:
        """Disconnect the controller."""
        self._connected.lose(outage_ms)

    # -- the controller --

    def start(self) -> None:
        self.ensemble.run_until(lambda: self._connected.session_id != 0)
        self.state = ClusterState(0, 5, TopicIds("cluster"))
        loaded = self.run(persistence.load(self.store, self.state))
        assert loaded.error is None, loaded.error
        self.controller = ActiveController(self.state, self.store, self, self)
        self.background = Background(
            self.controller,
            self.settings.__getitem__,
            self.ensemble.sleep,
            self.deletions.extend,
        )
        self.background.start()
        self.settle()

    def replace(self) -> None:
        """Another controller takes over; what the present one has not sent is never written."""
        self.store.stop()
        self._connected = self.ensemble.connect()
        self.store = SettledStore(self._connected)
        self.start()

    def run(self, work: Any) -> Pending[Any]:
        """Run the simulation until the work is done; returns its outcome."""
        outcome = run(work)
        self.ensemble.run_until(lambda: outcome.done)
        return outcome

    def settle(self, within_ms: int = 400) -> None:
        """Let some time pass."""
        waited = self.ensemble.sleep(within_ms)
        self.ensemble.run_until(lambda: waited.done)

    # -- the brokers --

    def send(self, broker_id: int, request: ControlRequest) -> Pending[ControlResponse]:
        self.sent.append((broker_id, request))
        if broker_id in self.silent:
            self.unanswered.append((broker_id, request, Pending()))
            return self.unanswered[-1][2]
        return resolved(self.answers(broker_id, request))

    def set_live(self, brokers: Mapping[int, RegisteredBroker]) -> None:
        self.live.append(dict(brokers))
        waiting, self.unanswered = self.unanswered, []
        for broker_id, request, answer in waiting:
            if broker_id in brokers and brokers[broker_id].epoch == request.sender.broker_epoch:
                self.unanswered.append((broker_id, request, answer))
            else:
                answer.resolve(ControlResponse(ErrorCode.STALE_BROKER_EPOCH))

    def set_configs(self, changed: ConfigsChanged) -> Pending[dict[str, int]]:
        self.configs.append(changed)
        return resolved({})

    def forget_topic(self, name: str) -> None:
        pass

    def told(self, broker_id: int, kind: type) -> list[Any]:
        """The requests of that kind sent to the broker since the last ``forget``."""
        return [request for to, request in self.sent if to == broker_id and type(request) is kind]

    def leaders(self, broker_id: int) -> dict[tuple[str, int], tuple[int, list[int], bool]]:
        """The last LeaderAndIsr for it: leader, ISR, whether it is new."""
        return {
            row.key: (row.leader, row.isr, row.is_new)
            for request in self.told(broker_id, LeaderAndIsr)
            for row in request.partitions
        }

    def known(self, broker_id: int) -> dict[tuple[str, int], tuple[int, list[int]]]:
        """The last UpdateMetadata for it: leader, offline replicas."""
        return {
            row.key: (row.leader, list(row.offline_replicas))
            for request in self.told(broker_id, UpdateMetadata)
            for row in request.partitions
        }

    def stopped(self, broker_id: int) -> list[tuple[tuple[str, int], bool]]:
        return [
            (row.key, row.delete)
            for request in self.told(broker_id, StopReplica)
            for row in request.partitions
        ]

    def forget(self) -> None:
        self.sent.clear()
