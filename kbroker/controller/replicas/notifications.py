"""What brokers report to the controller through nodes of the store, which it deletes.

A leader whose ``inter.broker.protocol.version`` is below 2.7-IV2 writes its in-sync replicas into
the state of the partition itself, and then which partitions these are. A broker with a failed log
directory writes that it has one; which replicas are in it, it says in its response to LeaderAndIsr.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from kbroker.cluster.control_requests import PartitionKey
from kbroker.controller.replicas.partition_writes import PartitionWrites, say
from kbroker.controller.state.state import PartitionsChanged
from kbroker.controller.store import persistence
from kbroker.controller.store.store_watch import StoreWatch
from kbroker.controller.store.topic_nodes import DAMAGED
from kbroker.metastore import paths
from kbroker.metastore.store import NoNode

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Nodes that are deleted in one transaction.
GROUP = 100


class Notifications:
    """Of one controller. Everything here runs as an event of its queue."""

    def __init__(self, writes: PartitionWrites, watch: StoreWatch) -> None:
        self._writes = writes
        self._watch = watch
        self._state = writes.state
        self._store = writes.store

    async def start(self) -> None:
        """Follow what is reported from now on. What an earlier controller has left is taken, too:
        it may have been reported after the states were loaded.
        """
        if not self._store.is_shared:
            return
        await self._watch.follow(paths.ISR_CHANGES, self.look_at_isr_changes)
        await self._watch.follow(paths.LOG_DIR_EVENTS, self.look_at_log_dirs)
        await self.look_at_isr_changes()
        await self.look_at_log_dirs()

    async def look_at_isr_changes(self) -> None:
        """Read the states that leaders have written, and tell all brokers."""
        isr_changes = await self._read(paths.ISR_CHANGES, paths.decode_isr_change)
        keys = dict.fromkeys(key for some in isr_changes.values() for key in some)
        known = [key for key in keys if self._state.partition(key) is not None]
        if known:
            before = {key: self._state.partition(key) for key in known}
            changes = await persistence.reread_states(self._store, self._state, known)
            self._writes.note(changes)
            for change in changes:
                assert isinstance(change, PartitionsChanged)
                for number, partition in change.partitions.items():
                    key = change.name, number
                    say(key, before[key], partition, "its leader has written that")
            batch = self._writes.batch()
            batch.refresh(known)
            self._writes.send(batch)
        await self._delete(isr_changes)

    async def look_at_log_dirs(self) -> None:
        """Ask brokers what they cannot serve any more, by telling them again what they are to."""
        events = await self._read(paths.LOG_DIR_EVENTS, paths.decode_log_dir_event)
        batch = self._writes.batch()
        for broker_id in dict.fromkeys(events.values()):
            if broker_id in self._state.brokers:
                logger.warning("broker %d reports a failed log directory", broker_id)
                batch.repeat(broker_id, self._expected_of(broker_id))
        self._writes.send(batch)
        await self._delete(events)

    def _expected_of(self, broker_id: int) -> list[PartitionKey]:
        """The partitions that the broker serves, as far as is known."""
        return [
            key
            for key in self._state.keys_on([broker_id])
            if self._state.has_replica(broker_id, key) and not self._state.existing(key[0]).deleting
        ]

    async def _read(self, parent: str, decode: Callable[[bytes], T]) -> dict[str, T]:
        """By path. A node that nobody can read is deleted."""
        notifications, damaged = {}, []
        for name in await self._store.children(parent):
            path = f"{parent}/{name}"
            try:
                notifications[path] = decode((await self._store.get(path)).data)
            except NoNode:
                continue
            except DAMAGED as error:
                logger.error("ignoring the notification %s: %r", path, error)
                damaged.append(path)
        await self._delete(damaged)
        return notifications

    async def _delete(self, nodes: Iterable[str]) -> None:
        rest = iter(nodes)
        while group := list(islice(rest, GROUP)):
            try:
                await self._delete_together(group)
            except NoNode:  # another client has deleted one of them
                for path in group:
                    if await self._store.exists(path) is not None:
                        await self._delete_together([path])

    async def _delete_together(self, group: Iterable[str]) -> None:
        transaction = self._store.multi()
        for path in group:
            transaction.delete(path)
        await transaction.commit()
