"""The candidacy of a broker on a slow store, whose connection is lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from support.controller.controllers import EndlessRoom, resolved
from support.simulation.simulated_cluster import SETTINGS, MemorySlots

from kbroker.controller.configs.configs import Configs, ConfigsChanged
from kbroker.controller.election.active_controller import ActiveController
from kbroker.controller.election.membership import Registration
from kbroker.controller.replicas.background import Background
from kbroker.controller.replicas.replica_admin import ReplicaAdmin
from kbroker.controller.topics.topic_admin import TopicAdmin
from kbroker.controller.topics.topic_requests import TopicRequests
from kbroker.errors import ErrorCode, WireError
from kbroker.hosting.hosting import Hosting
from kbroker.hosting.image import Changes
from kbroker.ipc.calls import CreateTopics, StoppedReplica, TopicToCreate
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.metastore import paths
from kbroker.metastore.simulated import Faults, SimulatedEnsemble
from kbroker.metastore.store import StoreOperation
from kbroker.types import BrokerId
from kbroker.workers.controller.candidacy import Candidacy, ElectedController

pytestmark = pytest.mark.unit

CALLER = Address(ProcessKind.NETWORK, 0)
ME = Registration(BrokerId(0), [["PLAINTEXT", "host", 9092, "PLAINTEXT"]], None)


class OwnBroker:
    """The link to the only broker."""

    def __init__(self, hosting: Hosting) -> None:
        self.send = lambda broker_id, request: hosting.take(request)
        self.is_silent = False

    def set_live(self, brokers: Any) -> None:
        self.is_silent = False

    def resign(self) -> None:
        self.is_silent = True


class Process:
    """The controller process and all others of a broker, in the test."""

    def __init__(self) -> None:
        self.ensemble = SimulatedEnsemble(1, Faults(delay_max_ms=50))
        session_id = self.ensemble.begin_session()
        for path in paths.PERSISTENT_PATHS:
            self.ensemble.apply([StoreOperation("create", path)], session_id)
        self.not_elected_count = 0
        self.entered = 0
        self.failures: list[BaseException] = []
        self.store = self.ensemble.connect()
        self.hosting = Hosting(BrokerId(0), "c", MemorySlots())
        self.hosting.publish_to(self)
        self.configs = Configs()
        self.completes: Pending[None] = resolved()
        own = OwnBroker(self.hosting)
        self.candidacy = Candidacy(self.store, ME, self.hosting, own, self, self)
        self.create = self.candidacy.served(lambda candidacy: candidacy.topics.create_topics)
        self.candidacy.start()

    def sleep(self, delay_ms: int) -> Pending[None]:
        return self.ensemble.sleep(delay_ms)

    def make_elected(self, controller: ActiveController) -> ElectedController:
        setting = {**SETTINGS, "default.replication.factor": 1}.__getitem__
        requests = TopicRequests(controller.state, setting, lambda config: None, lambda: False)
        topics = TopicAdmin(controller, requests, EndlessRoom, self.sleep, lambda: True)
        background = Background(
            controller, SETTINGS.__getitem__, self.sleep, topics.finish_deletions
        )
        return ElectedController(
            controller, topics, background, ReplicaAdmin(background, self.sleep)
        )

    def term_began(self) -> None:
        self.entered += 1

    async def end_last_session(self, session_id: int) -> bool:
        return False

    async def before_hosting(self, session_id: int) -> None:
        self.may_host_in = session_id

    def not_elected(self) -> None:
        self.not_elected_count += 1

    def failed(self, error: BaseException) -> None:
        self.failures.append(error)

    def set_configs(self, changed: ConfigsChanged) -> Pending[dict[str, int]]:
        return resolved({})

    def forget_topic(self, name: str) -> None:
        pass

    def complete(self, topics: Iterable[str]) -> Pending[None]:
        self.completed = list(topics)
        return self.completes

    def publish(self, changes: Changes = Changes()) -> Pending[dict[str, int]]:
        return resolved({})

    async def stop_replicas(self, replicas: Sequence[StoppedReplica]) -> None:
        pass

    # -- what the test does --

    def ask(self, name: str) -> Pending[Any]:
        return run(self.create(CALLER, CreateTopics([TopicToCreate(name, 2, 1)])))

    def until(self, condition: Any) -> None:
        self.ensemble.run_until(condition)


def code_of(outcome: Pending[Any]) -> ErrorCode:
    assert isinstance(outcome.error, WireError)
    return outcome.error.code


def test_broker_that_is_not_elected_yet_says_so() -> None:
    process = Process()
    assert code_of(process.ask("t")) == ErrorCode.NOT_CONTROLLER
    process.until(lambda: process.entered)
    outcome = process.ask("t")
    process.until(lambda: outcome.done)
    assert [result.error for result in outcome.value] == [0]
    assert [replica.told.leader for replica in process.hosting.replicas] == [0, 0]
    assert process.hosting.broker_epoch > 0


def test_changes_are_rejected_while_the_store_cannot_be_reached() -> None:
    process = Process()
    process.until(lambda: process.entered)
    process.store.lose(2_000)
    assert code_of(process.ask("t")) == ErrorCode.REQUEST_TIMED_OUT
    waited = process.sleep(3_000)
    process.until(lambda: waited.done)
    outcome = process.ask("t")
    process.until(lambda: outcome.done)
    assert outcome.error is None and process.entered == 1


def test_change_that_is_under_way_when_the_connection_is_lost_is_finished() -> None:
    process = Process()
    process.until(lambda: process.entered)
    outcome = process.ask("t")
    process.store.lose(2_000)
    process.until(lambda: outcome.done)
    assert [result.error for result in outcome.value] == [0]


def test_change_of_a_controller_whose_session_ended_is_told_to_be_repeated() -> None:
    process = Process()
    process.until(lambda: process.entered)
    outcome = process.ask("t")
    process.store.expire()
    process.until(lambda: outcome.done and process.entered == 2)
    if outcome.error is None:
        (result,) = outcome.value  # it was written before the end, or not
        assert result.error in (0, ErrorCode.NOT_CONTROLLER)
    again = process.ask("u")
    process.until(lambda: again.done)
    assert [result.error for result in again.value] == [0]
    assert process.failures == []


def test_settings_of_all_topics_are_known_before_brokers_are_told() -> None:
    process = Process()
    process.until(lambda: process.entered)
    outcome = process.ask("t")
    process.until(lambda: outcome.done)
    process.store.expire()
    process.until(lambda: process.entered == 2)
    assert process.completed == ["t"]


def test_session_that_expires_while_configs_are_read_leaves_no_controller() -> None:
    """Another broker is elected by then, so this one must not believe that it is."""
    process = Process()
    process.completes = Pending()
    process.until(lambda: hasattr(process, "completed"))
    process.store.expire()
    waited = process.sleep(1_000)
    process.until(lambda: waited.done)
    late, process.completes = process.completes, Pending()
    late.resolve()
    assert process.candidacy.present is None and process.entered == 0
    process.completes.resolve()
    process.until(lambda: process.entered)
    assert process.failures == []


def test_event_that_fails_has_a_new_term_begin(caplog: pytest.LogCaptureFixture) -> None:
    """A controller whose event was cut off halfway may never do the rest of it."""
    process = Process()
    process.until(lambda: process.entered)
    present = process.candidacy.present
    assert present is not None

    async def broken() -> None:
        raise KeyError("a bug")

    present.background.writes.put(broken)
    process.until(lambda: process.entered == 2)
    assert "the controller failed to handle an event: 'a bug'" in caplog.text
    assert "not the controller any more: an event failed" in caplog.text
    outcome = process.ask("t")
    process.until(lambda: outcome.done)
    assert [result.error for result in outcome.value] == [0]
