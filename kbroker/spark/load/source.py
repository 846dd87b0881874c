"""Topics of a cluster as the source of a load."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbroker.client.batches.offsets import (
    EARLIEST,
    LATEST,
    NO_OFFSET,
    commit,
    list_offsets,
    log_dir_sizes,
)
from kbroker.client.connections.cluster import NO_TOPIC_ID, Topic
from kbroker.client.errors import RejectedError
from kbroker.spark.load.commits import Ends, LoadError, TopicPartition
from kbroker.spark.load.positions import PositionBounds
from kbroker.spark.options.kafka_settings import fetch_bytes_max
from kbroker.spark.plan import FETCH_BYTES_MAX, OffsetRange
from kbroker.spark.pool import borrowed
from kbroker.uuids import parse_uuid, uuid_text

if TYPE_CHECKING:
    import pyarrow as pa


def id_text(topic: Topic) -> str:
    """A topic id in Kafka's format; empty if brokers have none."""
    if topic.id == NO_TOPIC_ID:
        return ""
    return uuid_text(topic.id)


# Topics of tools contain no user data; MirrorMaker skips these names, too.
_OF_TOOLS = "__"
# The size of a batch: a writer's steps are cheaper per row in large batches, while they fit the
# core's cache.
_BATCH_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class BrokerSource:
    """Sent to the executors with its configs; each process connects on its own.

    settings: of the client, with Kafka's names (``security.protocol``, ...). topics: names;
    pattern: a regular expression that a whole name must match. Topics that a cluster keeps for
    itself never match; those of tools, whose names begin with ``__``, match what begins so.
    read_committed: leave out what transactions have aborted, and what is not decided yet.
    milliseconds: timestamps as the records have them, not limited to microseconds in 64 bits.
    """

    bootstrap: str
    settings: dict[str, str]
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    headers: bool = True
    read_committed: bool = True
    milliseconds: bool = False

    def bounds(self) -> dict[TopicPartition, PositionBounds]:
        """Raises LoadError when a topic named does not exist."""
        with borrowed(self.bootstrap, self.settings) as cluster:
            if self.pattern is None:
                topics = cluster.topics(self.topics)
                missing = sorted(set(self.topics) - set(topics))
                if missing:
                    raise LoadError(f"there is no topic {', '.join(missing)} at {self.bootstrap}")
            else:
                expression = re.compile(self.pattern)
                topics = {
                    name: topic
                    for name, topic in cluster.topics().items()
                    if not topic.internal
                    and (self.pattern.startswith(_OF_TOOLS) or not name.startswith(_OF_TOOLS))
                    and expression.fullmatch(name)
                }
            places = [(name, one) for name, topic in topics.items() for one in topic.partitions]
            starts = list_offsets(cluster, dict.fromkeys(places, EARLIEST))
            ends = list_offsets(
                cluster, dict.fromkeys(places, LATEST), read_committed=self.read_committed
            )
            try:
                sizes = log_dir_sizes(cluster, list(topics))
            except RejectedError:
                sizes = {}  # without the right to ask, tasks are planned by guesses
        return {
            one: PositionBounds(
                starts[one].offset,
                max(starts[one].offset, ends[one].offset),
                sizes.get(one, 0),
                id_text(topics[one[0]]),
            )
            for one in places
        }

    def offsets_at(
        self, partitions: Sequence[TopicPartition], time_ms: int
    ) -> dict[TopicPartition, int]:
        """The first offset at or after a time; the log end offset if there is none."""
        with borrowed(self.bootstrap, self.settings) as cluster:
            offsets = list_offsets(cluster, dict.fromkeys(partitions, time_ms))
            late = [one for one, offset in offsets.items() if offset.offset == NO_OFFSET]
            ends = list_offsets(
                cluster, dict.fromkeys(late, LATEST), read_committed=self.read_committed
            )
        return {one: (ends.get(one) or offset).offset for one, offset in offsets.items()}

    def read(self, one: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The records of a range, in order; called in a task."""
        from kbroker.client.batches.arrow import read_arrow

        with borrowed(self.bootstrap, self.settings) as cluster:
            yield from read_arrow(
                cluster,
                one.topic,
                one.partition,
                one.start,
                one.end,
                headers=self.headers,
                read_committed=self.read_committed,
                milliseconds=self.milliseconds,
                bytes_max=_BATCH_BYTES,
                max_bytes=fetch_bytes_max(self.settings, FETCH_BYTES_MAX),
                topic_id=parse_uuid(one.topic_id) if one.topic_id else None,
            )

    def commit_group(self, group: str, ends: Ends) -> None:
        """Store ``ends`` as the group's offsets."""
        offsets = {
            (topic, partition): (offset, "")
            for topic, of_topic in ends.items()
            for partition, offset in of_topic.items()
        }
        with borrowed(self.bootstrap, self.settings) as cluster:
            commit(cluster, group, offsets)
