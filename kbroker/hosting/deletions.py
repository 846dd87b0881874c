"""Logs that are being deleted, and the requests that wait for that.

A partition may be assigned to this broker again before its old log is deleted: LeaderAndIsr then
waits, and a StopReplica that arrives meanwhile cancels it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from kbroker.cluster.control_requests import LedPartition, PartitionKey
from kbroker.ipc.pending import Pending


class Deletions:
    """The number of pending deletions of each partition."""

    def __init__(self) -> None:
        self._orders: Counter[PartitionKey] = Counter()
        self._held: dict[PartitionKey, LedPartition] = {}
        self._waiting: list[Pending[None]] = []

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._orders

    def begin(self, keys: Sequence[PartitionKey]) -> None:
        self._orders.update(keys)

    def end(self, keys: Sequence[PartitionKey]) -> None:
        self._orders -= Counter(keys)
        waiting, self._waiting = self._waiting, []
        for pending in waiting:
            pending.resolve()

    def drop_held(self, keys: Iterable[PartitionKey]) -> None:
        """These partitions are stopped again: cancel requests that wait for them."""
        for key in keys:
            self._held.pop(key, None)

    async def hold(self, partitions: Collection[LedPartition]) -> list[LedPartition]:
        """Wait until their logs are deleted; returns partitions without a later request."""
        self._held |= {partition.key: partition for partition in partitions}
        while any(partition.key in self._orders for partition in partitions):
            changed: Pending[None] = Pending()
            self._waiting.append(changed)
            await changed
        kept = [partition for partition in partitions if self._held.get(partition.key) is partition]
        self.drop_held(partition.key for partition in kept)
        return kept
