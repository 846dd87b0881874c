"""What a broker remembers of this consumer's fetches, so that only changes are sent (KIP-227)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.connections.cluster import NO_TOPIC_ID
from kbroker.protocol.messages.fetch import FetchRequest

_INITIAL_EPOCH, _FINAL_EPOCH = 0, -1
_EPOCH_MAX = (1 << 31) - 1


class RequestedPartition(NamedTuple):
    """A partition in a fetch request."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    max_bytes: int


class FetchSession:
    """The session with one broker. A request is the whole of it, or what has changed since the last
    one; every response must be told, by ``accepted`` or ``reset``.
    """

    def __init__(self) -> None:
        self.id = 0
        self.epoch = _INITIAL_EPOCH
        self._known: dict[TopicPartition, RequestedPartition] = {}
        self._names: dict[bytes, str] = {}
        self._by_id = False

    def fields(
        self, wanted: Mapping[TopicPartition, RequestedPartition], by_id: bool
    ) -> dict[str, Any]:
        """The fields of the next request. by_id: it names topics by their ids."""
        if by_id != self._by_id:
            self.reset()
            self._by_id = by_id
        known = self._known if self.epoch else {}
        changed = {key: row for key, row in wanted.items() if known.get(key) != row}
        gone = [
            (key, row)
            for key, row in known.items()
            if key not in wanted or (by_id and wanted[key].topic_id != row.topic_id)
        ]
        self._known = dict(wanted)
        for (topic, _), row in changed.items():
            self._names[row.topic_id] = topic
        return {
            "session_id": self.id,
            "session_epoch": self.epoch,
            "topics": _topics(changed),
            "forgotten_topics_data": _forgotten(gone),
        }

    def name_of(self, topic: Any) -> str | None:
        """The topic that a part of a response is about."""
        return self._names.get(topic.topic_id) if self._by_id else topic.topic

    def accepted(self, session_id: int) -> None:
        """The response had no error. session_id: as in it; 0: the broker keeps no session."""
        if session_id == 0:
            self.reset()
            return
        self.id = session_id
        self.epoch = self.epoch + 1 if 0 <= self.epoch < _EPOCH_MAX else 1

    def reset(self) -> None:
        """The next request is a whole one, for a new session, which ends the one before."""
        self.id = 0
        self.epoch = _INITIAL_EPOCH
        self._known = {}
        self._names = {}

    @property
    def is_open(self) -> bool:
        return self.id != 0

    def final(self) -> dict[str, Any]:
        """The fields of a request that ends the session."""
        return {
            "session_id": self.id,
            "session_epoch": _FINAL_EPOCH,
            "topics": [],
            "forgotten_topics_data": [],
        }


def _topics(rows: Mapping[TopicPartition, RequestedPartition]) -> list[Any]:
    by_topic: dict[tuple[str, bytes], list[Any]] = defaultdict(list)
    for (topic, partition), row in rows.items():
        by_topic[topic, row.topic_id].append(
            FetchRequest.FetchPartition(
                partition=partition,
                current_leader_epoch=row.leader_epoch,
                fetch_offset=row.offset,
                partition_max_bytes=row.max_bytes,
            )
        )
    return [
        FetchRequest.FetchTopic(topic=topic, topic_id=topic_id, partitions=partitions)
        for (topic, topic_id), partitions in by_topic.items()
    ]


def _forgotten(rows: Iterable[tuple[TopicPartition, RequestedPartition]]) -> list[Any]:
    by_topic: dict[tuple[str, bytes], list[int]] = defaultdict(list)
    for (topic, partition), row in rows:
        by_topic[topic, row.topic_id].append(partition)
    return [
        FetchRequest.ForgottenTopic(topic=topic, topic_id=topic_id, partitions=partitions)
        for (topic, topic_id), partitions in by_topic.items()
    ]


def ids_known(rows: Iterable[RequestedPartition]) -> bool:
    """Whether all topics have ids."""
    return all(row.topic_id != NO_TOPIC_ID for row in rows)
