"""Where reading begins: committed offsets, resets, and whether a position is still in the log."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kbroker.client.client_settings import Settings
from kbroker.client.cluster import Cluster
from kbroker.client.connection import Connection
from kbroker.client.consumer.consumer_metadata import ConsumerMetadata
from kbroker.client.consumer.consumer_settings import BY_DURATION, NONE, duration_ms
from kbroker.client.consumer.consumer_settings import EARLIEST as RESET_EARLIEST
from kbroker.client.consumer.fetcher import Fetcher
from kbroker.client.consumer.lanes import Lane
from kbroker.client.consumer.partitions import NO_NODE, PartitionState
from kbroker.client.errors import (
    ClientError,
    LogTruncated,
    NoOffsetForPartition,
    OffsetOutOfRange,
    UnsupportedByBroker,
)
from kbroker.client.offsets import EARLIEST, LATEST, NO_OFFSET, Committed, Offset, list_offsets
from kbroker.client.offsets import TopicPartition as Key
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest

logger = logging.getLogger(__name__)

# From this version on OffsetForLeaderEpoch is for consumers, too (KIP-320).
_FIRST_OF_CONSUMERS = 3
# What is looked up: where an epoch ended, in which epoch the leader is.
Epochs = tuple[int, int]


class Positions:
    """Looks up what ``fetcher.parts`` lack. In the thread that polls.

    committed: begins to look up the committed offsets of partitions, for a consumer with a group.
    """

    def __init__(
        self,
        settings: Settings,
        lane: Lane,
        metadata: ConsumerMetadata,
        fetcher: Fetcher,
        committed: Callable[[Iterable[Key], Callable[[Any, Exception | None], None]], None] | None,
    ) -> None:
        self._lane = lane
        self._metadata = metadata
        self._fetcher = fetcher
        self._committed = committed
        self._policy: str = settings["auto.offset.reset"]
        self._read_committed = settings["isolation.level"] == "read_committed"
        self._backoff_s: float = settings["retry.backoff.ms"] / 1000
        self._request_s: float = settings["request.timeout.ms"] / 1000
        self._next_at = 0.0
        self.missing = True  # some partition may lack its position

    def update(self, now: float) -> None:
        """Begin to look up what is missing."""
        if not self.missing or now < self._next_at:
            return
        self.missing = False
        without: list[PartitionState] = []
        resets: dict[PartitionState, int] = {}
        for part in self._fetcher.parts.values():
            if part.position is not None or part.fault is not None or part.in_lookup:
                continue
            if part.reset is None and self._committed is not None:
                without.append(part)
                continue
            if part.reset is None:
                self._reset(part)
            if part.reset is not None:
                if part.leader == NO_NODE:
                    self._metadata.want()
                    self._again(now)
                else:
                    resets[part] = part.reset
        if without:
            self._look_up_committed(without)
        if resets:
            self._look_up_resets(resets)

    def due_in(self, now: float) -> float:
        """Seconds until ``update`` has something to do."""
        return max(0.0, self._next_at - now) if self.missing else float("inf")

    def _again(self, now: float) -> None:
        self._next_at = now + self._backoff_s
        self.missing = True

    def _reset(self, part: PartitionState) -> None:
        """By ``auto.offset.reset``."""
        if self._policy == NONE:
            part.fault = NoOffsetForPartition([part.key])
        elif self._policy == RESET_EARLIEST:
            part.reset = EARLIEST
        elif self._policy.startswith(BY_DURATION):
            back_ms = duration_ms(self._policy.partition(":")[2]) or 0
            part.reset = max(0, time.time_ns() // 1_000_000 - back_ms)
        else:
            part.reset = LATEST

    # -- committed offsets

    def _look_up_committed(self, parts: list[PartitionState]) -> None:
        versions = {part.key: (part, part.version) for part in parts}
        for part in parts:
            part.in_lookup = True
        assert self._committed is not None
        self._committed(
            list(versions), lambda found, error: self._take_committed(versions, found, error)
        )

    def _take_committed(
        self,
        versions: Mapping[Key, tuple[PartitionState, int]],
        found: Mapping[Key, Committed] | None,
        error: Exception | None,
    ) -> None:
        current = [part for part, version in versions.values() if part.version == version]
        for part in current:
            part.in_lookup = False
            if error is not None:
                self._failed(part, error)
                continue
            row = (found or {}).get(part.key)
            if row is not None:
                part.seek(row.offset, row.leader_epoch)
            else:
                self._reset(part)
        self._collect_missing(current)
        self.missing = True
        self._fetcher.changed = True

    @staticmethod
    def _collect_missing(parts: list[PartitionState]) -> None:
        """One error names all partitions without a committed offset."""
        without = [part for part in parts if isinstance(part.fault, NoOffsetForPartition)]
        for part in without:
            part.fault = NoOffsetForPartition([one.key for one in without])

    def _failed(self, part: PartitionState, error: Exception) -> None:
        if isinstance(error, ClientError) and not error.retriable:
            part.fault = error
        else:
            logger.debug("cannot look up where to begin in %s-%d: %s", *part.key, error)
            self._again(time.monotonic())

    # -- resets

    def _look_up_resets(self, resets: Mapping[PartitionState, int]) -> None:
        wanted = {part.key: timestamp for part, timestamp in resets.items()}
        versions = {part.key: (part, part.version) for part in resets}
        for part in resets:
            part.in_lookup = True
        self._lane.run(
            lambda cluster: reset_offsets(cluster, wanted, self._read_committed, self._request_s),
            lambda found, error: self._take_resets(versions, found, error),
        )

    def _take_resets(
        self,
        versions: Mapping[Key, tuple[PartitionState, int]],
        found: Mapping[Key, Offset] | None,
        error: Exception | None,
    ) -> None:
        for key, (part, version) in versions.items():
            if part.version != version:
                continue
            part.in_lookup = False
            if found is None or key not in found:
                self._metadata.want()
                self._failed(part, error or ClientError(f"no offset of {key[0]}-{key[1]}"))
                continue
            part.seek(found[key].offset)
            logger.debug("reading %s-%d from offset %d", *key, found[key].offset)
        self._fetcher.changed = True

    def out_of_range(self, part: PartitionState, error: OffsetOutOfRange) -> None:
        """The log does not have the position of a partition (any more)."""
        if self._policy == NONE:
            part.fault = error
            return
        logger.info("%s; continuing by auto.offset.reset=%s", error, self._policy)
        part.look_up(None)
        self._reset(part)
        self.missing = True

    # -- truncation (KIP-320)

    def compare(self, parts: Iterable[PartitionState]) -> None:
        """Whether the logs of new leaders have what was read of these partitions."""
        wanted: dict[Key, Epochs] = {}
        versions = {}
        for part in parts:
            if part.position is None or part.epoch < 0 or part.leader == NO_NODE:
                continue
            part.validating = True
            wanted[part.key] = part.epoch, part.leader_epoch
            versions[part.key] = part, part.version
        if wanted:
            self._lane.run(
                lambda cluster: epoch_ends(cluster, wanted, self._request_s),
                lambda found, error: self._take_ends(versions, wanted, found, error),
            )

    def _take_ends(
        self,
        versions: Mapping[Key, tuple[PartitionState, int]],
        wanted: Mapping[Key, Epochs],
        found: Mapping[Key, tuple[int, int]] | None,
        error: Exception | None,
    ) -> None:
        again = []
        for key, (part, version) in versions.items():
            if part.version != version or part.position is None:
                continue
            part.validating = False
            if part.leader_epoch != wanted[key][1] or (found is None and error is not None):
                if not isinstance(error, UnsupportedByBroker):
                    again.append(part)
                continue
            if found is None or key not in found:
                continue
            epoch, end = found[key]
            if end < 0 or epoch < 0:
                self._truncated(part, -1)
            elif end < part.position:
                self._truncated(part, end)
        if again:
            logger.debug("cannot compare positions with the logs of new leaders: %s", error)
            self._metadata.want()
            self.compare(again)
        self._fetcher.changed = True

    def _truncated(self, part: PartitionState, end: int) -> None:
        assert part.position is not None
        error = LogTruncated(*part.key, part.position, part.log_start_offset or 0, end)
        if self._policy == NONE:
            part.fault = error
        elif end < 0:
            self.out_of_range(part, error)
        else:
            logger.warning("%s: the log was truncated; continuing at offset %d", error, end)
            part.seek(end)


def reset_offsets(
    cluster: Cluster, wanted: Mapping[Key, int], read_committed: bool, deadline: float
) -> dict[Key, Offset]:
    """Offsets by time; the end where no record is as new. Raises ClientError."""
    found = list_offsets(cluster, wanted, read_committed=read_committed, deadline=deadline)
    beyond = {key: LATEST for key, row in found.items() if row.offset == NO_OFFSET}
    if beyond:
        found.update(
            list_offsets(cluster, beyond, read_committed=read_committed, deadline=deadline)
        )
    return found


def epoch_ends(
    cluster: Cluster, wanted: Mapping[Key, Epochs], deadline: float
) -> dict[Key, tuple[int, int]]:
    """Where leader epochs end: the largest epoch up to the one asked for, and its end offset, -1
    where that is not known. Partitions with an error are left out. Raises ClientError.
    """
    retry = cluster.retry("ends of leader epochs", deadline)
    by_leader: dict[int, dict[Key, Epochs]] = defaultdict(dict)
    for key, epochs in wanted.items():
        _, leader = cluster.leader(*key, retry)
        by_leader[leader][key] = epochs
    found: dict[Key, tuple[int, int]] = {}
    for leader, rows in by_leader.items():
        connection = cluster.connection(leader, retry)
        if connection.version_of(ApiKey.OFFSET_FOR_LEADER_EPOCH) < _FIRST_OF_CONSUMERS:
            raise UnsupportedByBroker(connection.address, "OffsetForLeaderEpoch of consumers")
        found.update(_ask_ends(connection, rows, retry.step(cluster.request_timeout)))
    for topic, _ in wanted.keys() - found.keys():
        cluster.forget_topic(topic)
    return found


def _ask_ends(
    connection: Connection, rows: Mapping[Key, Epochs], deadline: float
) -> dict[Key, tuple[int, int]]:
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for (topic, partition), (epoch, leader_epoch) in rows.items():
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
    response = connection.call(request, deadline)
    return {
        (topic.topic, row.partition): (row.leader_epoch, row.end_offset)
        for topic in response.topics
        for row in topic.partitions
        if not row.error_code
    }
