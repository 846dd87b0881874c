"""Leaders of partitions and live brokers, from UpdateMetadata. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kbroker.cluster.control_requests import (
    LEADER_DURING_DELETE,
    KnownPartition,
    LiveBroker,
    PartitionKey,
    UpdateMetadata,
)


class KnownTopic(NamedTuple):
    topic_id: bytes
    partitions: dict[int, KnownPartition]


class MetadataChanges(NamedTuple):
    """``brokers``: those added, removed or changed; empty if only the controller has changed, None
    if neither has.
    """

    partitions: list[PartitionKey]
    brokers: set[int] | None


class Metadata:
    """Metadata from the controllers; a topic is known while any of its partitions is."""

    def __init__(self) -> None:
        self.controller_id = -1
        self.brokers: dict[int, LiveBroker] = {}
        self._topics: dict[str, KnownTopic] = {}

    def topic(self, name: str) -> KnownTopic | None:
        return self._topics.get(name)

    def names(self) -> Iterable[str]:
        """The names of all known topics."""
        return self._topics.keys()

    def __iter__(self) -> Iterator[KnownPartition]:
        for topic in self._topics.values():
            yield from topic.partitions.values()

    def restore(
        self, controller_id: int, brokers: dict[int, LiveBroker], topics: dict[str, KnownTopic]
    ) -> None:
        """Continue with what an earlier process knew."""
        self.controller_id, self.brokers, self._topics = controller_id, brokers, topics

    def take(self, request: UpdateMetadata) -> MetadataChanges:
        """Apply a request; partitions that it does not name stay as they are."""
        brokers = self._take_brokers(request)
        changed = []
        for partition in request.partitions:
            if partition.leader == LEADER_DURING_DELETE:
                self._remove(partition)
            elif not self._enter(partition, request.topic_ids.get(partition.topic, b"")):
                continue
            changed.append(partition.key)
        return MetadataChanges(changed, brokers)

    def _take_brokers(self, request: UpdateMetadata) -> set[int] | None:
        before, now = self.brokers, dict(request.live_brokers)
        was = self.controller_id
        self.brokers, self.controller_id = now, request.sender.controller_id
        changed = {
            number for number in before.keys() | now if before.get(number) != now.get(number)
        }
        return changed if changed or was != self.controller_id else None

    def _enter(self, partition: KnownPartition, topic_id: bytes) -> bool:
        """Store a partition's metadata; returns whether it has changed."""
        topic = self._topics.get(partition.topic)
        if topic is None or topic.topic_id != topic_id:
            topic = self._topics[partition.topic] = KnownTopic(topic_id, {})
        if topic.partitions.get(partition.partition) == partition:
            return False
        topic.partitions[partition.partition] = partition
        return True

    def _remove(self, partition: KnownPartition) -> None:
        topic = self._topics.get(partition.topic)
        if topic is not None:
            topic.partitions.pop(partition.partition, None)
            if not topic.partitions:
                del self._topics[partition.topic]
