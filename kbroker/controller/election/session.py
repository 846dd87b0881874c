"""Keeps a broker registered and a candidate for controller, across sessions of the store.

It works in turns, one after the other. A turn goes by what it reads, never by what an event said,
and there is one after each CONNECTED and each change of ``/controller``. A controller that may have
been replaced resigns at once: when its session has expired, before a new one registers.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Protocol

from kbroker.controller.election.events import EventQueue
from kbroker.controller.election.membership import (
    AlreadyRegistered,
    Elected,
    Registration,
    check_addresses,
    check_cluster,
    elect,
    latest_controller_epoch,
    register,
)
from kbroker.controller.store.topic_nodes import DAMAGED
from kbroker.ipc.pending import Pending
from kbroker.metastore import paths
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.store import (
    ConnectionLoss,
    NoNode,
    SessionState,
    Store,
    WatchEvent,
    WrongCluster,
)

logger = logging.getLogger(__name__)

# The time until a registration held by another session is checked again, and until that is logged
# again; and how long after the time of a session it may end.
RETRY_MS = 500
LOG_AGAIN_MS = 10_000
ENDS_LATE_MS = 4_000
# The time until a store of another cluster is looked at again.
WRONG_CLUSTER_MS = 10_000


class SessionHost(Protocol):
    """What the session needs from the controller process."""

    @property
    def controller_epoch(self) -> int:
        """The latest that this broker has heard of."""

    def now_ms(self) -> int:
        """The wall clock, for timestamps in the store."""

    def sleep(self, delay_ms: int) -> Pending[None]:
        """A Pending that resolves after this time."""

    def registered(self, broker_epoch: int, controller_epoch: int) -> None:
        """The broker has registered. controller_epoch: of the latest controller."""

    async def before_hosting(self, session_id: int) -> None:
        """The broker has registered in this session; the turn goes on when this returns."""

    async def begin_term(self, elected: Elected, store: SettledStore) -> None:
        """Become the controller, which writes only through ``store`` until that raises Fenced."""

    def resign(self) -> None:
        """Stop being the controller."""

    def not_elected(self) -> None:
        """Another broker is the controller, or about to become it."""

    def connected(self, is_connected: bool) -> None:
        """Whether the store is connected; nothing is decided while it is not."""

    async def end_last_session(self, session_id: int) -> bool:
        """End this session, if it is that of the last run of this broker, which was killed."""

    def failed(self, error: BaseException) -> None:
        """A turn ended with an unexpected error."""


class BrokerSession:
    """One broker's session with one store. ``broker_epoch``: -1 before the first registration."""

    def __init__(self, store: Store, me: Registration, host: SessionHost) -> None:
        self._store = store
        self._plain = SettledStore(store)
        self._me = me
        self._host = host
        self._turns = EventQueue()
        self._registered_in = 0  # the session that holds the registration
        self._is_watching = False
        self._term: SettledStore | None = None
        self._fence_version = 0
        self.broker_epoch = -1

    def note_suspect(self) -> None:
        """Some logs of this broker may lack their newest records. Called before ``start``."""
        self._me = self._me._replace(is_suspect=True)

    def start(self) -> None:
        """Register and stand for election, now and whenever it becomes necessary again."""
        self._store.watch_session(self._on_state)

    def _on_state(self, state: SessionState) -> None:
        self._host.connected(state is SessionState.CONNECTED)
        if state == SessionState.EXPIRED:
            self._resign("its session has expired")
        elif state == SessionState.CONNECTED:
            self._take_turn()

    def _on_change(self, _: WatchEvent) -> None:
        self._take_turn()

    def _take_turn(self) -> None:
        self._turns.put(self._turn).then(self._ended)

    def _ended(self, outcome: Pending[None]) -> None:
        # There is another turn after a lost connection or session.
        if outcome.error is not None and not isinstance(outcome.error, (Fenced, ConnectionLoss)):
            self._host.failed(outcome.error)

    async def _turn(self) -> None:
        if self._registered_in != self._store.session_id:
            self._resign("it has another session")
            await self._register()
        if not self._is_watching:
            await self._store.watch(paths.CONTROLLER, self._on_change)
            self._is_watching = True
        if self._term is not None:
            if await self._is_in_term(self._term):
                return
            self._resign(f"{paths.CONTROLLER} is not its own any more")
        await self._withdraw()
        await self._stand()

    async def _register(self) -> None:
        if self._me.cluster_id:
            await self._check_cluster()
            if not self._is_serving:
                await check_addresses(self._plain, self._me)
        holder, waited_ms = 0, 0
        while True:
            session_id, now_ms = self._store.session_id, self._host.now_ms()
            try:
                registered = await register(self._plain, self._me, session_id, now_ms)
            except AlreadyRegistered as error:
                if error.is_here and await self._host.end_last_session(error.session_id):
                    continue
                if error.session_id != holder:
                    holder, waited_ms = error.session_id, 0
                # A session that outlives its time is that of a broker that lives.
                is_alive = waited_ms > self._me.session_ms + ENDS_LATE_MS
                if is_alive and self._me.cluster_id and not self._is_serving:
                    raise
                if waited_ms % LOG_AGAIN_MS == 0:
                    logger.warning("%s; waiting for it to end", error)
                await self._host.sleep(RETRY_MS)
                waited_ms += RETRY_MS
            else:
                self.broker_epoch, self._registered_in = registered.epoch, registered.session_id
                if self._plain.is_shared and self.broker_epoch != self._me.resumes:
                    text = "registered as broker %d, with broker epoch %d"
                    logger.info(text, self._me.broker_id, self.broker_epoch)
                epoch = await latest_controller_epoch(self._plain)
                self._host.registered(registered.epoch, epoch)
                await self._host.before_hosting(registered.session_id)
                return

    @property
    def _is_serving(self) -> bool:
        """Whether this broker has been registered before."""
        return bool(self._registered_in) or self._me.resumes >= 0

    async def _check_cluster(self) -> None:
        """A broker does not start with the store of another cluster. One that serves goes on with
        what it has: it may be the store's data that are lost or mistaken.
        """
        while True:
            try:
                await check_cluster(self._plain, self._me.cluster_id)
                return
            except WrongCluster as error:
                if not self._is_serving:
                    raise
                text = "%s. Until it has that cluster again, no leader, topic or setting changes"
                logger.error(text, error)
                await self._host.sleep(WRONG_CLUSTER_MS)

    async def _withdraw(self) -> None:
        """Give up an election that was won in this session but not used, or has ended."""
        with suppress(NoNode):  # nobody is elected: nothing to withdraw
            node = await self._plain.get(paths.CONTROLLER)
            if node.stat.owner_session == self._store.session_id:
                await self._plain.multi().delete(paths.CONTROLLER, node.stat.version).commit()

    async def _stand(self) -> None:
        now_ms, heard_of = self._host.now_ms(), self._host.controller_epoch
        elected = await elect(self._plain, self._me.broker_id, now_ms, heard_of)
        if elected is None:
            self._host.not_elected()
            return  # there is another turn once that is over
        if self._registered_in != self._store.session_id:
            return
        if self._plain.is_shared:
            logger.info("elected as the controller, with epoch %d: there was none", elected.epoch)
        term = SettledStore(self._store, elected.fence, self._take_turn)
        self._term, self._fence_version = term, elected.fence.version
        try:
            await self._host.begin_term(elected, term)
        except Exception as error:
            # The controller did not start: resign, and stand for election again.
            self._resign(f"it did not start: {error!r}")
            raise

    def stand_again(self, why: str) -> None:
        """Resign and stand for election: another term begins with what the store has."""
        self._resign(why)
        self._take_turn()

    async def _is_in_term(self, term: SettledStore) -> bool:
        if term.is_stopped:
            return False  # its fence has failed
        try:
            controller = await term.get(paths.CONTROLLER)
            epoch = await term.get(paths.CONTROLLER_EPOCH)
        except NoNode:
            return False
        try:
            is_ours = paths.decode_controller(controller.data) == self._me.broker_id
        except DAMAGED as error:
            # No other broker can find this one.
            logger.error("%s cannot be read: %r", paths.CONTROLLER, error)
            is_ours = False
        is_ours = is_ours and controller.stat.owner_session == self._store.session_id
        return is_ours and epoch.stat.version == self._fence_version

    def _resign(self, why: str) -> None:
        if self._term is not None:
            logger.warning("this broker is not the controller any more: %s", why)
            term, self._term = self._term, None
            term.stop()
            self._host.resign()
