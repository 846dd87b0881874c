"""Keeps a broker's finalized features up to date with the store.

A broker that does not support one of them ends, as in Kafka: it cannot read what others write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from kbroker.cluster.features import NONE, Finalized, unsupported
from kbroker.controller.election.events import EventQueue
from kbroker.controller.store.store_watch import StoreWatch
from kbroker.controller.store.topic_nodes import DAMAGED
from kbroker.ipc.pending import Pending
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import NoNode, SessionState, Store

logger = logging.getLogger(__name__)


class UnsupportedFeatures(Exception):
    """The cluster has features that this release lacks; the message names them."""


class FeatureDistribution(Protocol):
    """Distributes the features to the processes of this broker: ``Hosting``."""

    def set_features(self, features: Finalized) -> Pending[Any]:
        """Resolves when every process has them."""


class StoredFeatures:
    """Of one broker. failed: called with what ends the broker."""

    def __init__(
        self,
        store: Store,
        settled: SettledStore,
        user: FeatureDistribution,
        sleep: Callable[[int], Pending[None]],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._events = EventQueue()
        self._store = settled
        self._user = user
        self._failed = failed
        self._watch = StoreWatch(settled, self._events, sleep)
        self._present = NONE
        store.watch_session(self._on_session)

    def start(self) -> Pending[None]:
        """Resolves when the features are read, and watched. UnsupportedFeatures."""
        return self._events.put(self._begin)

    async def _begin(self) -> None:
        if self._store.is_shared:
            await self._watch.follow(paths.FEATURES, self._look)
            await self._read()

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._watch.look_at_all()  # changes in the meantime were not reported

    async def _look(self) -> None:
        try:
            await self._read()
        except UnsupportedFeatures as error:
            self._failed(error)

    async def _read(self) -> None:
        try:
            node = await self._store.get(paths.FEATURES)
            # The first one is above that of a cluster without any.
            finalized = Finalized(paths.decode_features(node.data), node.stat.version + 1)
        except NoNode:
            finalized = NONE
        except DAMAGED as error:
            logger.error("ignoring the features %s: %r", paths.FEATURES, error)
            return
        lacking = unsupported(finalized.levels)
        if lacking:
            text = f"the cluster has features that this broker does not support: {lacking}"
            raise UnsupportedFeatures(text)
        if finalized != self._present:
            self._present = finalized
            levels = (f"{name} {level}" for name, level in sorted(finalized.levels.items()))
            logger.info("features of the cluster: %s", ", ".join(levels) or "none")
            self._user.set_features(finalized)
