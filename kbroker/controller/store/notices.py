"""Notifications of changes in the metadata store: sequential nodes that whoever changes something
creates, and that every broker reads once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import Node, NoNode

logger = logging.getLogger(__name__)

# As in Kafka. A broker whose connection was lost for longer reads everything anyway.
KEPT_MS = 15 * 60 * 1000


class Notices:
    """The notifications of one kind. prefix: their path up to the number. wall_ms: wall clock, to
    compare with creation times.
    """

    def __init__(self, store: SettledStore, prefix: str, wall_ms: Callable[[], int]) -> None:
        self.parent = prefix.rpartition("/")[0]
        self._store = store
        self._prefix = prefix
        self._wall_ms = wall_ms
        self._last = -1  # sequence number of the last one that was taken
        self._odd: set[str] = set()

    async def skip(self) -> None:
        """Everything is about to be read: the present ones say nothing new."""
        self._last = max(await self._present(), default=-1)

    async def take(self) -> list[Node]:
        """Those that are new, the oldest first. Expired ones are removed."""
        present = await self._present()
        new = []
        for number, path in present.items():
            if number > self._last:
                try:
                    new.append(await self._store.get(path))
                except NoNode:
                    continue
        self._last = max((self._last, *present))
        await self._remove_old(list(present.values()))
        return new

    async def _present(self) -> dict[int, str]:
        """Their paths by number, the oldest first. The log names any other node."""
        notices, odd = {}, set()
        for name in await self._store.children(self.parent):
            path = f"{self.parent}/{name}"
            number = paths.sequence_of(path, self._prefix)
            if number is None:
                odd.add(path)
            else:
                notices[number] = path
        for path in sorted(odd - self._odd):
            logger.error("ignoring %s, which is no notification", path)
        self._odd = odd
        return dict(sorted(notices.items()))

    async def _remove_old(self, oldest_first: list[str]) -> None:
        for path in oldest_first:
            stat = await self._store.exists(path)
            if stat is None:
                continue
            if self._wall_ms() - stat.created_ms <= KEPT_MS:
                return
            try:
                await self._store.multi().delete(path).commit()
            except NoNode:
                continue
