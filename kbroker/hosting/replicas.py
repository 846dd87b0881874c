"""The replicas of this broker: their slots, and their state from the last LeaderAndIsr.

Pure except for slots, which are recorded elsewhere. Only LeaderAndIsr adds and changes replicas,
and only StopReplica removes them.

INVARIANT: the leader epoch of a replica only grows. Outdated requests are rejected, as in Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from kbroker.cluster.control_requests import (
    EPOCH_DURING_DELETE,
    NO_LEADER,
    NO_LEADER_EPOCH,
    LeaderAndIsr,
    LedPartition,
    PartitionKey,
    StoppedPartition,
    StopReplica,
)
from kbroker.errors import ErrorCode
from kbroker.hosting.slots import NoFreeSlot, Slot
from kbroker.ipc.calls import IsrState
from kbroker.storage.dirs.creation_note import NO_CREATION, is_other_creation

logger = logging.getLogger(__name__)


class SlotAssigner(Protocol):
    """Assigns slots: ``SlotAssignments``."""

    def assign(self, topic: str, partitions: list[int]) -> dict[int, Slot]:
        """Raises NoFreeSlot; OSError if the assignment cannot be recorded."""

    def release(self, topic: str, partitions: Iterable[int] | None = None) -> None:
        """Free these slots."""


class HostedReplica(NamedTuple):
    """``told``: its state from the controller; without a leader if it was stopped."""

    slot: int
    slot_incarnation: int
    told: LedPartition


class HostedTopic(NamedTuple):
    """creation: where topics have no ids; empty if it is not known."""

    topic_id: bytes
    replicas: dict[int, HostedReplica]
    creation: bytes = NO_CREATION


class HostedReplicas:
    """The replicas by topic and partition, for as long as they have a log."""

    def __init__(self, broker_id: int, slots: SlotAssigner) -> None:
        self._broker_id = broker_id
        self._slots = slots
        self._topics: dict[str, HostedTopic] = {}
        # How often replicas have come, gone, or been given another role.
        self.changes = 0

    def topic(self, name: str) -> HostedTopic | None:
        return self._topics.get(name)

    def names(self) -> Iterable[str]:
        """The topics that have replicas on this broker."""
        return self._topics.keys()

    def replica(self, key: PartitionKey) -> HostedReplica | None:
        topic = self._topics.get(key[0])
        return None if topic is None else topic.replicas.get(key[1])

    def __iter__(self) -> Iterator[HostedReplica]:
        for topic in self._topics.values():
            yield from topic.replicas.values()

    def restore(self, topics: dict[str, HostedTopic]) -> None:
        """Continue with the replicas of an earlier process."""
        self._topics = topics
        self.changes += 1

    # -- LeaderAndIsr --

    def take(self, request: LeaderAndIsr) -> dict[PartitionKey, ErrorCode]:
        """Apply LeaderAndIsr; returns the codes of partitions for which it is rejected."""
        rejected: dict[PartitionKey, ErrorCode] = {}
        accepted: dict[str, list[LedPartition]] = {}
        for partition in request.partitions:
            error = self._error_of(partition, request.topic_ids.get(partition.topic, b""))
            if error is ErrorCode.NONE:
                accepted.setdefault(partition.topic, []).append(partition)
            else:
                rejected[partition.key] = error
        for name, partitions in accepted.items():
            try:
                slots = self._slots.assign(name, [partition.partition for partition in partitions])
            except (NoFreeSlot, OSError) as error:
                logger.error("topic %s: cannot assign slots to its partitions: %s", name, error)
                rejected |= dict.fromkeys(
                    (t.key for t in partitions), ErrorCode.KAFKA_STORAGE_ERROR
                )
                continue
            self._enter(name, request.topic_ids.get(name, b""), partitions, slots)
            self.learn(name, request.creations.get(name, NO_CREATION))
        return rejected

    def learn(self, name: str, creation: bytes) -> None:
        """The creation of a topic that has replicas here, if the store could be asked for it."""
        topic = self._topics.get(name)
        if creation and topic is not None:
            self._topics[name] = topic._replace(creation=creation)

    def of_other_creations(self, request: LeaderAndIsr) -> dict[PartitionKey, HostedReplica]:
        """Replicas of topics that were deleted and created again since they came here."""
        return {
            replica.told.key: replica
            for name, creation in request.creations.items()
            if (topic := self._topics.get(name)) is not None
            and is_other_creation(topic.creation, creation)
            for replica in topic.replicas.values()
        }

    def _error_of(self, partition: LedPartition, topic_id: bytes) -> ErrorCode:
        topic, present = self._topics.get(partition.topic), self.replica(partition.key)
        if topic is not None and topic.topic_id != topic_id:
            # The logs of the old topic must be deleted first.
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if present is not None and partition.leader_epoch <= present.told.leader_epoch:
            # COMPAT: Kafka's error code, for an equal epoch, too: a repeated request.
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if self._broker_id not in partition.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    def _enter(
        self,
        name: str,
        topic_id: bytes,
        partitions: Iterable[LedPartition],
        slots: Mapping[int, Slot],
    ) -> None:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = HostedTopic(topic_id, {})
        for partition in partitions:
            topic.replicas[partition.partition] = HostedReplica(
                *slots[partition.partition], partition
            )
        self.changes += 1

    def change_isr(self, key: PartitionKey, state: IsrState) -> bool:
        """The controller has changed the in-sync replicas, as their leader wanted.

        Returns whether that has an effect: not after a later LeaderAndIsr, or a later change.
        """
        present = self.replica(key)
        if present is None:
            return False
        state_here = present.told
        if (state_here.leader, state_here.leader_epoch) != (state.leader, state.leader_epoch):
            return False
        if state_here.partition_epoch >= state.partition_epoch:
            return False
        state_here = state_here._replace(isr=state.isr, partition_epoch=state.partition_epoch)
        self._topics[key[0]].replicas[key[1]] = present._replace(told=state_here)
        return True

    # -- StopReplica --

    def fence(
        self, request: StopReplica
    ) -> tuple[list[StoppedPartition], dict[PartitionKey, ErrorCode]]:
        """Check StopReplica: the partitions to stop, and the codes of the others."""
        stopped: list[StoppedPartition] = []
        rejected: dict[PartitionKey, ErrorCode] = {}
        for asked in request.partitions:
            present = self.replica(asked.key)
            if (
                present is None
                or asked.leader_epoch in (EPOCH_DURING_DELETE, NO_LEADER_EPOCH)
                or asked.leader_epoch > present.told.leader_epoch
            ):
                stopped.append(asked)
            else:
                # COMPAT: for an equal epoch, too, as in Kafka 2.7; later versions accept that.
                rejected[asked.key] = ErrorCode.FENCED_LEADER_EPOCH
        return stopped, rejected

    def stop(self, key: PartitionKey) -> None:
        """Stop leading or following a partition; its log stays."""
        present = self.replica(key)
        if present is not None:
            state_here = present.told._replace(leader=NO_LEADER)
            self._topics[key[0]].replicas[key[1]] = present._replace(told=state_here)

    def remove(self, key: PartitionKey, slot_incarnation: int) -> bool:
        """Remove a replica whose log is deleted, if it is this one. Its slot is not freed."""
        present = self.replica(key)
        if present is None or present.slot_incarnation != slot_incarnation:
            return False
        topic = self._topics[key[0]]
        del topic.replicas[key[1]]
        if not topic.replicas:
            del self._topics[key[0]]
        self.changes += 1
        return True
