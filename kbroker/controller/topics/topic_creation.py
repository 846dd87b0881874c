"""Topics that are created by a broker which is not the controller.

Clients send CreateTopics to the controller, but any broker creates what a client merely named or a
coordinator needs: it writes the settings and the assignment into the store, as Kafka does, and the
controller has the partitions led when it sees them there. Two brokers may do so at once: that the
topic is there is what both wanted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from kbroker.cluster.topic_ids import TopicIds
from kbroker.controller.election.events import EventQueue
from kbroker.controller.state.state import ClusterState, TopicState
from kbroker.controller.state.topics import PlannedTopic
from kbroker.controller.store import persistence
from kbroker.controller.store.persistence import ATTEMPTS
from kbroker.controller.store.store_failure import store_failure
from kbroker.controller.store.topic_nodes import write_assignment
from kbroker.controller.topics.topic_requests import PlannedRoom, TopicRequests, failure
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import CreateTopics, TopicResult
from kbroker.ipc.pending import Pending
from kbroker.logcontext import RateLimit
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import BadVersion, NodeExists, NoNode, StoreError, StoreFailed
from kbroker.types import BrokerId
from kbroker.wording import counted

logger = logging.getLogger(__name__)

# How long a response waits until the controller has elected leaders, and how often it checks.
LED_WITHIN_MS = 3_000
LOOK_MS = 20
RACES = (BadVersion, NodeExists, NoNode)


class Requests(Protocol):
    """Makes the rules for a state of the cluster: ``TopicRequests`` with the broker's settings."""

    def __call__(self, state: ClusterState) -> TopicRequests: ...


class TopicCreation:
    """Creates topics through any broker.

    events: what it writes, one thing after the other. requests: the rules. room: of this broker,
    for one request. is_led: whether this broker was told of a leader for each partition.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        store: SettledStore,
        events: EventQueue,
        topic_ids: TopicIds,
        requests: Requests,
        room: Callable[[], PlannedRoom],
        is_led: Callable[[str], bool],
        sleep: Callable[[int], Pending[None]],
    ) -> None:
        self._broker_id = broker_id
        self._store = store
        self._events = events
        self._topic_ids = topic_ids
        self._requests = requests
        self._room = room
        self._is_led = is_led
        self._sleep = sleep
        self._not_created = RateLimit()

    async def create(self, asked: CreateTopics) -> list[TopicResult]:
        """Create topics that clients have named; a result for each, when they are led or it takes
        too long.
        """
        results = await self._events.put(lambda: self._create(asked))
        await self._until_led([str(r.name) for r in results if not r.error], asked.within_ms)
        return results

    async def _create(self, asked: CreateTopics) -> list[TopicResult]:
        state = await self._state()
        planned = self._requests(state).creations(asked, self._room())
        new = {topic.name: topic for topic in planned.topics}
        results = []
        for result in planned.results:
            name = str(result.name)
            if name in new:
                result = await self._write(new[name])
            elif result.error == ErrorCode.TOPIC_ALREADY_EXISTS:
                topic = state.topic(name)
                if topic is None or not topic.deleting:
                    result = TopicResult(name)
            results.append(result)
        self._say_rejected(results)
        return results

    async def _state(self) -> ClusterState:
        """The state that the rules need: brokers and existing topics."""
        state = ClusterState(self._broker_id, topic_ids=self._topic_ids)
        state.brokers.update(await persistence.registrations(self._store))
        names = await self._store.children(paths.BROKER_TOPICS)
        for name in names:
            state.add_topic(TopicState(name, name.encode(), []))
        marked = await self._store.children(paths.DELETE_TOPICS)
        state.mark_deleting(name for name in marked if state.topic(name))
        return state

    async def _write(self, new: PlannedTopic) -> TopicResult:
        for _ in range(ATTEMPTS):
            config = await self._store.exists(paths.topic_config(new.name))
            transaction = self._store.multi()
            config_version = None if config is None else config.version
            topic_id = self._topic_ids.to_store(new.topic_id)
            write_assignment(transaction, new, config_version, topic_id)
            try:
                await transaction.commit()
            except RACES:
                if await self._store.exists(paths.topic(new.name)) is not None:
                    return TopicResult(new.name)  # another broker was faster
            except (StoreFailed, StoreError) as error:
                return failure(new.name, store_failure(error))
            else:
                size = counted(len(new.assignment), "partition")
                logger.info("created topic %s with %s in the metadata store", new.name, size)
                return TopicResult(new.name)
        text = f"Topic '{new.name}' is being changed by other brokers; try again."
        return failure(new.name, WireError(ErrorCode.REQUEST_TIMED_OUT, text))

    def _say_rejected(self, results: Iterable[TopicResult]) -> None:
        """Log rejected auto-creations: clients get only an error code for them, and retry."""
        for result in results:
            if result.error and result.error != ErrorCode.TOPIC_ALREADY_EXISTS:
                count = self._not_created.due(result.name)
                if count:
                    times = f" ({count} times)" if count > 1 else ""
                    text = "cannot create topic %s%s: %s"
                    logger.warning(text, result.name, times, result.message)

    async def _until_led(self, names: list[str], within_ms: int) -> None:
        for _ in range(min(within_ms, LED_WITHIN_MS) // LOOK_MS):
            if all(map(self._is_led, names)):
                return
            await self._sleep(LOOK_MS)


def is_led(partitions: Iterable[Any]) -> bool:
    """Whether each of these partitions of a topic has a leader."""
    leaders = [partition.leader for partition in partitions]
    return bool(leaders) and min(leaders) >= 0
