"""Fetches chunks of the owned partitions from their leaders, in threads, and puts them into the
queues of their streams.

A thread for each broker (or ``num.consumer.fetchers``) has one fetch in flight, and waits while the
queue of a stream is full. Another one looks up leaders, and offsets to begin at.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Any

from kbroker._ext.record.record_cursor import RecordsDamaged, end_offset
from kbroker.client.batches.offsets import EARLIEST, LATEST, TopicPartition, list_offsets
from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.errors import (
    ClientError,
    OffsetOutOfRange,
    RejectedError,
    UnreadableRecord,
    as_client_error,
)
from kbroker.errors import ErrorCode
from kbroker.legacy.zookeeper_consumer.consumer_errors import NoInitialOffset
from kbroker.legacy.zookeeper_consumer.kafka_stream import Chunk, PartitionReading
from kbroker.legacy.zookeeper_consumer.partition_assignors import java_hash
from kbroker.legacy.zookeeper_consumer.zookeeper_consumer_settings import (
    LARGEST,
    SMALLEST,
    ConsumerConfig,
)
from kbroker.logcontext import RateLimit
from kbroker.protocol.messages.fetch import FetchRequest

logger = logging.getLogger("kbroker.client.legacy.zookeeper_consumer.chunk_fetcher")

Place = tuple[int, int]  # node, number of the fetcher
# From the next version on a fetch names topics by id alone.
_BY_NAME = 12
_NO_SESSION = -1
# BOUND: what is asked for of a partition whose first batch is larger than it may be.
_BATCH_BYTES_MAX = 1 << 30
_RESPONSE_BYTES_MAX = (1 << 31) - 1
_LOOK_UP_S = 5.0
_JOIN_S = 1.0
_RESETS = {SMALLEST: EARLIEST, LARGEST: LATEST}


class ChunkFetcher:
    """``start`` with partitions, ``stop`` before they are given up, ``close`` at the end."""

    def __init__(self, config: ConsumerConfig, name: str) -> None:
        self._config = config
        self._name = name
        self._client_id: str = config["client.id"]
        self._request_s = config.seconds("socket.timeout.ms")
        self._wait_ms: int = config["fetch.wait.max.ms"]
        self._backoff_s = config.seconds("refresh.leader.backoff.ms")
        self._fetchers: int = config["num.consumer.fetchers"]
        self._reset: str = config["auto.offset.reset"]
        self._changed = threading.Condition(threading.Lock())
        # All of these are guarded by it.
        self._homeless: dict[TopicPartition, PartitionReading] = {}
        self._placed: dict[Place, dict[TopicPartition, PartitionReading]] = {}
        self._threads: dict[Place, threading.Thread] = {}
        self._finder: threading.Thread | None = None
        self._bootstrap = ""
        self._closed = False
        self._told = RateLimit(60.0)

    # -- for the connector

    def start(self, parts: Iterable[PartitionReading], addresses: Iterable[str]) -> None:
        """Fetch these as well. addresses: of the brokers, ``host:port``."""
        with self._changed:
            self._bootstrap = ",".join(sorted(addresses))
            for part in parts:
                self._homeless[part.key] = part
            if self._finder is None:
                self._finder = threading.Thread(
                    target=self._find_leaders, name=f"{self._name}-leader-finder", daemon=True
                )
                self._finder.start()
            self._changed.notify_all()

    def stop(self) -> None:
        """Fetch nothing. What is in flight is dropped by streams, once partitions are given up."""
        with self._changed:
            self._homeless.clear()
            for parts in self._placed.values():
                parts.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """End the threads; those that wait for a broker end when it answers."""
        self.stop()
        with self._changed:
            self._closed = True
            threads = [*self._threads.values(), *([self._finder] if self._finder else [])]
            self._changed.notify_all()
        deadline = time.monotonic() + _JOIN_S + self._wait_ms / 1000
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # -- leaders

    def _find_leaders(self) -> None:
        cluster: Cluster | None = None
        bootstrap = ""
        try:
            while True:
                with self._changed:
                    parts = self._due()
                    if self._closed:
                        return
                    wanted = self._bootstrap
                try:
                    if cluster is None or bootstrap != wanted:
                        cluster, bootstrap = self._renewed(cluster, wanted), wanted
                    self._place(cluster, parts)
                except BaseException as error:
                    failure = error if isinstance(error, ClientError) else _unexpected(error)
                    self._tell("cannot look up leaders", failure)
                    if not failure.retriable:
                        for part in parts:
                            part.stream.fail(part, failure)
                with self._changed:
                    if not self._closed:
                        self._changed.wait(self._backoff_s)
        finally:
            if cluster is not None:
                cluster.close()

    def _due(self) -> list[PartitionReading]:
        """Waits for partitions without a leader. The lock is held."""
        while not self._closed:
            now = time.monotonic()
            due = [part for part in self._homeless.values() if part.retry_at <= now]
            if due:
                return due
            next_at = min((part.retry_at for part in self._homeless.values()), default=None)
            self._changed.wait(None if next_at is None else next_at - now)
        return []

    def _renewed(self, cluster: Cluster | None, bootstrap: str) -> Cluster:
        if cluster is not None:
            cluster.close()
        return Cluster(
            bootstrap,
            self._config.settings.security,
            client_id=self._client_id,
            request_timeout=self._request_s,
            deadline=self._request_s,
        )

    def _place(self, cluster: Cluster, parts: list[PartitionReading]) -> None:
        """Hand partitions to the fetchers of their leaders."""
        names = sorted({part.key[0] for part in parts})
        topics = cluster.refresh(names, cluster.retry("leaders", self._request_s))
        led: dict[TopicPartition, int] = {}
        begin: dict[str, list[PartitionReading]] = {}
        for part in parts:
            topic, partition = part.key
            known = topics.get(topic)
            row = known.partitions.get(partition) if known is not None else None
            if row is not None and row.leader is not None:
                led[part.key] = row.leader
                if part.fetch_offset is None:
                    begin.setdefault(topic, []).append(part)
        for some in begin.values():
            self._look_up_offsets(cluster, some)
        with self._changed:
            for part in parts:
                address = cluster.address(led.get(part.key, -1))
                if self._homeless.get(part.key) is not part:
                    continue  # it was given up meanwhile
                if part.stopped:
                    del self._homeless[part.key]
                elif address is None or part.fetch_offset is None:
                    part.retry_at = time.monotonic() + self._backoff_s
                else:
                    del self._homeless[part.key]
                    self._hand_over(part, led[part.key], address)

    def _hand_over(self, part: PartitionReading, node: int, address: tuple[str, int]) -> None:
        """The lock is held."""
        topic, partition = part.key
        place = node, abs(31 * java_hash(topic) + partition) % self._fetchers
        self._placed.setdefault(place, {})[part.key] = part
        if place not in self._threads:
            made = self._threads[place] = threading.Thread(
                target=self._fetch_all,
                args=(place, address),
                name=f"{self._name}-fetcher-{node}-{place[1]}",
                daemon=True,
            )
            made.start()

    def _look_up_offsets(self, cluster: Cluster, parts: list[PartitionReading]) -> None:
        """Where to begin, by ``auto.offset.reset``."""
        which = _RESETS.get(self._reset)
        if which is None:
            for part in parts:
                part.stream.fail(part, NoInitialOffset(*part.key, self._reset), stop=True)
            return
        wanted = {part.key: which for part in parts}
        try:
            offsets = list_offsets(cluster, wanted, deadline=min(self._request_s, _LOOK_UP_S))
        except ClientError as error:
            self._tell(f"cannot look up the {self._reset} offsets of {parts[0].key[0]}", error)
            if not error.retriable:
                for part in parts:
                    part.stream.fail(part, error)
            return
        for part in parts:
            offset = offsets[part.key].offset
            if part.consumed is None:
                part.consumed = offset
            part.fetch_offset = offset
            logger.info("%s-%d begins at its %s offset %d", *part.key, self._reset, offset)

    def _tell(self, what: str, error: Exception) -> None:
        if count := self._told.due((what, str(error))):
            logger.warning("%s: %s; trying again (%d times in the last minute)", what, error, count)

    # -- fetching

    def _fetch_all(self, place: Place, address: tuple[str, int]) -> None:
        """Until nothing is left to fetch from that broker."""
        connection: Connection | None = None
        turn = 0
        while True:
            with self._changed:
                placed = self._placed.get(place, {})
                for key in [key for key, part in placed.items() if part.stopped]:
                    del placed[key]
                parts = list(placed.values())
                if not parts or self._closed:
                    self._placed.pop(place, None)
                    self._threads.pop(place, None)
                    break
            turn = (turn + 1) % len(parts)  # none is always the last one in a response
            parts = parts[turn:] + parts[:turn]
            try:
                if connection is None:
                    connection = self._connect(address)
                self._fetch(connection, place, parts)
            except BaseException as error:
                failure = error if isinstance(error, ClientError) else _unexpected(error)
                self._tell(f"cannot fetch from broker {place[0]}", failure)
                if connection is not None:
                    connection.close()
                connection = None
                self._lose(place, parts, failure)
        if connection is not None:
            connection.close()

    def _connect(self, address: tuple[str, int]) -> Connection:
        buffer: int = self._config["socket.receive.buffer.bytes"]
        return Connection(
            *address,
            self._config.settings.security,
            client_id=self._client_id,
            deadline=time.monotonic() + self._request_s,
            receive_buffer_bytes=None if buffer < 0 else buffer,
        )

    def _lose(self, place: Place, parts: list[PartitionReading], error: ClientError) -> None:
        """The leaders of these are to be looked up, after a pause."""
        with self._changed:
            placed = self._placed.get(place, {})
            for part in parts:
                part.retry_at = time.monotonic() + self._backoff_s
                if placed.get(part.key) is part:
                    del placed[part.key]
                    self._homeless[part.key] = part
            self._changed.notify_all()
        if not error.retriable:
            for part in parts:
                part.stream.fail(part, error)

    def _fetch(self, connection: Connection, place: Place, parts: list[PartitionReading]) -> None:
        asked = {part.key: (part, part.fetch_offset) for part in parts}
        deadline = time.monotonic() + self._request_s + self._wait_ms / 1000
        pending = connection.send(self._request(parts), deadline, at_most=_BY_NAME)
        response = connection.receive(pending, deadline)
        if response.error_code:
            raise RejectedError(response.error_code, "fetch")
        rows = [
            (asked[topic.topic, row.partition_index][0], row)
            for topic in response.responses
            for row in topic.partitions
            if (topic.topic, row.partition_index) in asked
        ]
        full = sum(row.records is not None and len(row.records) > 0 for _, row in rows)
        for part, row in rows:
            if not part.active:
                continue
            if row.error_code:
                self._rejected(place, part, row)
                continue
            part.high_watermark = row.high_watermark
            if row.records is not None and len(row.records):
                # COPY: a view would keep the whole response until the slowest stream has read it.
                self._take(part, row, row.records if full == 1 else bytes(row.records))
        if response.throttle_time_ms > 0:
            with self._changed:
                if not self._closed:
                    self._changed.wait(response.throttle_time_ms / 1000)

    def _request(self, parts: list[PartitionReading]) -> FetchRequest:
        by_topic: dict[str, list[Any]] = {}
        for part in parts:
            topic, partition = part.key
            assert part.fetch_offset is not None, "those without one are asked for it first"
            by_topic.setdefault(topic, []).append(
                FetchRequest.FetchPartition(
                    partition=partition,
                    current_leader_epoch=-1,
                    fetch_offset=part.fetch_offset,
                    partition_max_bytes=part.max_bytes,
                )
            )
        return FetchRequest(
            max_wait_ms=self._wait_ms,
            min_bytes=self._config["fetch.min.bytes"],
            max_bytes=_RESPONSE_BYTES_MAX,
            session_epoch=_NO_SESSION,
            topics=[
                FetchRequest.FetchTopic(topic=topic, partitions=rows)
                for topic, rows in by_topic.items()
            ],
        )

    def _take(self, part: PartitionReading, row: Any, records: Any) -> None:
        topic, partition = part.key
        at = part.fetch_offset
        assert at is not None
        fault: UnreadableRecord | None = None
        following = at
        try:
            following = int(end_offset(records, at))
        except RecordsDamaged as error:
            offset, why = error.args
            offset = following = max(offset, at)
            fault = UnreadableRecord(topic, partition, offset, offset + 1, why)
        if fault is None and following == at:
            claimed = int.from_bytes(records[8:12], "big") + 12
            if len(records) >= 12 and claimed <= len(records):
                why = "a batch with offsets that do not belong there"
                fault = UnreadableRecord(topic, partition, at, at + 1, why)
            elif part.max_bytes >= _BATCH_BYTES_MAX:
                fault = UnreadableRecord(
                    topic, partition, at, at + 1, f"a batch of {claimed} bytes"
                )
            else:
                part.max_bytes *= 2  # a batch that is larger than fetch.message.max.bytes
                return
        part.fetch_offset = following
        if fault is not None:
            part.stopped = True  # nothing behind it is fetched
        part.stream.put(Chunk(part, at, records, following, row.high_watermark, fault))

    def _rejected(self, place: Place, part: PartitionReading, row: Any) -> None:
        topic, partition = part.key
        at = part.fetch_offset
        assert at is not None
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if self._reset in _RESETS:
                logger.warning("%s-%d has no offset %d; resetting it", topic, partition, at)
                if part.consumed == at:
                    part.consumed = None
                part.fetch_offset = None
            else:
                start, end = row.log_start_offset, row.high_watermark
                gone = OffsetOutOfRange(topic, partition, at, start, end)
                part.stream.fail(part, gone, stop=True)
                return
        elif row.error_code == ErrorCode.CORRUPT_MESSAGE:
            why = "the broker cannot read them"
            damaged = UnreadableRecord(topic, partition, at, at + 1, why)
            part.stream.fail(part, damaged, stop=True)
            return
        error = RejectedError(row.error_code, f"fetch of {topic}-{partition}")
        retriable = error.retriable or row.error_code in (
            ErrorCode.OFFSET_OUT_OF_RANGE,
            ErrorCode.UNKNOWN_SERVER_ERROR,
        )
        error.retriable = retriable
        self._lose(place, [part], error)


def _unexpected(error: BaseException) -> ClientError:
    """What nobody handles is logged, and raised by the streams; it is tried again."""
    logger.exception("a thread of a consumer failed")
    return as_client_error(error)
