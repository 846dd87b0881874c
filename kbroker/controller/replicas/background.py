"""The controller's background work: it watches brokers and topics, and elects leaders.

The rest of what it serves are requests (``topic_admin``, ``config_admin``); all are events of one
queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from kbroker.cluster.control_requests import NO_LEADER, PartitionKey
from kbroker.controller.configs.configs import ConfigsChanged
from kbroker.controller.election.active_controller import ActiveController
from kbroker.controller.replicas.brokers import BrokerChanges
from kbroker.controller.replicas.features import FeatureLevels
from kbroker.controller.replicas.isr_requests import IsrRequests
from kbroker.controller.replicas.leader_balance import LeaderBalance
from kbroker.controller.replicas.leader_elections import LeaderElections
from kbroker.controller.replicas.notifications import Notifications
from kbroker.controller.replicas.partition_writes import PartitionWrites
from kbroker.controller.replicas.reassigning import Reassigning
from kbroker.controller.replicas.shutdowns import Shutdowns
from kbroker.controller.store.store_watch import StoreWatch
from kbroker.controller.topics.topic_changes import TopicChanges
from kbroker.ipc.pending import Pending

logger = logging.getLogger(__name__)


class Background:
    """The background work of one elected controller.

    setting: returns the current value of a broker config. finish_deletions: ``TopicAdmin``'s.
    """

    def __init__(
        self,
        controller: ActiveController,
        setting: Callable[[str], Any],
        sleep: Callable[[int], Pending[None]],
        finish_deletions: Callable[[list[str]], None],
    ) -> None:
        self._controller = controller
        self.watch = StoreWatch(controller.store, controller.events, sleep)
        self.writes = PartitionWrites(controller, setting)
        self.brokers = BrokerChanges(self.writes, self.watch)
        self.topics = TopicChanges(controller, self.writes, self.watch, setting, finish_deletions)
        self.notifications = Notifications(self.writes, self.watch)
        self.in_sync = IsrRequests(self.writes, controller.events, sleep)
        self.shutdowns = Shutdowns(self.writes, controller.events, sleep)
        self.elections = LeaderElections(self.writes, controller.events)
        self.reassigning = Reassigning(controller, self.writes, self.watch)
        self.balance = LeaderBalance(
            self.elections,
            self.writes,
            self.watch,
            setting,
            sleep,
            lambda: self.reassigning.is_any,
        )
        self.features = FeatureLevels(self.writes, controller.events, setting)
        controller.heard = self.brokers.heard
        self.brokers.changed = self.features.look

    def start(self) -> None:
        """Send every broker the complete state, then do whatever is due.

        The loaded state may be outdated by now, so it is read again once it is watched.
        """
        self._controller.start()
        self.writes.put(self._begin)

    async def _begin(self) -> None:
        await self.brokers.start()
        await self.brokers.look()
        await self.topics.start()
        await self.notifications.start()
        await self.settle_all()
        await self.reassigning.start()
        await self.balance.start()
        self.features.look()

    async def settle_all(self) -> None:
        """Elect leaders for all partitions without one, including new partitions."""
        await self._settle(self.writes.state.keys(), "this controller was elected")

    def configs_changed(self, changed: ConfigsChanged) -> None:
        """Unclean leader election may be enabled now, for topics that have no leader."""
        state = self.writes.state
        topics = [state.topic(name) for name in changed.topics]
        if changed.brokers:
            topics = list(state.topics())
        names = [topic.name for topic in topics if topic and self.writes.is_unclean(topic)]
        leaderless = [key for key in state.keys_of(names) if self._is_leaderless(key)]
        if leaderless:
            why = "unclean leader election was enabled"
            self.writes.put(lambda: self._settle(leaderless, why))

    def _is_leaderless(self, key: PartitionKey) -> bool:
        partition = self.writes.state.partition(key)
        return partition is not None and partition.leader == NO_LEADER

    async def _settle(self, keys: Iterable[PartitionKey], why: str) -> None:
        batch = self.writes.batch()
        try:
            await self.writes.settle(keys, batch, why)
        finally:
            self.writes.send(batch)

    def connected(self) -> None:
        """Look at everything: watches may have missed changes while the store was disconnected."""
        self.watch.look_at_all()

    def stop(self) -> None:
        """Another controller has been elected."""
        self.watch.stop()
        self.balance.stop()
