"""A controller in office: carries out what is decided.

Decisions and what follows from them are pure (``decisions``, ``announcements``); here is the store
they are written to, and the brokers that are told. One decision is carried out at a time, as one
event of the queue; what the brokers answer is awaited outside it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from kbroker.cluster.control_requests import (
    ControlAnswer,
    ControlRequest,
    LeaderAndIsr,
    StopReplica,
)
from kbroker.controller import announcements
from kbroker.controller.announcements import Request
from kbroker.controller.decisions import Decision
from kbroker.controller.events import EventQueue
from kbroker.controller.persistence import ATTEMPTS
from kbroker.controller.state import (
    Broker,
    Change,
    ClusterState,
    ConfigsChanged,
    TopicCreated,
    TopicRemoved,
)
from kbroker.controller.store_failure import store_failure
from kbroker.ipc.pending import Pending
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.store import BadVersion, NodeExists, NoNode

logger = logging.getLogger(__name__)


class Answered(NamedTuple):
    broker_id: int
    request: ControlRequest
    answer: ControlAnswer


class Brokers(Protocol):
    """The way to every broker, this one included."""

    def send(self, broker_id: int, request: ControlRequest) -> Pending[ControlAnswer]:
        """Requests for one broker arrive in the order in which they were sent.

        They are repeated until the broker answers, or its registration ends (``set_live``).
        """

    def set_live(self, brokers: Mapping[int, Broker]) -> None:
        """These are registered from now on, each with its epoch and endpoints.

        What was sent to another registration is answered with STALE_BROKER_EPOCH.
        """


class Settings(Protocol):
    """Who uses settings here: ``Hosting``."""

    def set_configs(
        self,
        topics: Mapping[str, dict[str, str]] = ...,
        brokers: Mapping[str, dict[str, str]] = ...,
        groups: Mapping[str, dict[str, str]] = ...,
    ) -> Pending[dict[str, int]]:
        """Resolves when every process uses them."""


class ActiveController:
    """Of one controller epoch."""

    def __init__(
        self, state: ClusterState, store: SettledStore, brokers: Brokers, settings: Settings
    ) -> None:
        self.state = state
        self.store = store
        self.events = EventQueue()
        # Called with every answer to LeaderAndIsr.
        self.heard: Callable[[Answered], None] = lambda _: None
        self._brokers = brokers
        self._settings = settings
        self._sent = 0
        # What was sent by then, without answers so far. BOUND: what clients have asked for.
        self._open: dict[int, int] = {}
        self._waiting: list[tuple[int, Pending[None]]] = []

    def start(self) -> Pending[list[Answered]]:
        """Tell all brokers all there is."""
        state = self.state
        configs = {topic.name: topic.config for topic in state.topics()}
        self._settings.set_configs(configs, state.broker_config, state.group_config)
        self.set_live()
        return self.send(announcements.at_start(state, state.brokers))

    def set_live(self) -> None:
        """Which brokers there are has changed."""
        self._brokers.set_live(self.state.brokers)

    def check_in_office(self) -> None:
        """NOT_CONTROLLER when another controller goes on."""
        if self.store.is_stopped:
            raise store_failure(Fenced())

    async def write(
        self,
        decide: Callable[[], Decision],
        reread: Callable[[], Awaitable[Iterable[Change]]],
    ) -> Decision:
        """Write what is decided; what was written is to be entered before anything else happens.

        When somebody else wrote in between, ``reread`` says what has changed, and it is decided
        again. BadVersion, NodeExists or NoNode when that happens all the time.
        """
        for attempt in range(ATTEMPTS):
            decision = decide()
            if not decision.writes:
                return decision
            try:
                await self.store.apply(decision.writes)
            except (BadVersion, NodeExists, NoNode) as error:
                if attempt == ATTEMPTS - 1:
                    raise
                logger.info("decided again: another client changed %s", error.path)
            else:
                self.state.note_written(decision.writes)
                return decision
            self.enter(await reread())
        raise AssertionError("unreachable")

    def enter(self, changes: Iterable[Change]) -> Pending[list[Answered]]:
        """What was written is so: have the state be so, and tell every broker what concerns it;
        resolves with their answers.
        """
        changes = list(changes)
        self.note(changes)
        return self.send(announcements.of_changes(self.state, changes))

    def note(self, changes: Iterable[Change]) -> None:
        """As ``enter``, but no broker is told yet."""
        for change in changes:
            if isinstance(change, ConfigsChanged):
                self.use_settings(change)
                continue
            self.state.enter(change)
            if isinstance(change, TopicCreated):
                self._settings.set_configs({change.topic.name: change.topic.config})
            elif isinstance(change, TopicRemoved):
                self._settings.set_configs({change.name: {}})

    def use_settings(self, changed: ConfigsChanged) -> Pending[dict[str, int]]:
        """As ``enter``, of settings; resolves when every process here uses them."""
        self.state.enter(changed)
        return self._settings.set_configs(*changed)

    def send(self, requests: Iterable[Request]) -> Pending[list[Answered]]:
        """Resolves with the answers, in order."""
        sent = list(requests)
        done: Pending[list[Answered]] = Pending()
        answers: dict[int, Answered] = {}
        self._sent += 1
        order = self._sent
        self._open[order] = sum(map(tells, sent))

        def answered(number: int, outcome: Pending[ControlAnswer]) -> None:
            if tells(sent[number]):
                self._open[order] -= 1
            answer = ControlAnswer() if outcome.error is not None else outcome.value
            answers[number] = Answered(*sent[number], answer)
            if isinstance(sent[number].request, LeaderAndIsr):
                self.heard(answers[number])
            if outcome.error is not None:
                done.resolve(error=outcome.error)
            elif len(answers) == len(sent):
                done.resolve([answers[n] for n in range(len(sent))])
            self._close()

        for number, (broker_id, request) in enumerate(sent):
            self._brokers.send(broker_id, request).then(partial(answered, number))
        if not sent:
            done.resolve([])
        self._close()
        return done

    def all_told(self) -> Pending[None]:
        """Resolves when the brokers have answered all that they were told of topics so far."""
        pending: Pending[None] = Pending()
        self._waiting.append((self._sent, pending))
        self._close()
        return pending

    def _close(self) -> None:
        """Forget what was answered, and tell who waits for it."""
        for order in [order for order, count in self._open.items() if count == 0]:
            del self._open[order]
        first = min(self._open, default=self._sent + 1)
        waiting, self._waiting = self._waiting, []
        for order, pending in waiting:
            if order < first:
                pending.resolve()
            else:
                self._waiting.append((order, pending))


def tells(sent: Request) -> bool:
    """Whether it is more than an order to stop: that may take until a process has restarted."""
    return not isinstance(sent.request, StopReplica)
