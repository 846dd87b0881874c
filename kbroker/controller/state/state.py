"""The controller's state: brokers, topics and configs, and the versions of their nodes.

Nothing here writes or sends. Decisions are made from it (``decisions``), and what they change is
entered once it is in the store. A topic that is being deleted stays until nothing of it is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.cluster.control_requests import (
    NO_BROKER_EPOCH,
    NO_LEADER,
    NO_LEADER_EPOCH,
    LiveBroker,
    PartitionKey,
)
from kbroker.cluster.topic_ids import TopicIds
from kbroker.controller.configs.configs import Configs, ConfigsChanged
from kbroker.types import BrokerId

# The partition epoch of a partition whose node is not written yet.
NOT_STORED = -1


class PartitionState(NamedTuple):
    """Leader and ISR of a partition. ``partition_epoch``: the version of its node."""

    leader: int
    leader_epoch: int
    isr: list[int]
    replicas: list[int]
    partition_epoch: int = 0
    # During a reassignment: those of ``replicas`` that are being added, and removed.
    adding: Sequence[int] = ()
    removing: Sequence[int] = ()

    @property
    def is_stored(self) -> bool:
        """Whether it has ever had a leader; until then brokers are not told of it."""
        return self.partition_epoch != NOT_STORED


def without_state(replicas: list[int]) -> PartitionState:
    """A partition that has never had a leader."""
    return PartitionState(NO_LEADER, NO_LEADER_EPOCH, [], replicas, NOT_STORED)


class TopicState:
    """A topic; modified only by ``ClusterState``."""

    __slots__ = (
        "creation",
        "deleting",
        "document_version",
        "name",
        "partitions",
        "rest",
        "stopped",
        "topic_id",
    )

    def __init__(
        self,
        name: str,
        topic_id: bytes,
        partitions: list[PartitionState],
        document_version: int = 0,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions
        self.deleting = False
        self.stopped = False  # its logs are deleted
        # The version of the topic's node in the store, as last read or written.
        self.document_version = document_version
        self.rest: Mapping[str, Any] = {}  # of its document, which others may have added to
        # Its creation id, if its node was read; where topics have ids, it is of no use.
        self.creation = b""


class TopicCreated(NamedTuple):
    topic: TopicState
    config: dict[str, str] = {}


class TopicEnlarged(NamedTuple):
    name: str
    partitions: list[PartitionState]
    document_version: int


class PartitionsChanged(NamedTuple):
    """Partitions, by number, whose leader or ISR has changed.

    A partition that had no state before is new to its replicas.
    """

    name: str
    partitions: Mapping[int, PartitionState]


class Reassigned(NamedTuple):
    """Partitions by number whose assignment has changed, and the topic's document with it.

    ``rest``: what else is in the document.
    """

    name: str
    partitions: Mapping[int, PartitionState]
    document_version: int
    rest: Mapping[str, Any]


class DeletionBegun(NamedTuple):
    name: str


class LogsDeleted(NamedTuple):
    """No broker has logs of the topic any more; it is being deleted."""

    name: str


class TopicRemoved(NamedTuple):
    """The topic is removed from the store."""

    name: str


Change = (
    TopicCreated
    | TopicEnlarged
    | PartitionsChanged
    | Reassigned
    | DeletionBegun
    | LogsDeleted
    | TopicRemoved
    | ConfigsChanged
)


class RegisteredBroker(NamedTuple):
    """A registered broker. ``epoch``: its broker epoch. is_suspect: it has registered after a power
    failure in which some of its logs may have lost records. features: the highest levels that it
    supports; None for a Kafka. answers: PeerStatus. session_id: of the registration; 0 if unknown.
    """

    epoch: int
    live: LiveBroker
    is_suspect: bool = False
    features: Mapping[str, int] | None = None
    answers: bool = False
    session_id: int = 0


class ClusterState:
    """The state of one controller, elected as ``controller_epoch`` on broker ``broker_id``."""

    def __init__(
        self,
        broker_id: int,
        controller_epoch: int = 0,
        topic_ids: TopicIds | None = None,
        configs: Configs | None = None,
    ) -> None:
        """configs: those of the broker, which ``StoredConfigs`` maintains."""
        self.broker_id = BrokerId(broker_id)
        self.topic_ids = topic_ids or TopicIds()
        self.controller_epoch = controller_epoch
        self.brokers: dict[int, RegisteredBroker] = {}
        # Registrations that outlast their brokers, which are not in ``brokers`` any more: the epoch
        # of each by broker.
        self.removed_early: dict[int, int] = {}
        self.store_id = 0  # the creation id of the store
        self.version = 0  # changes with topics, partitions, settings and brokers
        # Live brokers that have requested a controlled shutdown.
        self.shutting_down: set[int] = set()
        # Replicas in failed log directories, by broker.
        self.offline_replicas: dict[int, set[PartitionKey]] = {}
        # Replicas that were moved away from these brokers, which have not confirmed the deletion of
        # the logs. BOUND: by the partitions moved away from brokers that are not live.
        self.removed: dict[int, set[PartitionKey]] = {}
        self.configs = configs or Configs()
        self._topics: dict[str, TopicState] = {}
        self._names_by_id: dict[bytes, str] = {}
        self._names_by_metric: dict[str, str] = {}
        # Topics of an older store may collide: those whose metric name is in use.
        self._collided: dict[str, list[str]] = {}

    def enter(self, change: Change) -> None:
        """Apply a change of the store."""
        self.version += 1
        match change:
            case TopicCreated(topic, config):
                self.add_topic(topic)
                self._assigned(topic.name, dict(enumerate(topic.partitions)))
                self.configs.topics[topic.name] = config
            case TopicEnlarged(name, partitions, document_version):
                topic = self._topics[name]
                self._assigned(name, dict(enumerate(partitions, len(topic.partitions))))
                topic.partitions.extend(partitions)
                topic.document_version = document_version
            case PartitionsChanged(name, changed):
                for number, partition in changed.items():
                    self._topics[name].partitions[number] = partition
            case Reassigned(name, reassigned, document_version, rest):
                topic = self._topics[name]
                for number, partition in reassigned.items():
                    for broker_id in topic.partitions[number].replicas:
                        self.removed.setdefault(broker_id, set()).add((name, number))
                    topic.partitions[number] = partition
                self._assigned(name, reassigned)
                topic.document_version, topic.rest = document_version, rest
            case DeletionBegun(name):
                self.mark_deleting([name])
            case LogsDeleted(name):
                self._topics[name].stopped = True
            case TopicRemoved(name):
                self.remove_topic(name)
                self.configs.forget_topic(name)
            case ConfigsChanged():
                self.configs.enter(change)

    def _assigned(self, name: str, partitions: Mapping[int, PartitionState]) -> None:
        """These have replicas that must not be deleted as those that were there before."""
        for number, partition in partitions.items():
            for broker_id in partition.replicas:
                self.confirm_removed(broker_id, [(name, number)])

    def confirm_removed(self, broker_id: int, keys: Iterable[PartitionKey]) -> None:
        """The broker has no logs of these any more, or has them by a later assignment."""
        left = self.removed.get(broker_id)
        if left is None:
            return
        left.difference_update(keys)
        if not left:
            del self.removed[broker_id]

    # -- topics ------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicState | None:
        """The topic, even if it is being deleted; None if it does not exist."""
        return self._topics.get(name)

    def existing(self, name: str) -> TopicState:
        """A topic that must exist; it may be being deleted."""
        return self._topics[name]

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic with this id, even if it is being deleted."""
        return self._names_by_id.get(topic_id)

    def topics(self) -> list[TopicState]:
        """All topics, including those being deleted."""
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
        return topic

    def mark_deleting(self, names: Iterable[str]) -> None:
        for name in names:
            self._topics[name].deleting = True

    def keys(self) -> Iterator[PartitionKey]:
        """Every partition."""
        for topic in self._topics.values():
            for number in range(len(topic.partitions)):
                yield topic.name, number

    def keys_of(self, names: Iterable[str]) -> Iterator[PartitionKey]:
        """Every partition of these topics."""
        for name in names:
            for number in range(len(self._topics[name].partitions)):
                yield name, number

    def keys_on(self, broker_ids: Iterable[int]) -> list[PartitionKey]:
        """The partitions that have a replica on one of these brokers."""
        brokers = set(broker_ids)
        return [
            (topic.name, number)
            for topic in self._topics.values()
            for number, partition in enumerate(topic.partitions)
            if not brokers.isdisjoint(partition.replicas)
        ]

    def partition(self, key: PartitionKey) -> PartitionState | None:
        topic = self._topics.get(key[0])
        if topic is None or not 0 <= key[1] < len(topic.partitions):
            return None
        return topic.partitions[key[1]]

    # -- brokers -----------------------------------------------------------------------------

    def has_replica(self, broker_id: int, key: PartitionKey) -> bool:
        """Whether the broker is live and the replica's log directory has not failed."""
        if broker_id not in self.brokers:
            return False
        return key not in self.offline_replicas.get(broker_id, ())

    def is_live(self, broker_id: int, key: PartitionKey) -> bool:
        """Like ``has_replica``, and the broker is not shutting down, so it may lead."""
        return self.has_replica(broker_id, key) and broker_id not in self.shutting_down

    def remove_broker(self, broker_id: int) -> None:
        """Remove a broker whose registration has ended."""
        self.version += 1
        self.brokers.pop(broker_id, None)
        self.shutting_down.discard(broker_id)
        self.offline_replicas.pop(broker_id, None)

    def add_broker(self, broker_id: int, broker: RegisteredBroker) -> None:
        """Add a broker, or replace its registration."""
        self.version += 1
        self.brokers[broker_id] = broker

    def set_broker(
        self,
        broker_id: int,
        endpoints: list[list[Any]],
        rack: str | None,
        epoch: int = NO_BROKER_EPOCH,
    ) -> None:
        self.add_broker(broker_id, RegisteredBroker(epoch, LiveBroker(endpoints, rack)))
