"""Watches nodes of a store that other clients write to as well.

A watch only says that something may have changed. A look is an event of the controller: it reads,
compares and decides. However often a node changes while its look waits, it is looked at once. While
the connection is away changes go unreported, so after every CONNECTED everything is looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kbroker.controller.election.events import EventQueue, Work
from kbroker.ipc.pending import Pending
from kbroker.metastore.settled import Fenced, SettledStore

logger = logging.getLogger(__name__)

# The delay before a failed look is retried: the first one, and the maximum.
RETRY_MS = 1_000
RETRY_MAX_MS = 30_000


class Look:
    """A handler that runs when a node may have changed."""

    def __init__(self, watch: StoreWatch, path: str, work: Work[None]) -> None:
        self._watch = watch
        self.path = path
        self._work = work
        self._is_queued = False
        self._failures = 0
        self.cancel: Callable[[], None] = lambda: None
        self.is_over = False

    def take(self) -> None:
        """Queue the handler, unless it is queued already."""
        if self._is_queued or self.is_over:
            return
        self._is_queued = True
        self._watch.events.put(self._run).then(self._ended)

    async def _run(self) -> None:
        self._is_queued = False
        if not self.is_over:
            await self._work()

    def _ended(self, outcome: Pending[None]) -> None:
        self._is_queued = False
        error = outcome.error
        if error is None:
            self._failures = 0
        elif not isinstance(error, Fenced) and not self.is_over:
            delay_ms = min(RETRY_MS << min(self._failures, 10), RETRY_MAX_MS)
            self._failures += 1
            text = "cannot apply the changes of %s; trying again in %d ms"
            logger.error(text, self.path, delay_ms, exc_info=error)
            self._watch.sleep(delay_ms).then(lambda _: self.take())


class StoreWatch:
    """The watches of one elected controller."""

    def __init__(
        self, store: SettledStore, events: EventQueue, sleep: Callable[[int], Pending[None]]
    ) -> None:
        self.events = events
        self.sleep = sleep
        self._store = store
        self._looks: dict[str, Look] = {}

    async def follow(self, path: str, work: Work[None]) -> None:
        """Call ``work`` whenever the node, or its list of children, changes.

        Returns when the watch is set, so that no change after a later read is missed.
        """
        if path in self._looks or not self._store.is_shared:
            return
        look = self._looks[path] = Look(self, path, work)
        cancel = await self._store.watch(path, lambda _: look.take())
        if look.is_over:
            cancel()
        else:
            look.cancel = cancel

    def unfollow(self, path: str) -> None:
        look = self._looks.pop(path, None)
        if look is not None:
            look.is_over = True
            look.cancel()

    def following(self, below: str) -> list[str]:
        """The watched paths below a node."""
        return [path for path in self._looks if path.startswith(below + "/")]

    def look_at_all(self) -> None:
        """Queue all handlers; the connection is back."""
        for look in list(self._looks.values()):
            look.take()

    def stop(self) -> None:
        """Another controller has been elected."""
        for path in list(self._looks):
            self.unfollow(path)
