"""The broker's session in the cluster, and its controller while it is elected.

Nothing here blocks: a store may respond at once, later, or only once it has reconnected.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Protocol, TypeVar

from kbroker.cluster.topic_ids import TopicIds
from kbroker.controller.configs.configs import Configs
from kbroker.controller.election.active_controller import ActiveController, Brokers, SpreadsConfigs
from kbroker.controller.election.membership import Elected, Registration
from kbroker.controller.election.session import BrokerSession
from kbroker.controller.replicas.background import Background
from kbroker.controller.replicas.replica_admin import ReplicaAdmin
from kbroker.controller.state.counts import Counts
from kbroker.controller.state.state import ClusterState
from kbroker.controller.store import persistence
from kbroker.controller.store.store_failure import unreachable
from kbroker.controller.topics.topic_admin import TopicAdmin
from kbroker.errors import ErrorCode, WireError
from kbroker.hosting.hosting import Hosting
from kbroker.ipc.pending import Pending
from kbroker.ipc.process_table import Address
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.store import Store

logger = logging.getLogger(__name__)

# The time between the failure of an event and a new term: after the first one, and the maximum. A
# failure that repeats itself must not keep all brokers busy with elections.
RENEW_MS, RENEW_MAX_MS = 1_000, 60_000

Q = TypeVar("Q")
A = TypeVar("A")


class ElectedController:
    """An elected controller, with the services for clients' requests."""

    def __init__(
        self,
        controller: ActiveController,
        topics: TopicAdmin,
        background: Background,
        replicas: ReplicaAdmin,
    ) -> None:
        self.controller = controller
        self.background = background
        self.topics = topics
        self.replicas = replicas


class CandidateProcess(Protocol):
    """What an candidacy needs from the controller process."""

    def sleep(self, delay_ms: int) -> Pending[None]:
        """A Pending that resolves after this time."""

    def make_elected(self, controller: ActiveController) -> ElectedController:
        """Create the services for clients. The controller's state is loaded, but not sent yet."""

    def term_began(self) -> None:
        """The state has been sent to all brokers and processes."""

    async def before_hosting(self, session_id: int) -> None:
        """The broker has registered in this session."""

    async def end_last_session(self, session_id: int) -> bool:
        """End this session, if it is that of the last run of this broker."""

    def not_elected(self) -> None:
        """Another broker is the controller, or about to become it."""

    def failed(self, error: BaseException) -> None:
        """The session, or the start of a controller, failed with an unexpected error."""


class WayToBrokers(Brokers, Protocol):
    """What the candidacy needs of ``peers.links.Links``."""

    def resign(self) -> None:
        """Stop sending requests, because this broker is no longer the controller."""


class BrokerSettings(SpreadsConfigs, Protocol):
    """What the candidacy needs of ``StoredConfigs``."""

    @property
    def configs(self) -> Configs: ...

    def complete(self, topics: Iterable[str]) -> Pending[None]:
        """Resolves when the configs of these topics are known."""


class Candidacy:
    """``present``: the controller; None while another broker is elected. ``is_connected``: whether
    the store can be reached.
    """

    def __init__(
        self,
        store: Store,
        me: Registration,
        hosting: Hosting,
        brokers: WayToBrokers,
        settings: BrokerSettings,
        process: CandidateProcess,
        topic_ids: TopicIds | None = None,
    ) -> None:
        self._topic_ids = topic_ids
        self.present: ElectedController | None = None
        self.is_connected = False
        self.counts = Counts()
        self._failures = 0  # of events
        self._me = me
        self._hosting = hosting
        self._brokers = brokers
        self._settings = settings
        self._process = process
        self._session = BrokerSession(store, me, self)

    @property
    def background(self) -> Background | None:
        """The controller's; None if another broker is elected or the store is unreachable."""
        return self.present.background if self.present is not None and self.is_connected else None

    def note_suspect(self) -> None:
        """As ``BrokerSession.note_suspect``."""
        self._session.note_suspect()

    def start(self) -> None:
        """Register and stand for election, now and whenever it becomes necessary again."""
        self._session.start()

    def served(
        self, serve: Callable[[ElectedController], Callable[[Address, Q], Coroutine[Any, Any, A]]]
    ) -> Callable[[Address, Q], Coroutine[Any, Any, A]]:
        """Wrap the handler of a request that only the controller can serve.

        On other brokers it returns NOT_CONTROLLER, and while the store is unreachable
        REQUEST_TIMED_OUT; clients retry after both.
        """

        async def handle(sender: Address, asked: Q) -> A:
            if self.present is None:
                raise WireError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
            self.check_connected()
            return await serve(self.present)(sender, asked)

        return handle

    def check_connected(self) -> None:
        """REQUEST_TIMED_OUT while the store cannot be reached; clients retry."""
        if not self.is_connected:
            raise unreachable()

    # -- the session -------------------------------------------------------------------------

    @property
    def controller_epoch(self) -> int:
        return self._hosting.controller_epoch

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, delay_ms: int) -> Pending[None]:
        return self._process.sleep(delay_ms)

    def registered(self, broker_epoch: int, controller_epoch: int) -> None:
        self.counts.registrations += 1
        self._hosting.registered(broker_epoch, controller_epoch)

    async def before_hosting(self, session_id: int) -> None:
        await self._process.before_hosting(session_id)

    async def end_last_session(self, session_id: int) -> bool:
        return await self._process.end_last_session(session_id)

    def connected(self, is_connected: bool) -> None:
        self.is_connected = is_connected
        if is_connected and self.present is not None:
            self.present.background.connected()

    async def begin_term(self, elected: Elected, store: SettledStore) -> None:
        """Load the state from the store, and send it to all brokers."""
        began_ns, configs = time.monotonic_ns(), self._settings.configs
        state = ClusterState(self._me.broker_id, elected.epoch, self._topic_ids, configs)
        await persistence.load(store, state)
        await self._settings.complete(topic.name for topic in state.topics())
        if store.is_stopped:
            raise Fenced  # it has resigned already: the session expired while this waited
        logger.info(
            "controller epoch %d: %d topics loaded in %.1f ms",
            elected.epoch, len(state.topics()), (time.monotonic_ns() - began_ns) / 1e6,
        )  # fmt: skip
        controller = ActiveController(state, store, self._brokers, self._settings)
        controller.counts = self.counts
        controller.failed = partial(self._renew, controller)
        self.counts.controller_elections += 1
        self.present = self._process.make_elected(controller)
        self.present.background.start()
        self._process.term_began()
        self.present.topics.resume_deletions()

    def _renew(self, failed: ActiveController) -> None:
        """Have a new term begin in a while, as an event of this one has failed."""
        delay_ms = min(RENEW_MS << min(self._failures, 10), RENEW_MAX_MS)
        self._failures += 1

        def renew(_: Pending[None]) -> None:
            if self.present is not None and self.present.controller is failed:
                self._session.stand_again("an event failed, see above")

        self.sleep(delay_ms).then(renew)

    def resign(self) -> None:
        if self.present is not None:
            self.present.background.stop()
            self._brokers.resign()
        self.present = None

    def not_elected(self) -> None:
        self._process.not_elected()

    def failed(self, error: BaseException) -> None:
        self._process.failed(error)
