"""The broker in its cluster: what it hosts, its session, and the controller while it is elected.

Nothing here waits: a store may answer at once, later, or not before its connection is back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from kbroker.cluster.topic_ids import TopicIds
from kbroker.controller import persistence
from kbroker.controller.active_controller import ActiveController, Brokers
from kbroker.controller.config_admin import ConfigAdmin
from kbroker.controller.duties import Duties
from kbroker.controller.membership import Elected, Registration
from kbroker.controller.session import Session
from kbroker.controller.state import ClusterState
from kbroker.controller.topic_admin import TopicAdmin
from kbroker.errors import ErrorCode, WireError
from kbroker.hosting.hosting import Hosting
from kbroker.ipc.pending import Pending
from kbroker.ipc.process_table import Address
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import Store

logger = logging.getLogger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")


class InOffice:
    """A controller, and what clients ask of it."""

    def __init__(
        self,
        controller: ActiveController,
        configs: ConfigAdmin,
        topics: TopicAdmin,
        duties: Duties,
    ) -> None:
        self.controller = controller
        self.duties = duties
        self.configs = configs
        self.topics = topics


class Process(Protocol):
    """What an office needs of the process it is in."""

    def sleep(self, delay_ms: int) -> Pending[None]:
        """A Pending that resolves by itself."""

    def put_in_office(self, controller: ActiveController) -> InOffice:
        """Make what serves clients; the state of the controller is loaded, and told to nobody."""

    def in_office(self, office: InOffice) -> None:
        """Everybody has been told what there is."""

    def not_elected(self) -> None:
        """Another broker is the controller, or will be."""

    def failed(self, error: BaseException) -> None:
        """The session or the start of a controller ended with what nobody expects."""


class WayToBrokers(Brokers, Protocol):
    """``peers.links.Links``."""

    def resign(self) -> None:
        """Say nothing more on behalf of a controller that is none any more."""


class Office:
    """Of one broker. ``present``: the controller, None while another broker has the office."""

    def __init__(
        self,
        store: Store,
        me: Registration,
        hosting: Hosting,
        brokers: WayToBrokers,
        process: Process,
        topic_ids: TopicIds | None = None,
    ) -> None:
        self._topic_ids = topic_ids
        self.present: InOffice | None = None
        self._is_connected = False
        self._me = me
        self._hosting = hosting
        self._brokers = brokers
        self._process = process
        self._session = Session(store, me, self)

    @property
    def duties(self) -> Duties | None:
        """Of the controller; None while another broker is it, or the store cannot be reached."""
        return self.present.duties if self.present is not None and self._is_connected else None

    def start(self) -> None:
        """Register and stand for the controller, now and whenever it is needed again."""
        self._session.start()

    def served(
        self, serve: Callable[[InOffice], Callable[[Address, Q], Coroutine[Any, Any, A]]]
    ) -> Callable[[Address, Q], Coroutine[Any, Any, A]]:
        """Wrap the handler of a request that only the controller can serve.

        On another broker it gives NOT_CONTROLLER, and while the store cannot be reached
        REQUEST_TIMED_OUT; clients retry after both.
        """

        async def handle(sender: Address, asked: Q) -> A:
            if self.present is None:
                raise WireError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
            if not self._is_connected:
                text = "The metadata store cannot be reached; try again."
                raise WireError(ErrorCode.REQUEST_TIMED_OUT, text)
            return await serve(self.present)(sender, asked)

        return handle

    # -- the session -------------------------------------------------------------------------

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, delay_ms: int) -> Pending[None]:
        return self._process.sleep(delay_ms)

    def registered(self, broker_epoch: int, controller_epoch: int) -> None:
        self._hosting.broker_epoch = broker_epoch
        self._hosting.fence_below(controller_epoch)

    def connected(self, is_connected: bool) -> None:
        self._is_connected = is_connected
        if is_connected and self.present is not None:
            self.present.duties.connected()

    async def take_office(self, elected: Elected, store: SettledStore) -> None:
        """Load all that the store has, and tell it."""
        state = ClusterState(self._me.broker_id, elected.epoch, self._topic_ids)
        await persistence.load(store, state)
        controller = ActiveController(state, store, self._brokers, self._hosting)
        self.present = self._process.put_in_office(controller)
        self.present.duties.start()
        self._process.in_office(self.present)
        self.present.topics.resume_deletions()

    def resign(self) -> None:
        if self.present is not None:
            self.present.duties.stop()
            self._brokers.resign()
        self.present = None

    def not_elected(self) -> None:
        self._process.not_elected()

    def failed(self, error: BaseException) -> None:
        self._process.failed(error)
