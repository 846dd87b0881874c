"""Keeps what a broker knows of some nodes of the store up to date, whichever client writes to them.

Whoever writes to them creates a notification (``Notices``), which names what to read again.
Everything is read again after a lost connection, as changes meanwhile are not reported, and after
a failure, as a notification is taken once. All of this runs in one event queue, as do requests
that change the nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

from kbroker.controller.election.events import EventQueue, Work
from kbroker.controller.store.notices import Notices
from kbroker.controller.store.store_failure import unreachable
from kbroker.controller.store.store_watch import StoreWatch
from kbroker.controller.store.topic_nodes import DAMAGED
from kbroker.ipc.pending import Pending
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import SessionState, Store

logger = logging.getLogger(__name__)

K = TypeVar("K")


class WatchedTree(Generic[K]):
    """Of one user, which reads the nodes. ``events``, ``store``: also for its requests;
    ``is_connected``: whether the store can be reached.
    """

    def __init__(
        self,
        store: Store,
        settled: SettledStore,
        sleep: Callable[[int], Pending[None]],
        wall_ms: Callable[[], int],
        *,
        prefixes: Iterable[str],
        named: Callable[[str, bytes], K | None],
        read: Callable[[Iterable[K]], Coroutine[Any, Any, None]],
        read_all: Work[None],
    ) -> None:
        """prefixes: paths of notifications, up to the number. named(parent, data): what a
        notification names, None if it is of no interest; raises DAMAGED.
        """
        self.events = EventQueue()
        self.store = settled
        self.is_connected = False
        self._named = named
        self._read = read
        self._read_all = read_all
        self._notices = [Notices(settled, prefix, wall_ms) for prefix in prefixes]
        self._watch = StoreWatch(settled, self.events, sleep)
        self._is_stale = True
        self._asked = self._caught_up = 0  # requests that want to catch up, and that have
        store.watch_session(self._on_session)

    # These three run in the queue.

    async def begin(self, missing: Iterable[str] = ()) -> None:
        """Create those of these nodes that do not exist, watch, and read everything."""
        await self.store.ensure(missing)
        for notices in self._notices:
            await self._watch.follow(notices.parent, self.look)
        await self.look()

    async def follow(self, path: str, work: Work[None]) -> None:
        """Also watch a node whose changes nobody is notified of; see ``StoreWatch``."""
        await self._watch.follow(path, work)

    async def look(self) -> None:
        """Read what others have changed."""
        is_stale, self._is_stale = self._is_stale, False
        try:
            await (self._look_at_all() if is_stale else self._take_notices())
        except BaseException:
            self._is_stale = True
            raise

    async def _look_at_all(self) -> None:
        if self.store.is_shared:
            for notices in self._notices:
                await notices.skip()
        await self._read_all()

    async def _take_notices(self) -> None:
        changed: dict[K, None] = {}
        for notices in self._notices:
            for notice in await notices.take():
                try:
                    named = self._named(notices.parent, notice.data)
                except DAMAGED as error:
                    logger.error("ignoring the notification %s: %r", notice.path, error)
                    continue
                if named is not None:
                    changed[named] = None
        await self._read(changed)

    def _on_session(self, state: SessionState) -> None:
        self.is_connected = state is SessionState.CONNECTED
        if self.is_connected:
            self._is_stale = True
            self._watch.look_at_all()

    # -- for requests --

    async def catch_up(self) -> None:
        """Learn what other brokers have changed just now, if the store can be reached. However
        many requests wait for that, the store is asked once. Raises what the store raises.
        """
        if not self.store.is_shared or not self.is_connected:
            return
        self._asked += 1
        number = self._asked

        async def look() -> None:
            if number > self._caught_up:
                asked = self._asked
                await self.look()
                self._caught_up = asked

        await self.events.put(look)

    def check_connected(self) -> None:
        """REQUEST_TIMED_OUT while the store cannot be reached; clients retry."""
        if not self.is_connected:
            raise unreachable()
