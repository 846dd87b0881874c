"""What the controller knows: brokers, topics, configs, and the slots of this broker's replicas.

Nothing here writes or sends. ``snapshot`` and ``delta`` are the cluster image's JSON form
(docs/architecture.md). A topic that is being deleted stays here until its deletion is finished:
io workers see it until its logs are deleted, everybody else is told that it is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from kbroker.cluster.image import NO_SLOT
from kbroker.internal_topics import INTERNAL_TOPICS
from kbroker.ipc.calls import ImageDocument, StoppedReplica
from kbroker.types import BrokerId

Document = dict[str, Any]


class PartitionState(NamedTuple):
    leader: int
    leader_epoch: int
    isr: list[int]
    replicas: list[int]
    slot: int  # NO_SLOT when this broker has no replica
    slot_incarnation: int
    partition_epoch: int = 0

    def document(self) -> Document:
        """The partition in the cluster image."""
        return self._asdict()


class TopicState:
    """A topic; changed in place by ``ClusterState`` only."""

    __slots__ = (
        "config",
        "deleting",
        "document_version",
        "name",
        "partitions",
        "stopped",
        "topic_id",
    )

    def __init__(
        self, name: str, topic_id: bytes, partitions: list[PartitionState], config: dict[str, str]
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions
        self.config = config
        self.deleting = False
        self.stopped = False  # its logs are deleted
        # Of the topic's node in the store, which this was read from or written to.
        self.document_version = 0

    def document(self) -> Document:
        """The topic in the cluster image."""
        return {
            "id": self.topic_id.hex(),
            "internal": self.name in INTERNAL_TOPICS,
            "config": self.config,
            "partitions": [partition.document() for partition in self.partitions],
        }


class ClusterState:
    """Everything the controller publishes. ``version`` grows with every change."""

    def __init__(self, broker_id: int, cluster_id: str) -> None:
        self.broker_id = BrokerId(broker_id)
        self.cluster_id = cluster_id
        self.controller_epoch = 0
        self.version = 1
        self.brokers: dict[int, Document] = {}
        self.broker_config: dict[str, dict[str, str]] = {"default": {}}
        self.group_config: dict[str, dict[str, str]] = {}  # of groups that have settings
        self._topics: dict[str, TopicState] = {}
        self._names_by_id: dict[bytes, str] = {}
        self._names_by_metric: dict[str, str] = {}
        # Topics of an older store may collide: those whose metric name another one has.
        self._collided: dict[str, list[str]] = {}

    def take_office(self, controller_epoch: int) -> None:
        """Be the controller of that epoch. Versions grow from one controller to the next, too."""
        self.controller_epoch = controller_epoch
        self.version = controller_epoch << 32

    # -- topics ------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicState | None:
        """The topic, also one that is being deleted."""
        return self._topics.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic with that id, also of one that is being deleted."""
        return self._names_by_id.get(topic_id)

    def topics(self) -> list[TopicState]:
        """All topics, those being deleted too."""
        return list(self._topics.values())

    def colliding_topic(self, name: str) -> str | None:
        """Another topic whose name differs only in ``.`` and ``_``: the two share metric names."""
        other = self._names_by_metric.get(name.replace(".", "_"))
        return other if other != name else None

    def add_topic(self, topic: TopicState) -> None:
        assert topic.name not in self._topics, topic.name
        self._topics[topic.name] = topic
        self._names_by_id[topic.topic_id] = topic.name
        metric = topic.name.replace(".", "_")
        if self._names_by_metric.setdefault(metric, topic.name) != topic.name:
            self._collided.setdefault(metric, []).append(topic.name)
        self.version += 1

    def remove_topic(self, name: str) -> TopicState:
        topic = self._topics.pop(name)
        del self._names_by_id[topic.topic_id]
        metric = name.replace(".", "_")
        others = self._collided.get(metric, [])
        if self._names_by_metric[metric] != name:
            others.remove(name)
        elif others:
            self._names_by_metric[metric] = others.pop(0)
        else:
            del self._names_by_metric[metric]
        if not others:
            self._collided.pop(metric, None)
        self.version += 1
        return topic

    def add_partitions(self, name: str, partitions: list[PartitionState]) -> None:
        self._topics[name].partitions.extend(partitions)
        self.version += 1

    def set_topic_config(self, name: str, config: dict[str, str]) -> None:
        self._topics[name].config = config
        self.version += 1

    def mark_deleting(self, names: Iterable[str]) -> None:
        for name in names:
            self._topics[name].deleting = True
        self.version += 1

    def hosted_replicas(self, names: Iterable[str]) -> Iterator[StoppedReplica]:
        """The replicas on this broker of these topics."""
        for name in names:
            for number, partition in enumerate(self._topics[name].partitions):
                if partition.slot != NO_SLOT:
                    yield StoppedReplica(name, number, partition.slot, partition.slot_incarnation)

    def mark_stopped(self, names: Iterable[str]) -> None:
        """The logs of topics that are being deleted are gone."""
        for name in names:
            self._topics[name].stopped = True
        self.version += 1

    # -- brokers -----------------------------------------------------------------------------

    def set_broker(self, broker_id: int, endpoints: list[list[Any]], rack: str | None) -> None:
        self.brokers[broker_id] = {"endpoints": endpoints, "rack": rack}
        self.version += 1

    def set_broker_config(self, entity: str, config: dict[str, str]) -> None:
        """``entity``: a broker id as text, ``default``, or ``file`` (see the architecture page)."""
        self.broker_config[entity] = config
        self.version += 1

    def set_group_config(self, group: str, config: dict[str, str]) -> None:
        """Without settings the group is forgotten."""
        if config:
            self.group_config[group] = config
        else:
            self.group_config.pop(group, None)
        self.version += 1

    # -- documents ---------------------------------------------------------------------------

    def snapshot(self, for_io_worker: bool) -> ImageDocument:
        """The whole image. io workers also see topics whose logs are to be deleted."""
        return {
            "snapshot": True,
            "version": self.version,
            "cluster_id": self.cluster_id,
            "controller_id": self.broker_id,
            "brokers": {str(number): broker for number, broker in self.brokers.items()},
            "topics": {
                topic.name: topic.document()
                for topic in self._topics.values()
                if not (topic.stopped if for_io_worker else topic.deleting)
            },
            "broker_config": self.broker_config,
            "group_config": self.group_config,
        }

    def delta(
        self,
        names: Iterable[str],
        with_configs: bool,
        for_io_worker: bool,
        groups: Iterable[str] = (),
    ) -> ImageDocument:
        """The present state of some topics and groups, and of the broker configs if asked for.

        A topic that is gone or being deleted is null; to io workers, once its logs are deleted.
        Until then they see nothing of it here.
        """
        topics: dict[str, Document | None] = {}
        for name in names:
            topic = self._topics.get(name)
            if topic is not None and not topic.deleting:
                topics[name] = topic.document()
            elif topic is None or topic.stopped or not for_io_worker:
                topics[name] = None
        delta: ImageDocument = {"version": self.version}
        if topics:
            delta["topics"] = topics
        if with_configs:
            delta["broker_config"] = self.broker_config
        of_groups = {group: self.group_config.get(group) for group in groups}
        if of_groups:
            delta["group_config"] = of_groups
        return delta
