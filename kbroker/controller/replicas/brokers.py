"""Reacts to brokers that join, fail, restart or change their listeners.

A broker that has registered again counts as failed and joined, even if nobody saw it fail: it may
have lost the end of its logs, so it is removed from the ISR first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from kbroker.cluster.control_requests import LeaderAndIsr, PartitionKey
from kbroker.controller.election.active_controller import Completed
from kbroker.controller.election.announcements import is_current
from kbroker.controller.replicas.partition_writes import PartitionWrites
from kbroker.controller.state.state import RegisteredBroker
from kbroker.controller.store import persistence
from kbroker.controller.store.store_watch import StoreWatch
from kbroker.errors import ErrorCode
from kbroker.ipc.pending import Pending
from kbroker.metastore import paths
from kbroker.wording import named_brokers

logger = logging.getLogger(__name__)


class BrokerDifferences(NamedTuple):
    """A broker that has registered again is in ``gone`` and in ``come``."""

    gone: list[int]
    come: list[int]
    moved: list[int]  # the same registration with other endpoints


def compare(
    known: Mapping[int, RegisteredBroker], registered: Mapping[int, RegisteredBroker]
) -> BrokerDifferences:
    """Compare the known brokers with the registrations in the store."""
    differences = BrokerDifferences([], [], [])
    for broker_id, broker in known.items():
        if broker_id not in registered or registered[broker_id].epoch != broker.epoch:
            differences.gone.append(broker_id)
        elif registered[broker_id] != broker:
            differences.moved.append(broker_id)
    for broker_id in registered:
        if broker_id not in known or broker_id in differences.gone:
            differences.come.append(broker_id)
    return differences


class BrokerChanges:
    """Everything here runs in the controller's event queue."""

    def __init__(self, writes: PartitionWrites, watch: StoreWatch) -> None:
        self._writes = writes
        self._watch = watch
        self._state = writes.state
        # Called after brokers have come or gone.
        self.changed: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Start to watch registrations. Read them after this, so that no change is missed."""
        await self._watch.follow(paths.BROKER_IDS, self.look)

    async def look(self) -> None:
        """Read the registrations and react to differences."""
        registrations = await persistence.registrations(self._writes.store)
        await self._follow(registrations)
        await self._forget_early(registrations)
        gone, come, moved = compare(self._state.brokers, registrations)
        if gone:
            await self._lose(gone, registrations)
        if come or moved:
            for broker_id in (*come, *moved):
                self._state.add_broker(broker_id, registrations[broker_id])
            self._writes.set_live()
            await self._welcome(come)
        if gone or come:
            self.changed()

    async def _forget_early(self, registered: dict[int, RegisteredBroker]) -> None:
        """Leave out brokers that were removed early and whose registrations still last. Where one
        has ended, what had to wait for that may be done.
        """
        ended, early = [], self._state.removed_early
        for broker_id, epoch in list(early.items()):
            if broker_id in registered and registered[broker_id].epoch == epoch:
                del registered[broker_id]
            else:
                del early[broker_id]
                ended.append(broker_id)
        if ended:
            await self._settle(ended, [], f"the registration of {named_brokers(ended)} ended")

    async def remove_early(self, broker_id: int, epoch: int, why: str) -> Pending[list[Completed]]:
        """Take a broker that is gone for one whose registration has ended, as it will. Resolves
        when the others have been told. The epochs of leaders fence it if it lives after all, and no
        unclean election is made before its registration has ended.
        """
        responses: Pending[list[Completed]] = Pending()
        broker = self._state.brokers.get(broker_id)
        if broker is None or broker.epoch != epoch:
            responses.resolve([])
            return responses
        self._state.removed_early[broker_id] = epoch
        self._state.remove_broker(broker_id)
        self._writes.set_live()
        responses = await self._settle([broker_id], [], why)
        self.changed()
        return responses

    async def readmit(self, broker_id: int, epoch: int) -> None:
        """A broker that was removed early lives, in the same registration."""
        if self._state.removed_early.get(broker_id) == epoch:
            del self._state.removed_early[broker_id]
            await self.look()

    async def _follow(self, brokers: Collection[int]) -> None:
        """Watch the data of each registration, which contains its listeners."""
        wanted = {paths.broker(broker_id) for broker_id in brokers}
        for path in self._watch.following(paths.BROKER_IDS):
            if path not in wanted:
                self._watch.unfollow(path)
        for path in wanted:
            await self._watch.follow(path, self.look)

    async def _lose(self, gone: list[int], registered: Mapping[int, RegisteredBroker]) -> None:
        """Elect new leaders for their partitions."""
        again = [broker_id for broker_id in gone if broker_id in registered]
        logger.info("brokers gone: %s, of which registered again: %s", gone, again)
        for broker_id in gone:
            self._state.remove_broker(broker_id)
        self._writes.set_live()
        what = "ended" if not again else "ended, some to begin again"
        await self._settle(gone, [], f"the registration of {named_brokers(gone)} {what}")

    async def _welcome(self, come: list[int]) -> None:
        """Send them the complete state, and elect leaders for partitions that waited for them."""
        if come:
            epochs = {broker_id: self._state.brokers[broker_id].epoch for broker_id in come}
            logger.info("new brokers, with their epochs: %s", epochs)
        await self._settle(come, come, f"{named_brokers(come)} registered" if come else "")

    async def _settle(
        self, affected: list[int], untold: list[int], why: str
    ) -> Pending[list[Completed]]:
        batch = self._writes.batch()
        batch.tell_all_to(untold)
        keys = self._state.keys_on(affected)
        batch.refresh(keys)  # other replicas are offline now
        try:
            await self._writes.settle(keys, batch, why)
        finally:
            responses = self._writes.send(batch)
        return responses

    # -- log directories ---------------------------------------------------------------------

    def heard(self, completed: Completed) -> None:
        """Handle a LeaderAndIsr response: it says which replicas are in a failed log directory."""
        broker_id, request, response = completed
        assert isinstance(request, LeaderAndIsr)
        if response.error is not ErrorCode.NONE or not is_current(self._state, request, broker_id):
            return
        known = self._state.offline_replicas.get(broker_id, set())
        failed = {
            key
            for key, code in response.partitions.items()
            if code is ErrorCode.KAFKA_STORAGE_ERROR
        }
        works = {partition.key for partition in request.partitions} - response.partitions.keys()
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
        why = f"a log directory of broker {broker_id} {'failed' if fresh else 'is back'}"
        if fresh:
            text = "broker %d has no log directory for %d partitions, %s-%d among them"
            logger.warning(text, broker_id, len(fresh), *fresh[0])
        batch = self._writes.batch()
        batch.refresh(changed)
        try:
            moved = await self._writes.settle(changed, batch, why)
            for key in fresh:
                if key in moved:
                    batch.stop(broker_id, key, moved[key].leader_epoch, delete=False)
        finally:
            self._writes.send(batch)
