"""Which creation of its topic a LeaderAndIsr is about, in a cluster without topic ids.

Kafka's control requests say no more than the name. So the broker that gets one asks the store for
the topic's node: no controller removes it before this broker has answered that its log is deleted,
so what it finds is the topic that was meant. A server of ZooKeeper may be behind, so it is told to
catch up first.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from kbroker.cluster.control_requests import ControlRequest, ControlResponse, LeaderAndIsr
from kbroker.ipc.pending import Pending, TooLate, in_window, pass_on, run, within
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


class Hosts(Protocol):
    """What this needs of ``Hosting``."""

    def creation(self, name: str) -> bytes:
        """The creation of a topic with replicas here; NO_CREATION if it is not known."""

    def take(self, request: ControlRequest) -> Pending[ControlResponse]:
        """Resolves with the response."""


class Creations:
    """Of one broker. A store that is not shared knows topic ids, and is not asked."""

    def __init__(
        self, store: SettledStore, hosting: Hosts, sleep: Callable[[int], Pending[None]]
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
                told.topic
                for told in request.partitions
                if told.is_new or not self._hosting.creation(told.topic)
            )
        )

    async def complete(self, request: ControlRequest) -> ControlRequest:
        """The request with the creations of its topics, as far as the store tells them in time."""
        names = self.unknown(request)
        if not names or not isinstance(request, LeaderAndIsr):
            return request
        try:
            found = await within(run(self.read(names)), self._sleep(READ_MS))
        except FAILURES as error:
            text = "cannot ask ZooKeeper when topics %s were created: %r; going by their names"
            logger.warning(text, Whole(", ".join(names)), error)
            return request
        return request._replace(creations=found)

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


class Waiting(NamedTuple):
    request: ControlRequest
    answer: Pending[ControlResponse]


class OwnHosting:
    """Takes the requests of this broker's own controller, in their order: one waits only while the
    store is asked for it, or for one before it.
    """

    def __init__(self, hosting: Hosts, creations: Creations) -> None:
        self._hosting = hosting
        self._creations = creations
        # BOUND: by the requests of this controller.
        self._waiting: deque[Waiting] = deque()

    def take(self, request: ControlRequest) -> Pending[ControlResponse]:
        """Resolves with the response."""
        if not self._waiting and not self._creations.unknown(request):
            return self._hosting.take(request)
        answer: Pending[ControlResponse] = Pending()
        self._waiting.append(Waiting(request, answer))
        if len(self._waiting) == 1:
            run(self._work())
        return answer

    async def _work(self) -> None:
        while self._waiting:
            request, answer = self._waiting[0]
            try:
                taken = self._hosting.take(await self._creations.complete(request))
            except Exception as error:
                answer.resolve(error=error)
            else:
                pass_on(taken, answer)
            self._waiting.popleft()
