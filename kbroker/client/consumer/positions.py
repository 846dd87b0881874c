"""Where reading begins: committed offsets, resets, and whether a position is still in the log."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.client.batches.offsets import (
    EARLIEST,
    LATEST,
    NO_OFFSET,
    Committed,
    ListedOffsets,
    offsets_of_leader,
)
from kbroker.client.batches.offsets import TopicPartition as Key
from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.retry import Backoff
from kbroker.client.consumer.consumer_metadata import ConsumerMetadata
from kbroker.client.consumer.consumer_settings import BY_DURATION, NONE, duration_ms
from kbroker.client.consumer.consumer_settings import EARLIEST as RESET_EARLIEST
from kbroker.client.consumer.fetcher import Fetcher
from kbroker.client.consumer.lanes import NodeLanes
from kbroker.client.consumer.partitions import NO_NODE, ReadPartition
from kbroker.client.consumer.surroundings import Clock
from kbroker.client.errors import (
    ClientError,
    LogTruncated,
    NoOffsetForPartition,
    OffsetOutOfRange,
    RejectedError,
    TopicReplaced,
    UnsupportedByBroker,
)
from kbroker.client.settings.client_settings import ClientSettings
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest

logger = logging.getLogger(__name__)

# From this version on OffsetForLeaderEpoch is for consumers, too (KIP-320).
_FIRST_OF_CONSUMERS = 3
# Until metadata of a leader that is as new as a record's epoch is taken for impossible: the topic
# has been recreated.
_OLD_LEADER_S = 10.0
# What is looked up: where an epoch ended, in which epoch the leader is.
Epochs = tuple[int, int]


class Positions:
    """Looks up what ``fetcher.parts`` lack. In the thread that polls.

    committed: begins to look up the committed offsets of partitions, for a consumer with a group.
    INVARIANT: each answer carries the version of the position that it was asked for, and is dropped
    if that has changed since.
    """

    def __init__(
        self,
        settings: ClientSettings,
        lanes: NodeLanes,
        metadata: ConsumerMetadata,
        fetcher: Fetcher,
        committed: Callable[[Iterable[Key], Callable[[Any, Exception | None], None]], None] | None,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._lanes = lanes
        self._metadata = metadata
        self._fetcher = fetcher
        self._committed = committed
        self._policy: str = settings["auto.offset.reset"]
        self._read_committed = settings["isolation.level"] == "read_committed"
        self._backoff = Backoff.of(settings, "retry.backoff")
        self._request_s: float = settings["request.timeout.ms"] / 1000
        self._next_at = 0.0
        self._old_since: dict[ReadPartition, float] = {}  # leaders older than the position

    def look(self) -> None:
        """Some partition may lack its position, or an answer about it."""
        self._next_at = 0.0

    def update(self, now: float) -> None:
        """Begin to look up what is missing."""
        if now < self._next_at:
            return
        self._next_at = float("inf")
        without: list[ReadPartition] = []
        resets: list[ReadPartition] = []
        doubtful: list[ReadPartition] = []
        for part in self._fetcher.parts.values():
            if not part.is_to_be_placed:
                continue
            if now < part.ask_at:
                self._next_at = min(self._next_at, part.ask_at)
            elif part.position is not None:
                if self._is_to_compare(part, now):
                    doubtful.append(part)
            elif part.reset is None and self._committed is not None:
                without.append(part)
            elif self._is_to_reset(part, now):
                resets.append(part)
        if without:
            self._look_up_committed(without)
        for leader, parts in _by_leader(resets).items():
            self._look_up_resets(leader, parts)
        for leader, parts in _by_leader(doubtful).items():
            self._ask_ends(leader, parts)

    def due_in(self, now: float) -> float:
        """Seconds until ``update`` has something to do."""
        return max(0.0, self._next_at - now)

    def _again(self, part: ReadPartition, now: float) -> None:
        """Ask about it after a pause, which grows with each question in vain."""
        part.asked_in_vain += 1
        part.ask_at = now + self._backoff.after(part.asked_in_vain)
        self._next_at = min(self._next_at, part.ask_at)

    def _is_to_reset(self, part: ReadPartition, now: float) -> bool:
        """Whether the leader can be asked now."""
        if part.reset is None:
            self._reset(part)
        if part.reset is not None and part.leader == NO_NODE:
            self._metadata.want()
            self._again(part, now)
        return part.reset is not None and part.leader != NO_NODE

    def _reset(self, part: ReadPartition) -> None:
        """By ``auto.offset.reset``."""
        if self._policy == NONE:
            part.fail(NoOffsetForPartition([part.key]))
        elif self._policy == RESET_EARLIEST:
            part.reset = EARLIEST
        elif self._policy.startswith(BY_DURATION):
            back_ms = duration_ms(self._policy.partition(":")[2]) or 0
            part.reset = max(0, time.time_ns() // 1_000_000 - back_ms)
        else:
            part.reset = LATEST

    # -- committed offsets

    def _look_up_committed(self, parts: list[ReadPartition]) -> None:
        versions = {part.key: (part, part.version) for part in parts}
        for part in parts:
            part.in_lookup = True
        assert self._committed is not None
        self._committed(
            list(versions), lambda found, error: self._take_committed(versions, found, error)
        )

    def _take_committed(
        self,
        versions: Mapping[Key, tuple[ReadPartition, int]],
        offsets: Mapping[Key, Committed] | None,
        error: Exception | None,
    ) -> None:
        current = [part for part, version in versions.values() if part.version == version]
        for part in current:
            part.in_lookup = False
            if error is not None:
                self._failed(part, error)
                continue
            row = (offsets or {}).get(part.key)
            if row is not None:
                part.seek(row.offset, row.leader_epoch)
            else:
                self._reset(part)
        self._collect_missing(current)
        self.look()
        self._fetcher.changed = True

    @staticmethod
    def _collect_missing(parts: list[ReadPartition]) -> None:
        """One error names all partitions without a committed offset."""
        without = [part for part in parts if isinstance(part.fault, NoOffsetForPartition)]
        for part in without:
            part.fail(NoOffsetForPartition([one.key for one in without]))

    def _failed(self, part: ReadPartition, error: Exception) -> None:
        if isinstance(error, ClientError) and not error.retriable:
            part.fail(error)
        else:
            logger.debug("cannot look up where to begin in %s-%d: %s", *part.key, error)
            self._again(part, self._clock())

    # -- resets

    def _look_up_resets(self, leader: int, parts: list[ReadPartition]) -> None:
        wanted = {part.key: part.reset for part in parts if part.reset is not None}
        versions = {part.key: (part, part.version) for part in parts}
        for part in parts:
            part.in_lookup = True
        self._run(
            leader,
            lambda cluster, seconds: reset_offsets(
                cluster, leader, wanted, self._read_committed, seconds
            ),
            "where to begin",
            lambda found, error: self._take_resets(versions, found, error),
        )

    def _run(
        self,
        leader: int,
        call: Callable[[Cluster, float], Any],
        what: str,
        then: Callable[[Any, Exception | None], Any],
    ) -> None:
        """Ask a leader, which delays nothing that another one is asked for."""
        brokers = {
            node: (broker.host, broker.port) for node, broker in self._metadata.brokers.items()
        }

        def informed(cluster: Cluster, seconds: float) -> Any:
            cluster.know(brokers)
            return call(cluster, seconds)

        self._lanes.of(leader).run(informed, what, self._request_s, then)

    def _take_resets(
        self,
        versions: Mapping[Key, tuple[ReadPartition, int]],
        listed: ListedOffsets | None,
        error: Exception | None,
    ) -> None:
        for key, (part, version) in versions.items():
            if part.version != version:
                continue
            part.in_lookup = False
            row = None if listed is None else listed.found.get(key)
            if row is None:
                why = error if listed is None else listed.errors.get(key)
                self._metadata.want()
                self._failed(part, why or ClientError(f"no offset of {key[0]}-{key[1]}"))
                continue
            part.move(row.offset, row.leader_epoch)
            logger.debug("reading %s-%d from offset %d", *key, row.offset)
        self._fetcher.changed = True

    def out_of_range(self, part: ReadPartition, error: OffsetOutOfRange) -> None:
        """The log does not have the position of a partition (any more)."""
        if self._policy == NONE:
            part.fail(error)
            return
        logger.info("%s; continuing by auto.offset.reset=%s", error, self._policy)
        part.look_up(None)
        self._reset(part)
        self.look()

    def leave(self, parts: Iterable[ReadPartition]) -> None:
        """Their topics were deleted and created again: positions are of logs that are gone, and
        what was fetched of those is dropped. From their place in the new log, records before it
        would never be returned.
        """
        for part in parts:
            if part.position is not None:
                error = TopicReplaced(*part.key, part.position, 0, -1)
                self.out_of_range(part, error)
            elif part.reset is not None:
                part.look_up(part.reset)
                self.look()

    # -- truncation (KIP-320)

    def compare(self, parts: Iterable[ReadPartition]) -> None:
        """The logs of new leaders may lack what was read of these partitions."""
        for part in parts:
            if part.position is not None:
                part.validating = True
                self.look()

    def _is_to_compare(self, part: ReadPartition, now: float) -> bool:
        """Whether the leader can be asked now; where nobody can tell, the position is trusted."""
        if part.epoch < 0 or (part.leader != NO_NODE and part.leader_epoch < 0):
            self._compared(part)
            return False
        if part.leader != NO_NODE and part.leader_epoch >= part.epoch:
            self._old_since.pop(part, None)
            return True
        # A leader older than the record does not know what is asked.
        parts = self._fetcher.parts
        self._old_since = {
            one: at for one, at in self._old_since.items() if parts.get(one.key) is one
        }
        if now - self._old_since.setdefault(part, now) >= _OLD_LEADER_S and part.leader != NO_NODE:
            logger.warning(
                "the leader of %s-%d is of epoch %d, and the position of epoch %d: not compared",
                *part.key,
                part.leader_epoch,
                part.epoch,
            )
            self._compared(part)
            return False
        self._metadata.want()
        self._again(part, now)
        return False

    def _compared(self, part: ReadPartition) -> None:
        """What was fetched of it may be returned."""
        part.validating = False
        part.ask_now()
        self._old_since.pop(part, None)
        self._fetcher.sets.resumed()

    def _ask_ends(self, leader: int, parts: list[ReadPartition]) -> None:
        asked = {part.key: _Question(part) for part in parts}
        wanted = {part.key: (part.epoch, part.leader_epoch) for part in parts}
        for part in parts:
            part.in_lookup = True
        self._run(
            leader,
            lambda cluster, seconds: epoch_ends(cluster, leader, wanted, seconds),
            "ends of leader epochs",
            lambda found, error: self._take_ends(asked, found, error),
        )

    def _take_ends(
        self,
        asked: Mapping[Key, _Question],
        ends: Mapping[Key, LeaderEpochEnd] | None,
        error: Exception | None,
    ) -> None:
        self.look()
        for key, question in asked.items():
            part = question.part
            if part.version != question.version:
                continue  # it has another position, about which something else is asked
            part.in_lookup = False
            end = (ends or {}).get(key)
            if isinstance(error, UnsupportedByBroker):
                self._compared(part)
            elif not question.is_of(part) or end is None or end.is_to_be_asked_again:
                why = error or (end.error if end is not None else None) or "no answer"
                logger.debug("cannot compare %s-%d with its leader: %s", *key, why)
                self._metadata.want()
                self._again(part, self._clock())
            elif end.error is not None:
                part.fail(end.error)
            elif end.epoch < 0 or end.offset < 0:
                self._truncated(part, -1, -1)
            elif end.offset < (part.position or 0):
                self._truncated(part, end.offset, end.epoch)
            else:
                self._compared(part)
        self._fetcher.changed = True

    def _truncated(self, part: ReadPartition, end: int, epoch: int) -> None:
        assert part.position is not None
        error = LogTruncated(*part.key, part.position, part.log_start_offset or 0, end)
        if self._policy == NONE:
            part.fail(error)
        elif end < 0:
            self.out_of_range(part, error)
        else:
            logger.warning("%s: the log was truncated; continuing at offset %d", error, end)
            part.move(end, epoch)


class LeaderEpochEnd(NamedTuple):
    """epoch: the largest one up to that asked for. offset: its end. Both -1: not in the log."""

    epoch: int
    offset: int
    error: RejectedError | None = None

    @property
    def is_to_be_asked_again(self) -> bool:
        return self.error is not None and self.error.retriable


class _Question:
    """What a leader was asked about a partition."""

    __slots__ = ("epoch", "leader", "leader_epoch", "part", "position", "version")

    def __init__(self, part: ReadPartition) -> None:
        self.part = part
        self.version = part.version
        self.position, self.epoch = part.position, part.epoch
        self.leader, self.leader_epoch = part.leader, part.leader_epoch

    def is_of(self, part: ReadPartition) -> bool:
        """Whether the answer is about where the partition is now."""
        return (self.position, self.epoch, self.leader, self.leader_epoch) == (
            part.position,
            part.epoch,
            part.leader,
            part.leader_epoch,
        )


def _by_leader(parts: Iterable[ReadPartition]) -> dict[int, list[ReadPartition]]:
    by_leader: dict[int, list[ReadPartition]] = defaultdict(list)
    for part in parts:
        by_leader[part.leader].append(part)
    return by_leader


def reset_offsets(
    cluster: Cluster,
    leader: int,
    wanted: Mapping[Key, int],
    read_committed: bool,
    deadline: float,
) -> ListedOffsets:
    """Offsets by time; the end where no record is as new. One attempt. Raises ClientError."""
    retry = cluster.retry("offsets", deadline)
    listed = offsets_of_leader(cluster, leader, wanted, read_committed, retry)
    beyond = {key: LATEST for key, row in listed.found.items() if row.offset == NO_OFFSET}
    if beyond:
        ends = offsets_of_leader(cluster, leader, beyond, read_committed, retry)
        for key in beyond:
            del listed.found[key]
        listed.found.update(ends.found)
        listed.errors.update(ends.errors)
    return listed


def epoch_ends(
    cluster: Cluster, leader: int, wanted: Mapping[Key, Epochs], deadline: float
) -> dict[Key, LeaderEpochEnd]:
    """Where leader epochs end. One attempt. Raises ClientError."""
    retry = cluster.retry("ends of leader epochs", deadline)
    connection = cluster.connection(leader, retry)
    if connection.version_of(ApiKey.OFFSET_FOR_LEADER_EPOCH) < _FIRST_OF_CONSUMERS:
        raise UnsupportedByBroker(connection.address, "OffsetForLeaderEpoch of consumers")
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for (topic, partition), (epoch, leader_epoch) in wanted.items():
        by_topic[topic].append(
            OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                partition=partition, current_leader_epoch=leader_epoch, leader_epoch=epoch
            )
        )
    request = OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=name, partitions=parts)
            for name, parts in by_topic.items()
        ],
    )
    response = connection.call(request, retry.step(cluster.request_timeout))
    ends = {}
    for topic in response.topics:
        for row in topic.partitions:
            error = None
            if row.error_code:
                what = f"the end of a leader epoch of {topic.topic}-{row.partition}"
                error = RejectedError(row.error_code, what)
            ends[topic.topic, row.partition] = LeaderEpochEnd(
                row.leader_epoch, row.end_offset, error
            )
    return ends
