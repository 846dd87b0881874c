"""What a consumer knows of topics and brokers, refreshed beside the thread that polls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.client.connections.cluster import Cluster
from kbroker.client.consumer.lanes import Lane
from kbroker.client.errors import ClientError, RejectedError
from kbroker.client.settings.client_settings import Settings
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.metadata import MetadataRequest

logger = logging.getLogger(__name__)
_TELL_AFTER_S = 5.0
_TELL_AGAIN_S = 30.0


class KnownPartition(NamedTuple):
    """leader: -1 while there is none. leader_epoch: -1 before Kafka 2.1. racks: of the brokers that
    have replicas, so far as they have racks and serve.
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    racks: frozenset[str] = frozenset()


class KnownTopic(NamedTuple):
    """id: all zero before Kafka 2.8."""

    name: str
    id: bytes
    partitions: dict[int, KnownPartition]
    internal: bool


class KnownBroker(NamedTuple):
    host: str
    port: int
    rack: str | None


class _Answer(NamedTuple):
    topics: dict[str, KnownTopic]
    errors: dict[str, int]
    brokers: dict[int, KnownBroker]


class ConsumerMetadata:
    """topics, brokers: from the latest response. errors: why a topic is not among them.

    All of it belongs to the thread that polls. changed: called there after a response. trouble: why
    the last refresh has failed, None once one has not. heard_at: when a broker has last responded.
    """

    def __init__(
        self,
        lane: Lane,
        settings: Settings,
        changed: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._lane = lane
        self._changed = changed
        self._create = settings["allow.auto.create.topics"]
        self._age_s: float = settings["metadata.max.age.ms"] / 1000
        self._request_s: float = settings["request.timeout.ms"] / 1000
        self._backoff_s: float = settings["retry.backoff.ms"] / 1000
        self._backoff_max_s: float = settings["retry.backoff.max.ms"] / 1000
        self.topics: dict[str, KnownTopic] = {}
        self.errors: dict[str, ClientError] = {}
        self.brokers: dict[int, KnownBroker] = {}
        self.trouble: Exception | None = None
        self.heard_at: float | None = None
        self.created_at = self._clock()
        self._tracked: frozenset[str] | None = frozenset()
        self._wanted = True
        self._running = False
        self._failures = 0
        self._next_at = 0.0
        self._told_at = 0.0

    def track(self, names: Iterable[str] | None) -> None:
        """Ask for these topics from now on, and for no others. None: for all."""
        tracked = None if names is None else frozenset(names)
        if tracked is None:
            self._wanted = self._wanted or self._tracked is not None
        elif self._tracked is None or not tracked <= self._tracked or tracked - self.topics.keys():
            self._wanted = True
        self._tracked = tracked

    def want(self) -> None:
        """What is known is wrong or too old."""
        self._wanted = True

    def lead(self, key: tuple[str, int], leader: int, epoch: int) -> None:
        """Another response has told the leader of a partition."""
        topic = self.topics.get(key[0])
        if topic is not None and key[1] in topic.partitions:
            row = topic.partitions[key[1]]
            topic.partitions[key[1]] = row._replace(leader=leader, leader_epoch=epoch)

    def maintain(self, now: float) -> None:
        """Begin a refresh, if one is due."""
        aged = self.heard_at is not None and now - self.heard_at >= self._age_s
        if self._running or now < self._next_at or not (self._wanted or aged):
            return
        self._running, self._wanted = True, False
        names = None if self._tracked is None else sorted(self._tracked)
        failures = self._failures
        self._lane.run(
            lambda cluster, seconds: ask(cluster, names, self._create, seconds, failures),
            "metadata",
            self._request_s,
            self._take,
        )

    def due_in(self, now: float) -> float:
        """Seconds until ``maintain`` has something to do."""
        if self._running:
            return float("inf")
        if self._wanted:
            return max(0.0, self._next_at - now)
        return (
            float("inf") if self.heard_at is None else max(0.0, self.heard_at + self._age_s - now)
        )

    def _take(self, answer: _Answer | None, error: Exception | None) -> None:
        self._running = False
        now = self._clock()
        if answer is None:
            self._failures += 1
            self._next_at = now + self._pause()
            self._wanted = True
            self.trouble = error
            self._tell(now, error)
        else:
            self._failures = 0
            self._next_at = now + self._backoff_s
            self.trouble = None
            self.heard_at = now
            self.brokers = answer.brokers
            self.errors = {
                name: RejectedError(code, f"metadata of topic {name}")
                for name, code in answer.errors.items()
            }
            for name in list(self.topics):
                if name not in answer.topics and name in answer.errors:
                    del self.topics[name]
            self.topics.update(answer.topics)
            if any(error.retriable for error in self.errors.values()):
                self._wanted = True  # such as a topic that is being created
        self._changed()

    def _pause(self) -> float:
        pause = self._backoff_s * 2.0 ** min(self._failures - 1, 30)
        return min(pause, max(self._backoff_max_s, self._backoff_s))

    def _tell(self, now: float, error: Exception | None) -> None:
        silent_s = now - (self.heard_at or self.created_at)
        if silent_s >= _TELL_AFTER_S and now - self._told_at >= _TELL_AGAIN_S:
            self._told_at = now
            logger.warning("no metadata for %.0f s: %s; asking again", silent_s, error)


def ask(
    cluster: Cluster,
    names: list[str] | None,
    create: bool,
    seconds: float | None = None,
    failures: int = 0,
) -> _Answer:
    """Metadata of topics, None: of all. One attempt, which may take longer the more have failed.
    Raises ClientError.
    """
    retry = cluster.retry("metadata", cluster.request_timeout if seconds is None else seconds)
    retry.attempts = failures
    connection = cluster.connection(None, retry)
    rows = [MetadataRequest.MetadataRequestTopic(name=name) for name in names or ()]
    request = MetadataRequest(
        topics=None if names is None else rows, allow_auto_topic_creation=create
    )
    response = connection.call(request, cluster.attempt(retry))
    if response.error_code:
        raise RejectedError(response.error_code, "metadata")
    cluster.adopt_brokers(response.brokers)
    brokers = {row.node_id: KnownBroker(row.host, row.port, row.rack) for row in response.brokers}
    racks = {node: broker.rack for node, broker in brokers.items() if broker.rack}
    topics: dict[str, KnownTopic] = {}
    errors: dict[str, int] = {}
    for row in response.topics:
        if row.error_code and row.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
            errors[row.name] = row.error_code
        else:
            topics[row.name] = _known(row, racks)
    return _Answer(topics, errors, brokers)


def _known(row: Any, racks: Mapping[int, str]) -> KnownTopic:
    partitions = {
        part.partition_index: KnownPartition(
            part.leader_id,
            part.leader_epoch,
            tuple(part.replica_nodes),
            tuple(part.isr_nodes),
            frozenset(racks[node] for node in part.replica_nodes if node in racks),
        )
        for part in row.partitions
    }
    return KnownTopic(row.name, row.topic_id, dict(sorted(partitions.items())), row.is_internal)
