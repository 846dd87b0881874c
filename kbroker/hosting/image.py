"""The cluster image for this broker's processes: metadata, replicas and configs.

Nothing here writes or sends. For io workers, a partition with a replica on this broker is as in the
last LeaderAndIsr, and exists until its log is deleted. All other processes see it as in the last
UpdateMetadata, with its slot. ``snapshot`` and ``delta`` are the JSON form (docs/architecture.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from kbroker.cluster.control_requests import (
    NO_LEADER,
    KnownPartition,
    LedPartition,
    PartitionKey,
)
from kbroker.cluster.features import ALL, Finalized
from kbroker.cluster.image import NO_SLOT
from kbroker.hosting.metadata import Metadata
from kbroker.hosting.replicas import HostedReplicas, Replica
from kbroker.internal_topics import INTERNAL_TOPICS
from kbroker.ipc.calls import FeaturesDocument, ImageDocument
from kbroker.types import BrokerId

Document = dict[str, Any]
T = TypeVar("T")
# A partition without metadata, between others that have some.
UNKNOWN = KnownPartition("", -1, -1, NO_LEADER, -1, [], 0, [])


class Changes(NamedTuple):
    """Changes of the image: topics as io workers see them, topics as others do, and the rest.

    brokers: those added, removed or changed; empty if only the controller is another one.
    """

    of_io_workers: Iterable[str] = ()
    of_others: Iterable[str] = ()
    settings: bool = False
    brokers: Iterable[int] | None = None
    groups: Iterable[str] = ()
    features: bool = False

    def and_then(self, later: Changes) -> Changes:
        """Combine these with later changes."""
        brokers = later.brokers if self.brokers is None else self.brokers
        if self.brokers is not None and later.brokers is not None:
            brokers = _union(self.brokers, later.brokers)
        return Changes(
            _union(self.of_io_workers, later.of_io_workers),
            _union(self.of_others, later.of_others),
            self.settings or later.settings,
            brokers,
            _union(self.groups, later.groups),
            self.features or later.features,
        )


class HostImage:
    """``version`` grows with every change, also across controllers."""

    def __init__(
        self,
        broker_id: BrokerId,
        cluster_id: str,
        replicas: HostedReplicas,
        features: Finalized = ALL,
    ) -> None:
        self.broker_id = broker_id
        self.cluster_id = cluster_id
        self.version = 1
        self.metadata = Metadata()
        self.replicas = replicas
        self.topic_config: dict[str, dict[str, str]] = {}
        self.broker_config: dict[str, dict[str, str]] = {"default": {}}
        self.group_config: dict[str, dict[str, str]] = {}  # of groups that have settings
        self.features = features

    def changed(self, controller_epoch: int = 0) -> None:
        """Record a change by the controller with this epoch."""
        self.version = max(self.version + 1, controller_epoch << 32)

    # -- documents ---------------------------------------------------------------------------

    def snapshot(self, for_io_worker: bool) -> ImageDocument:
        """The whole image."""
        names = dict.fromkeys(self.metadata.names())
        if for_io_worker:
            names |= dict.fromkeys(self.replicas.names())
        return {
            "snapshot": True,
            "version": self.version,
            "cluster_id": self.cluster_id,
            "controller_id": self.metadata.controller_id,
            "brokers": self._brokers(self.metadata.brokers),
            "topics": {name: self._topic(name, for_io_worker) for name in names},
            "broker_config": self.broker_config,
            "group_config": self.group_config,
            "features": self._features(),
        }

    def delta(self, changes: Changes, for_io_worker: bool) -> ImageDocument | None:
        """The current state of what has changed; None if nothing has for these processes. A deleted
        topic is null, and so is a group without configs.
        """
        names = changes.of_io_workers if for_io_worker else changes.of_others
        topics = {name: self._topic(name, for_io_worker) for name in names}
        delta: ImageDocument = {"version": self.version}
        if topics:
            delta["topics"] = topics
        if changes.settings:
            delta["broker_config"] = self.broker_config
        of_groups = {group: self.group_config.get(group) for group in changes.groups}
        if of_groups:
            delta["group_config"] = of_groups
        if changes.features:
            delta["features"] = self._features()
        if changes.brokers is not None:
            delta["controller_id"] = self.metadata.controller_id
            delta["brokers"] = self._brokers(changes.brokers)
        return delta if len(delta) > 1 else None

    def _features(self) -> FeaturesDocument:
        return {"levels": dict(self.features.levels), "epoch": self.features.epoch}

    def _brokers(self, numbers: Iterable[int]) -> dict[str, Document | None]:
        """The changed brokers; one that is no longer live is null."""
        live = self.metadata.brokers
        return {str(n): live[n]._asdict() if n in live else None for n in numbers}

    def _topic(self, name: str, for_io_worker: bool) -> Document | None:
        known, hosted = self.metadata.topic(name), self.replicas.topic(name)
        if known is None and (hosted is None or not for_io_worker):
            return None
        # Of two topics with one name, io workers see the one whose logs are on this broker.
        by_id = hosted if for_io_worker and hosted is not None else known
        assert by_id is not None
        is_hosted = hosted is not None and hosted.topic_id == by_id.topic_id
        is_known = known is not None and known.topic_id == by_id.topic_id
        replicas = hosted.replicas if hosted is not None and is_hosted else {}
        partitions = known.partitions if known is not None and is_known else {}
        numbers = partitions.keys() | (replicas.keys() if for_io_worker else ())
        return {
            "id": by_id.topic_id.hex(),
            "internal": name in INTERNAL_TOPICS,
            "config": self.topic_config.get(name, {}),
            "partitions": [
                _partition(partitions.get(number, UNKNOWN), replicas.get(number), for_io_worker)
                for number in range(max(numbers) + 1)
            ],
        }


def _partition(known: KnownPartition, replica: Replica | None, for_io_worker: bool) -> Document:
    told: KnownPartition | LedPartition = known
    more: Document = {}
    if for_io_worker and replica is not None:
        told = replica.told
        if replica.told.is_new:
            more = {"is_new": True}
    elif known.offline_replicas:
        more = {"offline": list(known.offline_replicas)}
    return {
        "leader": told.leader,
        "leader_epoch": told.leader_epoch,
        "isr": told.isr,
        "replicas": told.replicas,
        "slot": NO_SLOT if replica is None else replica.slot,
        "slot_incarnation": 0 if replica is None else replica.slot_incarnation,
        "partition_epoch": told.partition_epoch,
        **more,
    }


def _union(some: Iterable[T], others: Iterable[T]) -> dict[T, None]:
    """The union of both, in order and without duplicates."""
    return dict.fromkeys(some) | dict.fromkeys(others)


def topics_of(keys: Iterable[PartitionKey]) -> Iterator[str]:
    """The topics of these partitions, without duplicates."""
    yield from dict.fromkeys(topic for topic, _ in keys)


def set_or_forget(
    configs: dict[str, dict[str, str]], changed: Mapping[str, dict[str, str]]
) -> None:
    """Set the configs of a resource, or remove it if there are none."""
    for name, config in changed.items():
        if config:
            configs[name] = config
        else:
            configs.pop(name, None)
