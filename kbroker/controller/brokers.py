"""Brokers that come, go, come back or change their listeners: what the controller does about it.

A broker is a registration. One that has registered again has gone and come, whether anybody saw it
gone or not: it may have lost the end of its logs, so it is taken out of the in-sync replicas first.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import NamedTuple

from kbroker.cluster.control_requests import LeaderAndIsr, PartitionKey
from kbroker.controller import persistence
from kbroker.controller.active_controller import Answered
from kbroker.controller.announcements import is_current
from kbroker.controller.partition_writes import PartitionWrites
from kbroker.controller.state import Broker
from kbroker.controller.store_watch import StoreWatch
from kbroker.errors import ErrorCode
from kbroker.metastore import paths

logger = logging.getLogger(__name__)


class BrokerDifferences(NamedTuple):
    """``gone`` and ``come``: a broker that has registered again is in both."""

    gone: list[int]
    come: list[int]
    moved: list[int]  # the same registration with other endpoints


def compare(known: Mapping[int, Broker], found: Mapping[int, Broker]) -> BrokerDifferences:
    """What has become of the brokers that were known."""
    differences = BrokerDifferences([], [], [])
    for broker_id, broker in known.items():
        if broker_id not in found or found[broker_id].epoch != broker.epoch:
            differences.gone.append(broker_id)
        elif found[broker_id] != broker:
            differences.moved.append(broker_id)
    for broker_id in found:
        if broker_id not in known or broker_id in differences.gone:
            differences.come.append(broker_id)
    return differences


class BrokerChanges:
    """Of one controller. Everything here runs as an event of its queue."""

    def __init__(self, writes: PartitionWrites, watch: StoreWatch) -> None:
        self._writes = writes
        self._watch = watch
        self._state = writes.state

    async def start(self) -> None:
        """Be told of changes from now on; the registrations are to be read after that."""
        await self._watch.follow(paths.BROKER_IDS, self.look)

    async def look(self) -> None:
        """Read the registrations, and act on what is different."""
        found = await persistence.registrations(self._writes.store)
        await self._follow(found)
        gone, come, moved = compare(self._state.brokers, found)
        if gone:
            await self._lose(gone, found)
        if come or moved:
            for broker_id in (*come, *moved):
                self._state.brokers[broker_id] = found[broker_id]
            self._writes.set_live()
            await self._welcome(come)

    async def _follow(self, found: Collection[int]) -> None:
        """The data of a registration says which listeners there are."""
        wanted = {paths.broker(broker_id) for broker_id in found}
        for path in self._watch.following(paths.BROKER_IDS):
            if path not in wanted:
                self._watch.unfollow(path)
        for path in wanted:
            await self._watch.follow(path, self.look)

    async def _lose(self, gone: list[int], found: Mapping[int, Broker]) -> None:
        """Others lead in their place."""
        again = [broker_id for broker_id in gone if broker_id in found]
        logger.info("brokers gone: %s (registered again: %s)", gone, again)
        for broker_id in gone:
            self._state.remove_broker(broker_id)
        self._writes.set_live()
        await self._settle(gone, [])

    async def _welcome(self, come: list[int]) -> None:
        """Tell them all there is, and elect leaders where only they were missing."""
        if come:
            epochs = {broker_id: self._state.brokers[broker_id].epoch for broker_id in come}
            logger.info("brokers come, with their epochs: %s", epochs)
        await self._settle(come, come)

    async def _settle(self, affected: list[int], untold: list[int]) -> None:
        batch = self._writes.batch()
        batch.tell_all_to(untold)
        keys = self._state.keys_on(affected)
        batch.refresh(keys)  # other replicas are offline now
        try:
            await self._writes.settle(keys, batch)
        finally:
            self._writes.send(batch)

    # -- log directories ---------------------------------------------------------------------

    def heard(self, answered: Answered) -> None:
        """A broker says of which partitions its log directory has failed, and of which it works."""
        broker_id, request, answer = answered
        assert isinstance(request, LeaderAndIsr)
        if answer.error is not ErrorCode.NONE or not is_current(self._state, request, broker_id):
            return
        known = self._state.offline_replicas.get(broker_id, set())
        failed = {
            key for key, code in answer.partitions.items() if code is ErrorCode.KAFKA_STORAGE_ERROR
        }
        works = {told.key for told in request.partitions} - answer.partitions.keys()
        if failed - known or works & known:
            epoch = request.sender.broker_epoch
            self._writes.put(lambda: self._take_offline(broker_id, epoch, failed, works))

    async def _take_offline(
        self,
        broker_id: int,
        broker_epoch: int,
        failed: set[PartitionKey],
        works: set[PartitionKey],
    ) -> None:
        broker = self._state.brokers.get(broker_id)
        if broker is None or broker.epoch != broker_epoch:
            return
        offline = self._state.offline_replicas.setdefault(broker_id, set())
        fresh = sorted(failed - offline)
        changed = fresh + sorted(works & offline)
        offline |= failed
        offline -= works
        if fresh:
            text = "broker %d has no log directory for %d partitions, %s-%d among them"
            logger.warning(text, broker_id, len(fresh), *fresh[0])
        batch = self._writes.batch()
        batch.refresh(changed)
        try:
            moved = await self._writes.settle(changed, batch)
            for key in fresh:
                if key in moved:
                    batch.stop(broker_id, key, moved[key].leader_epoch, delete=False)
        finally:
            self._writes.send(batch)
