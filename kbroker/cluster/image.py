"""The cluster image: brokers, topics and dynamic settings as one process sees them.

The controller publishes it as JSON (docs/architecture/cluster.md); every process keeps its own
copy. Topic and partition objects are never changed in place: a delta replaces them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kbroker.cluster.changes import ImageChanges, TopicChange
from kbroker.cluster.features import ALL, Finalized
from kbroker.ipc.calls import ImageDocument
from kbroker.ipc.documents import DocumentError
from kbroker.types import BrokerId, SlotId

NO_SLOT = SlotId(-1)
MISSING = "missing brokers"  # in ``ClusterImage.derived``
# Of the many topics without settings of their own.
NO_CONFIG: dict[str, str] = {}
Lists = dict[tuple[BrokerId, ...], list[BrokerId]]
# BOUND: topics whose deletion time is remembered.
GONE_MAX = 1000


class AdvertisedEndpoint(NamedTuple):
    """An advertised address. Empty ``host``: a client gets the address that it connected to."""

    listener: str
    host: str
    port: int
    security_protocol: str


class BrokerImage(NamedTuple):
    broker_id: BrokerId
    endpoints: tuple[AdvertisedEndpoint, ...]
    rack: str | None


class DepartedBroker(NamedTuple):
    """A broker that is no longer registered, as it last was. since_ms: of the wall clock."""

    broker: BrokerImage
    since_ms: int


class PartitionImage(NamedTuple):
    """In JSON, an array of its fields in this order."""

    leader: BrokerId
    leader_epoch: int
    isr: list[BrokerId]
    replicas: list[BrokerId]
    slot: SlotId  # partition-table slot of this broker's replica, NO_SLOT if there is none
    slot_incarnation: int  # distinguishes the slot's current replica from earlier ones
    partition_epoch: int = 0  # version of leader, leader epoch and isr: of their node in the store
    is_new: bool = False  # for io workers: the controller has created it, so it has no log anywhere
    offline: Sequence[BrokerId] = ()  # the offline replicas that the controller knows


class TopicImage(NamedTuple):
    name: str
    topic_id: bytes  # 16 bytes
    internal: bool
    partitions: tuple[PartitionImage, ...]
    config: dict[str, str]
    creation: bytes = b""  # for io workers, of a topic with replicas here, where topics have no ids


class ClusterImage:
    """A process's copy. ``apply`` is the only way it changes."""

    def __init__(self) -> None:
        self.version = 0
        self.cluster_id = ""
        self.controller_id = -1
        self.brokers: dict[BrokerId, BrokerImage] = {}
        # Those that this process has seen leave. BOUND: by the brokers that there have been.
        self.departed: dict[BrokerId, DepartedBroker] = {}
        self.topics: dict[str, TopicImage] = {}
        self.topics_by_id: dict[bytes, TopicImage] = {}
        self.broker_config: dict[str, dict[str, str]] = {}  # "default" or a broker id
        self.group_config: dict[str, dict[str, str]] = {}  # of groups that have settings
        self.quotas: dict[str, dict[str, float]] = {}  # by entity (``metastore.entities``)
        self.client_metrics: dict[str, dict[str, str]] = {}  # subscriptions, by name
        self.features = ALL
        # Values that readers have computed from the image, cached until it changes. BOUND: each
        # reader limits its own entries.
        self.derived: dict[Any, Any] = {}
        # The deletion times of topics, on the monotonic clock: the last GONE_MAX of them.
        self._gone_s: dict[str, float] = {}

    def apply(self, delta: ImageDocument) -> ImageChanges:
        """Apply a snapshot or a delta; returns the changes.

        A snapshot also removes what it does not name.
        """
        topics: dict[str, TopicChange] = {}
        documents = delta.get("topics", {})
        shared: Lists = {}
        images = {
            name: None if document is None else self._topic_image(name, document, shared)
            for name, document in documents.items()
        }
        self.derived = {}  # not cleared: a response for the old image may be in progress
        before = dict(self.brokers) if "brokers" in delta else {}
        if delta.get("snapshot"):
            self.brokers.clear()
            self.broker_config.clear()
            self.group_config.clear()
            self.quotas.clear()
            self.client_metrics.clear()
            for name in self.topics.keys() - delta["topics"].keys():
                gone = self.topics.pop(name)
                del self.topics_by_id[gone.topic_id]
                topics[name] = TopicChange(gone, None)
        self.version = delta["version"]
        self.cluster_id = delta.get("cluster_id", self.cluster_id)
        self.controller_id = delta.get("controller_id", self.controller_id)
        for key, broker in delta.get("brokers", {}).items():
            broker_id = BrokerId(int(key))
            if broker is None:
                self.brokers.pop(broker_id, None)
            else:
                endpoints = tuple(AdvertisedEndpoint(*endpoint) for endpoint in broker["endpoints"])
                self.brokers[broker_id] = BrokerImage(broker_id, endpoints, broker["rack"])
        self._note_departed(before)
        if "features" in delta:
            self.features = Finalized(delta["features"]["levels"], delta["features"]["epoch"])
        self.broker_config.update(delta.get("broker_config", {}))
        for group, config in delta.get("group_config", {}).items():
            if config is None:
                self.group_config.pop(group, None)
            else:
                self.group_config[group] = config
        for entity, quotas in delta.get("quotas", {}).items():
            if quotas is None:
                self.quotas.pop(entity, None)
            else:
                self.quotas[entity] = quotas
        for name, config in delta.get("client_metrics", {}).items():
            if config is None:
                self.client_metrics.pop(name, None)
            else:
                self.client_metrics[name] = config
        for name, new in images.items():
            old = self.topics.pop(name, None)
            if old is not None:
                self.topics_by_id.pop(old.topic_id, None)
            if new is not None:
                self.topics[name] = new
                self.topics_by_id[new.topic_id] = new
            topics[name] = TopicChange(old, new, changed_numbers(documents[name]))
        self._note_gone(name for name, one in topics.items() if one.old and not one.new)
        return ImageChanges(topics, "broker_config" in delta, "quotas" in delta)

    def _topic_image(self, name: str, document: dict[str, Any], shared: Lists) -> TopicImage:
        if "changed" not in document:
            return topic_image(name, document, shared)
        known = self.topics.get(name)
        if known is None or known.topic_id.hex() != document["id"]:
            raise DocumentError(f"topic {name} of the image: changes of an unknown topic")
        partitions = list(known.partitions)
        try:
            for number, fields in document["changed"]:
                partitions[number] = _partition_image(fields, shared)
        except (IndexError, TypeError, ValueError) as error:
            raise DocumentError(f"topic {name} of the image: {error!r}") from error
        return known._replace(partitions=tuple(partitions))

    def offline_replicas(self, partition: PartitionImage) -> list[BrokerId]:
        """The replicas of brokers that are not live, and in log directories that have failed."""
        offline, live = partition.offline, self.brokers
        return [b for b in partition.replicas if b not in live or b in offline]

    def _note_departed(self, before: dict[BrokerId, BrokerImage]) -> None:
        for broker_id in self.brokers:
            self.departed.pop(broker_id, None)
        now_ms = int(time.time() * 1000)
        for broker_id in before.keys() - self.brokers.keys():
            self.departed[broker_id] = DepartedBroker(before[broker_id], now_ms)

    def missing(self) -> list[BrokerId]:
        """The brokers that have replicas but are not registered, in order."""
        if MISSING not in self.derived:
            assigned = {
                broker_id
                for topic in self.topics.values()
                for partition in topic.partitions
                for broker_id in partition.replicas
            }
            self.derived[MISSING] = sorted(assigned - self.brokers.keys())
        brokers: list[BrokerId] = self.derived[MISSING]
        return brokers

    def _note_gone(self, names: Iterable[str]) -> None:
        for name in names:
            self._gone_s.pop(name, None)
            if len(self._gone_s) >= GONE_MAX:
                del self._gone_s[next(iter(self._gone_s))]
            self._gone_s[name] = time.monotonic()

    def went_away(self, name: str, within_s: float) -> bool:
        """Whether a topic of that name was deleted so recently."""
        gone_s = self._gone_s.get(name)
        return gone_s is not None and time.monotonic() - gone_s < within_s


def topic_image(name: str, document: dict[str, Any], shared: Lists) -> TopicImage:
    """A topic from its JSON form. shared: equal lists of brokers become one, as thousands of
    partitions have the same replicas. Raises DocumentError.
    """
    try:
        partitions = tuple(_partition_image(fields, shared) for fields in document["partitions"])
        return TopicImage(
            name,
            bytes.fromhex(document["id"]),
            document["internal"],
            partitions,
            document["config"] or NO_CONFIG,
            bytes.fromhex(document.get("creation", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DocumentError(f"topic {name} of the image: {error!r}") from error


def _partition_image(fields: list[Any], shared: Lists) -> PartitionImage:
    leader, leader_epoch, isr, replicas, *more = fields
    isr = shared.setdefault(tuple(isr), isr)
    replicas = shared.setdefault(tuple(replicas), replicas)
    return PartitionImage(leader, leader_epoch, isr, replicas, *more)


def changed_numbers(document: dict[str, Any] | None) -> list[int] | None:
    """The partitions that a topic's JSON has; None if it has all of them."""
    if document is None or "changed" not in document:
        return None
    return [number for number, _ in document["changed"]]
