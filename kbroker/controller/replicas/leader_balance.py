"""Preferred leaders without a request: what ``/admin/preferred_replica_election`` asks for, and the
balance of leaders (``auto.leader.rebalance.enable``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from kbroker.cluster.control_requests import PartitionKey
from kbroker.controller.replicas.leader_elections import LeaderElections, is_needless
from kbroker.controller.replicas.partition_writes import PartitionWrites
from kbroker.controller.state.state import ClusterState
from kbroker.controller.store.store_watch import StoreWatch
from kbroker.controller.store.topic_nodes import DAMAGED
from kbroker.ipc.pending import Pending
from kbroker.metastore import paths
from kbroker.metastore.store import NoNode

logger = logging.getLogger(__name__)

ENABLE = "auto.leader.rebalance.enable"
INTERVAL = "leader.imbalance.check.interval.seconds"
PERCENTAGE = "leader.imbalance.per.broker.percentage"
FIRST_CHECK_MS = 5_000
# BOUND: leaders moved before the brokers have responded.
MOVED_AT_ONCE = 500


class LeaderBalance:
    """Of one controller. is_reassigning: whether any partition is being reassigned."""

    def __init__(
        self,
        elections: LeaderElections,
        writes: PartitionWrites,
        watch: StoreWatch,
        setting: Callable[[str], Any],
        sleep: Callable[[int], Pending[None]],
        is_reassigning: Callable[[], bool],
    ) -> None:
        self._elections = elections
        self._writes = writes
        self._watch = watch
        self._setting = setting
        self._sleep = sleep
        self._is_reassigning = is_reassigning
        self._is_stopped = False

    async def start(self) -> None:
        """Elect what was asked for, and check the balance from now on."""
        await self._watch.follow(paths.PREFERRED_ELECTION, self._look_at_node)
        if self._writes.store.is_shared:
            await self._look_at_node()
            self._sleep(FIRST_CHECK_MS).then(self._check)

    def stop(self) -> None:
        """Another controller is elected."""
        self._is_stopped = True

    async def _look_at_node(self) -> None:
        """COMPAT: as in Kafka, the node goes when the elections are done, whatever came of them."""
        store = self._writes.store
        try:
            node = await store.get(paths.PREFERRED_ELECTION)
        except NoNode:
            return  # no tool has asked for elections
        try:
            keys = paths.decode_preferred_election(node.data)
        except DAMAGED as error:
            logger.error("ignoring %s, which cannot be read: %r", node.path, error)
            keys = []
        why = f"{node.path} asked for a preferred leader election"
        for key, failed in (await self._elections.run(keys, why, unclean=False)).items():
            if failed is not None and not is_needless(failed):
                logger.warning("cannot elect the preferred leader of %s-%d: %s", *key, failed)
        with suppress(NoNode):
            await store.multi().delete(node.path).commit()

    def _check(self, _: Pending[None]) -> None:
        if self._is_stopped:
            return
        if self._setting(ENABLE):
            self._writes.put(self._balance)
        self._sleep(max(1, self._setting(INTERVAL)) * 1_000).then(self._check)

    async def _balance(self) -> None:
        await self._move(list(imbalanced(self._writes.state, self._setting(PERCENTAGE))))

    async def _move(self, keys: list[PartitionKey]) -> None:
        """Elect for some partitions; the others follow when the brokers have responded, as an event
        of its own: a broker that is gone never responds, and the event that tells comes after this.
        """
        if not keys or self._is_stopped or self._is_reassigning():
            return
        group, rest = keys[:MOVED_AT_ONCE], keys[MOVED_AT_ONCE:]
        logger.info("electing the preferred leaders of %d partitions", len(group))
        await self._elections.run(group, "leaders are balanced", unclean=False)
        if rest:
            self._elections.told().then(lambda _: self._writes.put(lambda: self._move(rest)))


def imbalanced(state: ClusterState, percentage: int) -> Iterator[PartitionKey]:
    """The partitions whose preferred leaders should lead, and can: those of brokers that lead less
    than they should by more than so many percent.
    """
    preferred: dict[int, list[PartitionKey]] = {}
    for topic in state.topics():
        if not topic.deleting:
            for number, partition in enumerate(topic.partitions):
                preferred.setdefault(partition.replicas[0], []).append((topic.name, number))
    for broker_id, keys in preferred.items():
        partitions = [(key, state.partition(key)) for key in keys]
        not_led = [(k, p) for k, p in partitions if p is not None and p.leader != broker_id]
        if 100 * len(not_led) <= percentage * len(keys):
            continue
        for key, partition in not_led:
            if broker_id in partition.isr and state.is_live(broker_id, key):
                yield key
