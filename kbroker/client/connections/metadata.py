"""What a client knows of topics and brokers from Metadata responses, and when it may ask again.
Nothing here waits or has a socket: who asks, and in which thread, differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.client.errors import ClientError, RejectedError
from kbroker.errors import ErrorCode


class Partition(NamedTuple):
    """leader: its node id, None while there is none. leader_epoch: -1 before Kafka 2.1. racks: of
    the brokers that have replicas, so far as they have racks and serve.
    """

    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    racks: frozenset[str] = frozenset()


class Topic(NamedTuple):
    """id: 16 bytes, all zero before Kafka 2.8."""

    name: str
    id: bytes
    partitions: dict[int, Partition]
    internal: bool


class BrokerAddress(NamedTuple):
    host: str
    port: int
    rack: str | None


class ClusterMetadata(NamedTuple):
    """One response. errors: the codes of topics that are not among ``topics``."""

    topics: dict[str, Topic]
    errors: dict[str, int]
    brokers: dict[int, BrokerAddress]


def read_metadata(response: Any) -> ClusterMetadata:
    """response: MetadataResponse of any version, without an error of its own."""
    brokers = {row.node_id: BrokerAddress(row.host, row.port, row.rack) for row in response.brokers}
    racks = {node: broker.rack for node, broker in brokers.items() if broker.rack}
    topics: dict[str, Topic] = {}
    errors: dict[str, int] = {}
    for row in response.topics:
        if row.error_code and row.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
            errors[row.name] = row.error_code
        else:
            topics[row.name] = _topic(row, racks)
    return ClusterMetadata(topics, errors, brokers)


def _topic(row: Any, racks: Mapping[int, str]) -> Topic:
    partitions = {
        part.partition_index: Partition(
            part.leader_id if part.leader_id >= 0 else None,
            part.leader_epoch,
            tuple(part.replica_nodes),
            tuple(part.isr_nodes),
            _racks_of(part.replica_nodes, racks),
        )
        for part in row.partitions
    }
    return Topic(row.name, row.topic_id, dict(sorted(partitions.items())), row.is_internal)


_NO_RACKS: frozenset[str] = frozenset()


def _racks_of(nodes: Iterable[int], racks: Mapping[int, str]) -> frozenset[str]:
    """One object for all partitions without racks: an empty set takes 216 bytes."""
    return frozenset(racks[node] for node in nodes if node in racks) if racks else _NO_RACKS


# Until the epochs of leaders that are older than known ones are believed: the topic has been
# recreated, by brokers that give it no id. And until an id that another one has replaced is: a
# broker that was behind has told that one, after others had told of the topic that is there now.
_OLD_EPOCHS_S = 10.0
NO_TOPIC_ID = bytes(16)


class _Incarnation:
    """The topic that has a name now. number: it rises with each. epochs: the newest, of the leaders
    of its partitions. former: ids of topics that had the name before. old_since: since when brokers
    tell older epochs.
    """

    def __init__(self, topic: Topic) -> None:
        self.number = 0
        self.id = topic.id
        self.former: set[bytes] = set()
        self.epochs: dict[int, int] = {}
        self.old_since: float | None = None
        self.note(topic)

    def note(self, topic: Topic) -> None:
        self.id = topic.id
        self.former.discard(topic.id)
        for partition, row in topic.partitions.items():
            self.epochs[partition] = max(row.leader_epoch, self.epochs.get(partition, -1))

    def is_older(self, topic: Topic) -> bool:
        """Whether some leader is of an earlier epoch than is known."""
        return any(
            0 <= row.leader_epoch < self.epochs.get(partition, -1)
            for partition, row in topic.partitions.items()
        )

    def is_old_for_long(self, now: float) -> bool:
        """Whether brokers have told nothing but what is older for long enough."""
        if self.old_since is None:
            self.old_since = now
        return now - self.old_since >= _OLD_EPOCHS_S

    def replace(self, topic: Topic) -> None:
        """Another topic has the name."""
        self.number += 1
        if self.id != NO_TOPIC_ID:
            self.former.add(self.id)
        self.epochs.clear()
        self.old_since = None
        self.note(topic)


class MetadataView:
    """What a producer or a consumer knows, of the topics that it has asked for.

    topics, brokers: from the latest responses. errors: why a topic is not among them. trouble: why
    the last request has failed, None once one has not. heard_at: when a broker has last responded.
    next_at: before it, no other request is sent. All in seconds of ``clock``.

    subscribers: called after each request, in the order of their subscription, with the response,
    None if there was none; by the thread that calls ``take`` and ``fail``, which alone changes what
    is here.
    """

    def __init__(
        self, clock: Callable[[], float], *, backoff_s: float, backoff_max_s: float
    ) -> None:
        self._clock = clock
        self._backoff_s = backoff_s
        self._backoff_max_s = backoff_max_s
        self._subscribers: list[Callable[[ClusterMetadata | None], None]] = []
        self.topics: dict[str, Topic] = {}
        self._incarnations: dict[str, _Incarnation] = {}
        self.errors: dict[str, ClientError] = {}
        self.brokers: dict[int, BrokerAddress] = {}
        self.trouble: Exception | None = None
        self.heard_at: float | None = None
        self.failures = 0
        self.next_at = 0.0

    def subscribe(self, subscriber: Callable[[ClusterMetadata | None], None]) -> None:
        self._subscribers.append(subscriber)

    def take(self, response: ClusterMetadata) -> None:
        """A topic stays known when its error is one that passes, or when it was not asked for."""
        self.failures = 0
        self._pause()
        self.trouble = None
        self.heard_at = self._clock()
        response = response._replace(
            topics={name: row for name, row in response.topics.items() if self._is_present(row)}
        )
        self.brokers = response.brokers
        self.errors = {
            name: RejectedError(code, f"metadata of topic {name}")
            for name, code in response.errors.items()
        }
        for name in response.errors:
            self.topics.pop(name, None)
        self.topics.update(response.topics)
        self._tell(response)

    def incarnation(self, name: str) -> int:
        """A number that rises when the topic of that name is another one than before, whose leaders
        have epochs of their own.
        """
        known = self._incarnations.get(name)
        return 0 if known is None else known.number

    def _is_present(self, topic: Topic) -> bool:
        """Whether a response speaks of the topic that has the name now, as far as is known; False:
        the broker is behind.
        """
        known = self._incarnations.get(topic.name)
        if known is None:
            self._incarnations[topic.name] = _Incarnation(topic)
            return True
        if topic.id in known.former and not known.is_old_for_long(self._clock()):
            return False
        has_ids = NO_TOPIC_ID not in (topic.id, known.id)
        if has_ids and topic.id != known.id:
            known.replace(topic)
        elif has_ids or not known.is_older(topic):
            known.old_since = None
            known.note(topic)
        elif known.is_old_for_long(self._clock()):
            known.replace(topic)
        return True

    def fail(self, error: Exception | None) -> None:
        """The pauses before the next request double, up to the longest."""
        self.failures += 1
        self._pause()
        self.trouble = error
        self._tell(None)

    def lead(self, key: tuple[str, int], leader: int, epoch: int) -> None:
        """Another response has told the leader of a partition."""
        topic = self.topics.get(key[0])
        if topic is not None and key[1] in topic.partitions:
            row = topic.partitions[key[1]]
            topic.partitions[key[1]] = row._replace(leader=leader, leader_epoch=epoch)
            self._incarnations[key[0]].note(topic)

    def _pause(self) -> None:
        pause_s = self._backoff_s * 2.0 ** min(max(self.failures - 1, 0), 30)
        self.next_at = self._clock() + min(pause_s, self._backoff_max_s)

    def _tell(self, response: ClusterMetadata | None) -> None:
        for subscriber in self._subscribers:
            subscriber(response)
