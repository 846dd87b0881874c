"""The cluster image for this broker's processes: metadata, replicas and configs.

Nothing here writes or sends. For io workers, a partition with a replica on this broker is as in the
last LeaderAndIsr, and exists until its log is deleted. All other processes see it as in the last
UpdateMetadata, with its slot. ``snapshot`` and ``delta`` are the JSON form
(docs/architecture/cluster.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
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
from kbroker.hosting.replicas import HostedReplica, HostedReplicas
from kbroker.internal_topics import INTERNAL_TOPICS
from kbroker.ipc.calls import FeaturesDocument, ImageDocument
from kbroker.security.acls import AccessControlEntry, ResourcePattern, to_document
from kbroker.storage.dirs.creation_note import NO_CREATION
from kbroker.types import BrokerId

Document = dict[str, Any]
T = TypeVar("T")
# A partition without metadata, between others that have some.
UNKNOWN = KnownPartition("", -1, -1, NO_LEADER, -1, [], 0, [])


class Changes(NamedTuple):
    """Changes of the image: partitions as io workers see them, partitions as others do, topics with
    other configs, and the rest.

    brokers: those added, removed or changed; empty if only the controller is another one.
    """

    of_io_workers: Collection[PartitionKey] = ()
    of_others: Collection[PartitionKey] = ()
    topics: Collection[str] = ()
    settings: bool = False
    brokers: Collection[int] | None = None
    groups: Collection[str] = ()
    features: bool = False
    quotas: Collection[str] = ()
    acls: Collection[ResourcePattern] = ()
    client_metrics: Collection[str] = ()


def combined(changes: Sequence[Changes]) -> Changes:
    """All of these as one."""
    if len(changes) == 1:
        return changes[0]
    brokers = [one.brokers for one in changes if one.brokers is not None]
    return Changes(
        _union(one.of_io_workers for one in changes),
        _union(one.of_others for one in changes),
        _union(one.topics for one in changes),
        any(one.settings for one in changes),
        _union(brokers) if brokers else None,
        _union(one.groups for one in changes),
        any(one.features for one in changes),
        _union(one.quotas for one in changes),
        _union(one.acls for one in changes),
        _union(one.client_metrics for one in changes),
    )


class TopicView(NamedTuple):
    """A topic as io workers, or as others, see it."""

    topic_id: bytes
    partition_count: int
    known: Mapping[int, KnownPartition] | None
    hosted: Mapping[int, HostedReplica] | None
    creation: bytes = NO_CREATION

    @property
    def shape(self) -> Shape:
        is_known, is_hosted = self.known is not None, self.hosted is not None
        return self.topic_id, self.partition_count, is_known, is_hosted, self.creation


# What of a topic changes for all of its partitions at once.
Shape = tuple[bytes, int, bool, bool, bytes]


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
        self.client_metrics: dict[str, dict[str, str]] = {}  # subscriptions
        # By entity (``metastore.entities``), of those that have some.
        self.quotas: dict[str, dict[str, float]] = {}
        self.features = features
        # By resource. None: the authorizer, if there is one, has no use for them.
        self.acls: dict[ResourcePattern, Collection[AccessControlEntry]] | None = None
        # What every process has of each topic: io workers, and others.
        self._shapes: dict[bool, dict[str, Shape]] = {True: {}, False: {}}

    def changed(self, controller_epoch: int = 0) -> None:
        """Record a change by the controller with this epoch."""
        self.version = max(self.version + 1, controller_epoch << 32)

    # -- documents ---------------------------------------------------------------------------

    def snapshot(self, for_io_worker: bool, *, with_topics: bool = True) -> ImageDocument:
        """The whole image, for a process that gets deltas from now on."""
        if not with_topics:
            return self._snapshot_of({}, for_io_worker)
        names = dict.fromkeys(self.metadata.names())
        if for_io_worker:
            names |= dict.fromkeys(self.replicas.names())
        views = {name: self._view(name, for_io_worker) for name in names}
        topics = {name: self._topic(name, view, for_io_worker) for name, view in views.items()}
        shapes = {name: view.shape for name, view in views.items() if view is not None}
        # Where others have another one, the next delta has the whole topic.
        self._shapes[for_io_worker] = dict(self._shapes[for_io_worker].items() & shapes.items())
        return self._snapshot_of(topics, for_io_worker)

    def _snapshot_of(
        self, topics: dict[str, Document | None], for_io_worker: bool
    ) -> ImageDocument:
        snapshot: ImageDocument = {
            "snapshot": True,
            "version": self.version,
            "cluster_id": self.cluster_id,
            "controller_id": self.metadata.controller_id,
            "brokers": self._brokers(self.metadata.brokers),
            "topics": topics,
            "broker_config": self.broker_config,
            "group_config": self.group_config,
            "features": self._features(),
            "quotas": {} if for_io_worker else self.quotas,
            "client_metrics": {} if for_io_worker else self.client_metrics,
        }
        if self.acls is not None:
            snapshot["acls"] = [to_document(*acls) for acls in self.acls.items()]
        return snapshot

    def delta(self, changes: Changes, for_io_worker: bool) -> ImageDocument | None:
        """The current state of what has changed; None if nothing has for these processes. A deleted
        topic is null, and so is a group or an entity without
        configs.

        Every process must get it that gets deltas: the next one says no more than what is new.
        """
        keys = changes.of_io_workers if for_io_worker else changes.of_others
        numbers: dict[str, list[int] | None] = {}
        for name, number in keys:
            some = numbers.setdefault(name, [])
            assert some is not None
            some.append(number)
        numbers |= dict.fromkeys(changes.topics)
        topics = {name: self._changed(name, some, for_io_worker) for name, some in numbers.items()}
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
        if changes.quotas and not for_io_worker:
            delta["quotas"] = {name: self.quotas.get(name) for name in changes.quotas}
        if changes.client_metrics and not for_io_worker:
            delta["client_metrics"] = {
                name: self.client_metrics.get(name) for name in changes.client_metrics
            }
        if changes.acls:
            acls = self.acls or {}
            delta["acls"] = [to_document(one, acls.get(one, ())) for one in changes.acls]
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

    def _changed(
        self, name: str, numbers: Iterable[int] | None, for_io_worker: bool
    ) -> Document | None:
        """These partitions of a topic; the whole topic if that is necessary, or without numbers."""
        view, shapes = self._view(name, for_io_worker), self._shapes[for_io_worker]
        if view is None:
            shapes.pop(name, None)
        elif numbers is not None and self._is_as_before(view, shapes.get(name), for_io_worker):
            changed = [
                [number, _partition(view, number, for_io_worker)]
                for number in numbers
                if number < view.partition_count
            ]
            return {"id": view.topic_id.hex(), "changed": changed}
        else:
            shapes[name] = view.shape
        return self._topic(name, view, for_io_worker)

    @staticmethod
    def _is_as_before(view: TopicView, before: Shape | None, for_io_worker: bool) -> bool:
        """Whether all that may be new of a topic is in its changed partitions.

        A new topic becomes known a moment after its replicas. If all have one here, io workers are
        not told then: the first change of a leader among thousands would be the whole topic.
        """
        topic_id, count, _, has_replicas, creation = view.shape
        unknown = topic_id, count, False, has_replicas, creation
        return before == view.shape or (for_io_worker and has_replicas and before == unknown)

    def _view(self, name: str, for_io_worker: bool) -> TopicView | None:
        known, hosted = self.metadata.topic(name), self.replicas.topic(name)
        if known is None and (hosted is None or not for_io_worker):
            return None
        # Of two topics with one name, io workers see the one whose logs are on this broker.
        by_id = hosted if for_io_worker and hosted is not None else known
        assert by_id is not None
        is_hosted = hosted is not None and hosted.topic_id == by_id.topic_id
        is_known = known is not None and known.topic_id == by_id.topic_id
        replicas = hosted.replicas if hosted is not None and is_hosted else None
        partitions = known.partitions if known is not None and is_known else None
        count = max(partitions or (), default=-1) + 1
        if for_io_worker:
            count = max(count, max(replicas or (), default=-1) + 1)
        creation = NO_CREATION
        if for_io_worker and hosted is not None:
            creation = hosted.creation
        return TopicView(by_id.topic_id, count, partitions, replicas, creation)

    def _topic(self, name: str, view: TopicView | None, for_io_worker: bool) -> Document | None:
        if view is None:
            return None
        more = {"creation": view.creation.hex()} if view.creation else {}
        return {
            **more,
            "id": view.topic_id.hex(),
            "internal": name in INTERNAL_TOPICS,
            "config": self.topic_config.get(name, {}),
            "partitions": [
                _partition(view, number, for_io_worker) for number in range(view.partition_count)
            ],
        }


def _partition(view: TopicView, number: int, for_io_worker: bool) -> list[Any]:
    """The fields of a ``PartitionImage``, without those at the end that have their default."""
    known = UNKNOWN if view.known is None else view.known.get(number, UNKNOWN)
    replica = None if view.hosted is None else view.hosted.get(number)
    state: KnownPartition | LedPartition = known
    more: list[Any] = []
    if for_io_worker and replica is not None:
        state = replica.told
        if replica.told.is_new:
            more = [True]
    elif known.offline_replicas:
        more = [False, list(known.offline_replicas)]
    return [
        state.leader,
        state.leader_epoch,
        state.isr,
        state.replicas,
        NO_SLOT if replica is None else replica.slot,
        0 if replica is None else replica.slot_incarnation,
        state.partition_epoch,
        *more,
    ]


def _union(some: Iterable[Iterable[T]]) -> dict[T, None]:
    """All of them, in order and without duplicates."""
    return dict.fromkeys(chain.from_iterable(some))


def set_or_forget(configs: dict[str, dict[str, T]], changed: Mapping[str, dict[str, T]]) -> None:
    """Set the configs of a resource, or remove it if there are none."""
    for name, config in changed.items():
        if config:
            configs[name] = config
        else:
            configs.pop(name, None)
