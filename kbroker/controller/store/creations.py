"""Which creation of its topic a LeaderAndIsr is about, in a cluster without topic ids.

Kafka's control requests say no more than the name. So the broker that gets one asks the store for
the topic's node: no controller removes it before this broker has answered that its log is deleted,
so what it finds is the topic that was meant. A server of ZooKeeper may be behind, so it is told to
catch up first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from kbroker.cluster.control_requests import ControlRequest, ControlResponse, LeaderAndIsr
from kbroker.ipc.pending import Pending, TooLate, in_window, run, within
from kbroker.logcontext import Whole
from kbroker.metastore import paths
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.store import StoreError, StoreFailed
from kbroker.storage.dirs.creation_note import creation_of

logger = logging.getLogger(__name__)

# How long a control request waits for the store.
READ_MS = 5_000
# BOUND: reads of nodes that are under way.
READS_AT_ONCE = 500
FAILURES = (TooLate, StoreError, StoreFailed, Fenced)


class TopicHosting(Protocol):
    """What this needs of ``Hosting``."""

    def creation(self, name: str) -> bytes:
        """The creation of a topic with replicas here; NO_CREATION if it is not known."""

    def learn_creations(self, creations: Mapping[str, bytes]) -> None:
        """The creations of topics with replicas here."""

    def take(self, request: ControlRequest) -> Pending[ControlResponse]:
        """Resolves with the response."""


class Creations:
    """Of one broker. A store that is not shared knows topic ids, and is not asked."""

    def __init__(
        self, store: SettledStore, hosting: TopicHosting, sleep: Callable[[int], Pending[None]]
    ) -> None:
        self._store = store
        self._hosting = hosting
        self._sleep = sleep

    def unknown(self, request: ControlRequest) -> list[str]:
        """The topics of the request of which the store must be asked: those that are new here, and
        those that may have been created again.
        """
        if not self._store.is_shared or not isinstance(request, LeaderAndIsr):
            return []
        return list(
            dict.fromkeys(
                partition.topic
                for partition in request.partitions
                if partition.topic not in request.creations
                and (partition.is_new or not self._hosting.creation(partition.topic))
            )
        )

    async def complete(self, request: ControlRequest) -> ControlRequest:
        """The request with the creations of its topics, as far as the store tells them in time."""
        names = self.unknown(request)
        if not names or not isinstance(request, LeaderAndIsr):
            return request
        return request._replace(creations={**request.creations, **await self.found(names)})

    async def found(self, names: Collection[str]) -> dict[str, bytes]:
        """The creations of these topics, as far as the store tells them in time."""
        try:
            return await within(run(self.read(names)), self._sleep(READ_MS))
        except FAILURES as error:
            text = "cannot ask ZooKeeper when topics %s were created: %r; going by their names"
            logger.warning(text, Whole(", ".join(names)), error)
            return {}

    async def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """The creations of those of these topics that exist, as of now. Raises Fenced."""
        await self._store.sync(paths.BROKER_TOPICS)
        store = await self._store.exists(paths.CLUSTER_ID)
        if store is None:
            return {}
        wanted = list(names)
        stats = await in_window(
            (self._store.exists(paths.topic(name)) for name in wanted), READS_AT_ONCE
        )
        return {
            name: creation_of(store.created_id, stat.created_id)
            for name, stat in zip(wanted, stats, strict=True)
            if stat is not None
        }


class OwnHosting:
    """Takes the requests of this broker's own controller at once. It knows the creations of topics
    that it has read; of one that it has just created, the store is asked meanwhile: until then, any
    record in a directory of that name is another topic's.
    """

    def __init__(self, hosting: TopicHosting, creations: Creations) -> None:
        self._hosting = hosting
        self._creations = creations

    def take(self, request: ControlRequest) -> Pending[ControlResponse]:
        """Resolves with the response."""
        names = self._creations.unknown(request)
        answer = self._hosting.take(request)
        if names:
            run(self._learn(names)).then(_raise_error)
        return answer

    async def _learn(self, names: Collection[str]) -> None:
        self._hosting.learn_creations(await self._creations.found(names))


def _raise_error(outcome: Pending[None]) -> None:
    if outcome.error is not None:
        raise outcome.error
