"""The elected controller: writes decisions to the store and sends requests to brokers.

Decisions and the requests that follow from them are computed by pure functions (``decisions``,
``announcements``); this module has the store and the brokers. One decision is carried out at a
time, as one event of the queue; the responses of brokers are awaited outside the event.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from kbroker.cluster.control_requests import (
    ControlRequest,
    ControlResponse,
    LeaderAndIsr,
    StopReplica,
)
from kbroker.controller.configs.configs import ConfigsChanged
from kbroker.controller.election import announcements
from kbroker.controller.election.announcements import AddressedRequest
from kbroker.controller.election.awaited_responses import AwaitedResponses
from kbroker.controller.election.events import EventQueue
from kbroker.controller.state.counts import Counts
from kbroker.controller.state.decisions import Decision
from kbroker.controller.state.state import (
    Change,
    ClusterState,
    RegisteredBroker,
    TopicCreated,
    TopicRemoved,
)
from kbroker.controller.store.store_failure import store_failure
from kbroker.controller.store.write_decided import write_decided
from kbroker.errors import ErrorCode
from kbroker.ipc.pending import Pending
from kbroker.metastore.settled import Fenced, SettledStore

logger = logging.getLogger(__name__)


class Completed(NamedTuple):
    broker_id: int
    request: ControlRequest
    response: ControlResponse


class Brokers(Protocol):
    """Sends control requests to every broker, including this one."""

    def send(self, broker_id: int, request: ControlRequest) -> Pending[ControlResponse]:
        """Requests to one broker arrive in the order in which they were sent.

        Each is retried until the broker responds or its registration ends (``set_live``).
        """

    def set_live(self, brokers: Mapping[int, RegisteredBroker]) -> None:
        """Set the registered brokers, each with its epoch and endpoints.

        Requests to any other registration complete with STALE_BROKER_EPOCH.
        """


class SpreadsConfigs(Protocol):
    """Distributes configs to the processes of this broker: ``StoredConfigs``."""

    def set_configs(self, changed: ConfigsChanged) -> Pending[dict[str, int]]:
        """Resolves when every process has applied them."""

    def forget_topic(self, name: str) -> None:
        """Called after a topic and its configs have been removed from the store."""


class ActiveController:
    """Carries out decisions during one controller epoch."""

    def __init__(
        self, state: ClusterState, store: SettledStore, brokers: Brokers, settings: SpreadsConfigs
    ) -> None:
        self.state = state
        self.store = store
        self.events = EventQueue()
        self.counts = Counts()
        # Called with every LeaderAndIsr response.
        self.heard: Callable[[Completed], None] = lambda _: None
        # Called when an event has failed, so that the state may not be what it should be.
        self.failed: Callable[[], None] = lambda: None
        self._brokers = brokers
        self._settings = settings
        self._told = AwaitedResponses()

    def start(self) -> Pending[list[Completed]]:
        """Send the complete state to all brokers."""
        self.set_live()
        return self.send(announcements.at_start(self.state, self.state.brokers))

    def set_live(self) -> None:
        """Called after the set of registered brokers has changed."""
        self._brokers.set_live(self.state.brokers)

    def check_in_office(self) -> None:
        """Raises NOT_CONTROLLER if another controller has been elected."""
        if self.store.is_stopped:
            raise store_failure(Fenced())

    async def write(
        self,
        decide: Callable[[], Decision],
        reread: Callable[[], Awaitable[Iterable[Change]]],
    ) -> Decision:
        """Write a decision to the store. The caller must ``enter`` it before it awaits again.

        If another client has changed the same nodes, ``reread`` returns the changes and ``decide``
        is called again. Raises BadVersion, NodeExists or NoNode when every attempt fails.
        """

        async def enter_again() -> None:
            self.enter(await reread())

        return await write_decided(self.store, decide, self.state.configs.note_written, enter_again)

    def enter(self, changes: Iterable[Change]) -> Pending[list[Completed]]:
        """Apply changes that are in the store, and send the resulting requests to the brokers.
        Resolves with their responses.
        """
        changes = list(changes)
        self.note(changes)
        return self.send(announcements.of_changes(self.state, changes))

    def note(self, changes: Iterable[Change]) -> None:
        """Like ``enter``, but sends no requests."""
        for change in changes:
            self.state.enter(change)
            if isinstance(change, ConfigsChanged):
                self._settings.set_configs(change)
            elif isinstance(change, TopicCreated):
                self._settings.set_configs(ConfigsChanged({change.topic.name: change.config}))
            elif isinstance(change, TopicRemoved):
                self._settings.forget_topic(change.name)

    def send(self, requests: Iterable[AddressedRequest]) -> Pending[list[Completed]]:
        """Resolves with the responses, in order."""
        sent = list(requests)
        done: Pending[list[Completed]] = Pending()
        responses: dict[int, Completed] = {}
        order = self._told.sent(one.broker_id for one in sent if tells(one))

        def completed(number: int, outcome: Pending[ControlResponse]) -> None:
            response = ControlResponse() if outcome.error is not None else outcome.value
            responses[number] = Completed(*sent[number], response)
            if outcome.error is None:
                self._note_deleted(responses[number])
            if isinstance(sent[number].request, LeaderAndIsr):
                self.heard(responses[number])
            if outcome.error is not None:
                done.resolve(error=outcome.error)
            elif len(responses) == len(sent):
                done.resolve([responses[n] for n in range(len(sent))])
            if tells(sent[number]):
                self._told.responded(order, sent[number].broker_id)

        for number, (broker_id, request) in enumerate(sent):
            self._brokers.send(broker_id, request).then(partial(completed, number))
        if not sent:
            done.resolve([])
        return done

    def _note_deleted(self, completed: Completed) -> None:
        """A broker has handled StopReplica; one whose registration has ended may not have."""
        broker_id, request, response = completed
        if isinstance(request, StopReplica) and response.error is ErrorCode.NONE:
            deleted = (row.key for row in request.partitions if row.delete)
            self.state.confirm_removed(broker_id, deleted)

    def all_told(self) -> Pending[None]:
        """Resolves when brokers have responded to all requests about topics sent so far."""
        return self._told.wait()

    def told_here(self) -> Pending[None]:
        """As ``all_told``, of this broker alone."""
        return self._told.wait(self.state.broker_id)


def tells(sent: AddressedRequest) -> bool:
    """False for StopReplica, which may take as long as the restart of a process."""
    return not isinstance(sent.request, StopReplica)
