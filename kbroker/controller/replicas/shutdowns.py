"""ControlledShutdown: moves leadership away from a broker that is about to stop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from itertools import islice

from kbroker.cluster.control_requests import NO_BROKER_EPOCH, PartitionKey
from kbroker.controller.election.active_controller import Completed
from kbroker.controller.election.announcements import Batch
from kbroker.controller.election.events import EventQueue
from kbroker.controller.replicas.partition_writes import PartitionWrites
from kbroker.controller.state import elections
from kbroker.controller.state.decisions import Decide
from kbroker.controller.state.state import PartitionState
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.pending import Pending, TooLate, within

logger = logging.getLogger(__name__)

# Partitions whose replicas are told before those of the next ones are: nobody leads a partition
# from when its old leader is told until the new one is, and nothing is committed until its
# followers have heard, too. A broker that does not respond holds up each group for TOLD_WITHIN_MS.
GROUP = 150
TOLD_WITHIN_MS = 250


class Shutdowns:
    """Serves ControlledShutdown."""

    def __init__(
        self, writes: PartitionWrites, events: EventQueue, sleep: Callable[[int], Pending[None]]
    ) -> None:
        self._writes = writes
        self._events = events
        self._sleep = sleep
        self._state = writes.state

    def shut_down(self, broker_id: int, broker_epoch: int) -> Pending[list[PartitionKey]]:
        """The partitions that it still leads and that have other replicas. The broker retries until
        there are none, or until its retries are exhausted.

        BROKER_NOT_AVAILABLE, STALE_BROKER_EPOCH.
        """
        return self._events.put(lambda: self._shut_down(broker_id, broker_epoch))

    async def _shut_down(self, broker_id: int, broker_epoch: int) -> list[PartitionKey]:
        state = self._state
        broker = state.brokers.get(broker_id)
        if broker is None:
            text = f"Broker {broker_id} is not registered."
            raise WireError(ErrorCode.BROKER_NOT_AVAILABLE, text)
        if NO_BROKER_EPOCH != broker_epoch < broker.epoch:
            text = f"Broker {broker_id} has registered again, with epoch {broker.epoch}."
            raise WireError(ErrorCode.STALE_BROKER_EPOCH, text)
        state.shutting_down.add(broker_id)
        keys = [key for key in state.keys_on([broker_id]) if self._is_shared(key)]
        followed = {key for key in keys if not self._leads(broker_id, key)}

        def decide(key: PartitionKey, old: PartitionState) -> PartitionState | None:
            return elections.hand_over(state, key, old, state.shutting_down)

        concerned = self._writes.needing(keys, decide)
        unchanged = set(keys).difference(concerned)
        if unchanged:
            # Leaders below IBP 2.7-IV2 write the ISR themselves, and notify later: one that is
            # larger than the known one may have another leader, or this broker in it.
            await self._writes.reread([key for key in keys if key in unchanged])
            concerned = self._writes.needing(keys, decide)
        concerned.sort(key=lambda key: not self._leads(broker_id, key))  # those it leads first
        why = f"broker {broker_id} is shutting down"
        await self._change(concerned, decide, why, broker_id, followed)
        batch, changed = self._writes.batch(), set(concerned)
        others = [key for key in keys if key not in changed]
        batch.refresh(others)
        self._stop(others, batch, broker_id, followed)
        self._writes.send(batch)
        remaining = [key for key in keys if self._leads(broker_id, key)]
        text = "broker %d is shutting down; it still leads %d of %d partitions with other replicas"
        logger.info(text, broker_id, len(remaining), len(keys))
        return remaining

    async def _change(
        self,
        keys: Iterable[PartitionKey],
        decide: Decide,
        why: str,
        broker_id: int,
        followed: Collection[PartitionKey],
    ) -> None:
        """Have others lead these partitions, and leave the broker out of their ISR: some at a time,
        so that each is disturbed for as long as it takes to tell a few. The next ones are written
        meanwhile.
        """
        rest = iter(keys)
        responses: Pending[list[Completed]] | None = None
        while group := list(islice(rest, GROUP)):
            batch = self._writes.batch()
            try:
                await self._writes.change(group, decide, batch, why)
                self._stop(group, batch, broker_id, followed)
            finally:
                await self._told(responses)
                responses = self._writes.send(batch)
        await self._told(responses)

    async def _told(self, responses: Pending[list[Completed]] | None) -> None:
        """Wait until the replicas of a group have been told, if they respond."""
        if responses is not None:
            with suppress(TooLate):
                await within(responses, self._sleep(TOLD_WITHIN_MS))

    def _stop(
        self,
        keys: Iterable[PartitionKey],
        batch: Batch,
        broker_id: int,
        followed: Collection[PartitionKey],
    ) -> None:
        """Have the broker follow these no longer."""
        for key in keys:
            partition = self._state.partition(key)
            if key in followed and partition is not None:
                batch.stop(broker_id, key, partition.leader_epoch, delete=False)

    def _is_shared(self, key: PartitionKey) -> bool:
        """Whether another broker has a replica of it."""
        partition = self._state.partition(key)
        topic = self._state.existing(key[0])
        return partition is not None and len(partition.replicas) > 1 and not topic.deleting

    def _leads(self, broker_id: int, key: PartitionKey) -> bool:
        partition = self._state.partition(key)
        return partition is not None and partition.leader == broker_id
