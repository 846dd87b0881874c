"""What passes through topics and partitions, and where their logs begin and end.

All from shared memory, by the slots that the cluster image names. A partition is told of by the
broker that leads it, its log by each broker that has one.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import add
from typing import NamedTuple

from kbroker._ext.shared.log_figures import LogFigures
from kbroker._ext.shared.partition_table import LEADER, ONLINE, PartitionTable
from kbroker.cluster.image import NO_SLOT, ClusterImage, PartitionImage
from kbroker.exposition.mbeans import (
    GAUGE,
    METER,
    Bean,
    MadeByName,
    Sample,
    Samples,
    Tags,
    label,
)
from kbroker.replication.following import fetcher_number
from kbroker.replication.partition import least_in_sync

# Of ``LogFigures.get``.
MESSAGES_IN, BYTES_IN, PRODUCES, FAILED_PRODUCES, BYTES_REJECTED = range(5)
SEGMENTS, SEALED_BYTES, BYTES_OUT, FOLLOWER_BYTES, FETCHES, FAILED_FETCHES = range(5, 11)

Row = tuple[int, ...]
# The log directory, and the high watermark: offset, base offset of its segment, position.
Place = tuple[str, int, int, int]
NOTHING: Row = (0,) * (FAILED_FETCHES + 1)


class LocalReplica(Tags):
    """A replica on this broker: what of it does not change from scrape to scrape. It is its own
    tags: objects for them would take as much memory as the image.
    """

    __slots__ = ("image", "number", "topic")

    def __init__(self, topic: str, number: int, image: PartitionImage) -> None:
        self.topic = topic
        self.number = number
        self.image = image

    def __getattr__(self, name: str) -> str:
        """The text, when it is first wanted: by a scrape, not by the console."""
        if name != "text":
            raise AttributeError(name)
        self.text = f'{label("topic", self.topic)},partition="{self.number}"'
        return self.text

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        return ("topic", self.topic), ("partition", str(self.number))


class TopicTags(Tags):
    __slots__ = ("topic",)

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.text = label("topic", topic)

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        return (("topic", self.topic),)


class Seen(NamedTuple):
    """What the partition table and the figures say of a replica."""

    replica: LocalReplica
    leads: bool
    start: int
    end: int
    high_watermark: int
    last_stable: int
    size: int
    segments: int
    figures: Row


class ReadableEnds(NamedTuple):
    """high_watermarks: by topic, int64 of each partition, -1 of those that have no replica here.
    led: the topics whose partitions are all led here; of others, a follower here may be behind.
    """

    high_watermarks: dict[str, bytes]
    led: frozenset[str]


def _topic_bean(name: str, help: str) -> Bean:
    return Bean("kafka.server", "BrokerTopicMetrics", name, METER, help)


TOPIC_BEANS: tuple[tuple[Bean, int], ...] = (
    (_topic_bean("MessagesInPerSec", "Records appended."), MESSAGES_IN),
    (_topic_bean("BytesInPerSec", "Bytes of record batches appended."), BYTES_IN),
    (_topic_bean("BytesOutPerSec", "Bytes of records sent to consumers."), BYTES_OUT),
    (_topic_bean("BytesRejectedPerSec", "Bytes of batches that were too large."), BYTES_REJECTED),
    (_topic_bean("ReplicationBytesOutPerSec", "Bytes sent to followers."), FOLLOWER_BYTES),
    (
        _topic_bean("TotalProduceRequestsPerSec", "Batches to append, of clients or coordinators."),
        PRODUCES,
    ),
    (_topic_bean("TotalFetchRequestsPerSec", "Partitions read for Fetch requests."), FETCHES),
    (
        _topic_bean("FailedProduceRequestsPerSec", "Partitions of Produce requests that failed."),
        FAILED_PRODUCES,
    ),
    (
        _topic_bean("FailedFetchRequestsPerSec", "Partitions of Fetch requests that failed."),
        FAILED_FETCHES,
    ),
)


def _log_bean(name: str, help: str) -> Bean:
    return Bean("kafka.log", "Log", name, GAUGE, help)


def _partition_bean(name: str, help: str) -> Bean:
    return Bean("kafka.cluster", "Partition", name, GAUGE, help)


LOG_BEANS: tuple[tuple[Bean, Callable[[Seen], int]], ...] = (
    (_log_bean("Size", "Bytes of a log."), lambda seen: seen.size),
    (_log_bean("NumLogSegments", "Segments of a log."), lambda seen: seen.segments),
    (_log_bean("LogStartOffset", "First offset of a log."), lambda seen: seen.start),
    (_log_bean("LogEndOffset", "Next offset of a log."), lambda seen: seen.end),
)
REPLICAS = _partition_bean("ReplicasCount", "Assigned replicas of a partition that is led here.")
IN_SYNC = _partition_bean("InSyncReplicasCount", "In-sync replicas of a partition led here.")
UNDER_REPLICATED = _partition_bean("UnderReplicated", "1 if a replica is not in sync.")
UNDER_MIN_ISR = _partition_bean("UnderMinIsr", "1 if fewer than min.insync.replicas are in sync.")
AT_MIN_ISR = _partition_bean("AtMinIsr", "1 if exactly min.insync.replicas are in sync.")
LAST_STABLE_LAG = _partition_bean(
    "LastStableOffsetLag", "Records between the last stable offset and the high watermark."
)


LAG = Bean(
    "kafka.server",
    "FetcherLagMetrics",
    "ConsumerLag",
    GAUGE,
    "Committed records that a replica here, which is being copied from its leader, lacks.",
)


class PartitionFigures:
    """Reads the partition table. min_in_sync: min.insync.replicas of a topic, by its configs.
    fetchers: num.replica.fetchers.
    """

    def __init__(
        self,
        image: ClusterImage,
        table: PartitionTable,
        figures: LogFigures,
        min_in_sync: Callable[[dict[str, str]], int],
        log_dirs: Sequence[str],
        fetchers: Callable[[], int] = lambda: 1,
    ) -> None:
        self._fetchers = fetchers
        self._log_dirs = log_dirs
        self._image = image
        self._table = table
        self._figures = figures
        self._min_in_sync = min_in_sync
        self._replicas: list[LocalReplica] | None = None
        self._topic_tags = MadeByName(TopicTags)

    def forget(self) -> None:
        """The image has changed."""
        self._replicas = None

    def replicas(self) -> list[LocalReplica]:
        """All replicas of this broker."""
        if self._replicas is None:
            self._topic_tags.clear()
            self._replicas = [
                LocalReplica(name, number, partition)
                for name, topic in sorted(self._image.topics.items())
                for number, partition in enumerate(topic.partitions)
                if partition.slot != NO_SLOT
            ]
        return self._replicas

    def place_of(self, topic: str, number: int) -> Place | None:
        """Where the log of a partition is on this broker, and up to where it may be read."""
        image = self._image.topics.get(topic)
        if image is None or number >= len(image.partitions):
            return None
        partition = image.partitions[number]
        slot = None if partition.slot == NO_SLOT else self._table.read(partition.slot)
        if (
            slot is None
            or slot["state"] != ONLINE
            or slot["slot_incarnation"] != partition.slot_incarnation
        ):
            return None
        return (self._log_dirs[slot["log_dir_index"]], *slot["high_watermark"])

    def look(self) -> Iterator[Seen]:
        """What can be told of each replica now; those that are not online are left out."""
        read, get = self._table.read, self._figures.get
        for replica in self.replicas():
            image = replica.image
            slot = read(image.slot)
            if (
                slot is None
                or slot["state"] != ONLINE
                or slot["slot_incarnation"] != image.slot_incarnation
            ):
                continue
            row = get(image.slot, image.slot_incarnation)
            end, _, position = slot["log_end"]
            yield Seen(
                replica,
                slot["role"] == LEADER,
                slot["log_start_offset"],
                end,
                slot["high_watermark"][0],
                slot["last_stable"][0],
                row[SEALED_BYTES] + position,
                row[SEGMENTS],
                row,
            )

    def ends(self) -> ReadableEnds:
        """Of all topics that have a replica here: less to look for than ``look``, which pages of
        the console cannot wait for.
        """
        end_of = self._table.readable_end
        by_topic: dict[str, list[int]] = {}
        led: dict[str, int] = {}
        for replica in self.replicas():
            image, topic, number = replica.image, replica.topic, replica.number
            state = end_of(image.slot, image.slot_incarnation)
            if state is None:
                continue
            end, leads = state
            ends = by_topic.setdefault(topic, [])
            if number > len(ends):
                ends.extend([-1] * (number - len(ends)))
            ends.append(end)
            if leads:
                led[topic] = led.get(topic, 0) + 1
        topics = self._image.topics
        return ReadableEnds(
            {topic: array("q", ends).tobytes() for topic, ends in by_topic.items()},
            frozenset(
                topic for topic, count in led.items() if count == len(topics[topic].partitions)
            ),
        )

    def topic_samples(self, seen: Iterable[Seen]) -> Iterator[Samples]:
        """What passes through each topic."""
        sums: dict[str, Sequence[int]] = {}
        for one in seen:
            name = one.replica.topic
            known = sums.get(name)
            sums[name] = one.figures if known is None else list(map(add, known, one.figures))
        tags = self._topic_tags
        for bean, at in TOPIC_BEANS:
            yield bean, ((tags[name], row[at]) for name, row in sums.items())

    def _led_rows(self, seen: list[Seen]) -> list[tuple[Tags, PartitionImage, int]]:
        """The partitions that are led here, and how many replicas of each have to be in sync."""
        topics = self._image.topics
        wanted = {
            name: self._min_in_sync(topics[name].config) if name in topics else 1
            for name in {one.replica.topic for one in seen}
        }
        return [
            (
                one.replica,
                one.replica.image,
                least_in_sync(wanted[one.replica.topic], len(one.replica.image.replicas)),
            )
            for one in seen
            if one.leads
        ]

    def at_min_isr(self, seen: list[Seen]) -> int:
        """How many partitions are led here with exactly as many in sync as they need."""
        rows = self._led_rows(seen)
        return sum(len(image.isr) == least for _, image, least in rows)

    def partition_samples(self, seen: list[Seen]) -> Iterator[Samples]:
        """Logs, and the partitions that are led here."""
        for bean, value in LOG_BEANS:
            yield bean, ((one.replica, value(one)) for one in seen)
        led = [one for one in seen if one.leads]
        rows = self._led_rows(seen)
        yield REPLICAS, ((tags, len(image.replicas)) for tags, image, _ in rows)
        yield IN_SYNC, ((tags, len(image.isr)) for tags, image, _ in rows)
        yield (
            UNDER_REPLICATED,
            ((tags, int(len(image.isr) < len(image.replicas))) for tags, image, _ in rows),
        )
        yield UNDER_MIN_ISR, ((tags, int(len(image.isr) < some)) for tags, image, some in rows)
        yield AT_MIN_ISR, ((tags, int(len(image.isr) == some)) for tags, image, some in rows)
        yield (
            LAST_STABLE_LAG,
            ((one.replica, one.high_watermark - one.last_stable) for one in led),
        )
        yield LAG, self._lags(seen)

    def _lags(self, seen: list[Seen]) -> Iterator[Sample]:
        """COMPAT: the thread that fetches in Kafka is here the number of a link and its leader."""
        fetchers = self._fetchers()
        for one in seen:
            replica, image = one.replica, one.replica.image
            lag = -1 if one.leads else self._figures.lag(image.slot, image.slot_incarnation)
            if lag < 0:
                continue
            number = fetcher_number(replica.topic, replica.number, fetchers)
            client = "clientId", f"ReplicaFetcherThread-{number}-{image.leader}"
            text = f"{label(*client)},{replica.text}"
            yield Tags.of_labels((client, *replica.pairs), text), lag
