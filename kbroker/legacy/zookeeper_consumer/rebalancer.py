"""Keeps a consumer's share of its group: registers it, watches the group, and takes the partitions
that are assigned to it.

Members, brokers and topics are watched. When they change, each member gives up all that it owns,
assigns partitions by the same rule as the others, and claims its own; a claim fails until the owner
before has released the partition, and then it is tried again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.errors import ClientError, as_client_error
from kbroker.internal_topics import INTERNAL_TOPICS
from kbroker.legacy.zookeeper_consumer.chunk_fetcher import ChunkFetcher
from kbroker.legacy.zookeeper_consumer.consumer_errors import RebalanceFailed
from kbroker.legacy.zookeeper_consumer.group_session import GroupSession, GroupSnapshot
from kbroker.legacy.zookeeper_consumer.kafka_stream import KafkaStream, PartitionReading
from kbroker.legacy.zookeeper_consumer.offset_storage import OffsetStorage
from kbroker.legacy.zookeeper_consumer.partition_assignors import ASSIGNORS, thread_id
from kbroker.legacy.zookeeper_consumer.topic_filters import StreamSubscription
from kbroker.legacy.zookeeper_consumer.zookeeper_consumer_settings import ConsumerConfig

logger = logging.getLogger("kbroker.client.legacy.zookeeper_consumer.rebalancer")


class Rebalancer:
    """stream_of: the stream of a topic and number. ``changed`` may be called by any thread."""

    def __init__(
        self,
        config: ConsumerConfig,
        consumer: str,
        session: GroupSession,
        storage: OffsetStorage,
        fetcher: ChunkFetcher,
        closing: threading.Event,
    ) -> None:
        self._config = config
        self.consumer = consumer
        self._session = session
        self._storage = storage
        self._fetcher = fetcher
        self._closing = closing
        self._assign = ASSIGNORS[config["partition.assignment.strategy"]]
        self._backoff_s = config.seconds("rebalance.backoff.ms")
        self._attempts: int = config["rebalance.max.retries"]
        self._auto_commit: bool = config["auto.commit.enable"]
        self._exclude_internal: bool = config["exclude.internal.topics"]
        self._again_s = max(self._backoff_s, config.seconds("zookeeper.session.timeout.ms"))
        self._subscription = StreamSubscription({})
        self._registered: int | None = None  # the session
        self._streams: list[KafkaStream] = []
        self._stream_of: Callable[[str, int], KafkaStream] | None = None
        # Guards what is owned and its offsets, from the snapshot of a commit to its end: a commit
        # must not come after the partition was released.
        self.owning = threading.Lock()
        self._owned: dict[TopicPartition, PartitionReading] = {}
        self._claimed: set[TopicPartition] = set()
        self._seen: GroupSnapshot | None = None  # what the present share was assigned by
        self._wake = threading.Condition(threading.Lock())
        self._due = False
        self._one = threading.Lock()  # one rebalance at a time
        self._thread: threading.Thread | None = None

    # -- for the connector

    def begin(
        self,
        subscription: StreamSubscription,
        streams: Iterable[KafkaStream],
        stream_of: Callable[[str, int], KafkaStream],
    ) -> None:
        """Register, and take partitions. Raises RebalanceFailed, UnreachableError, ..."""
        self._subscription = subscription
        self._streams = list(streams)
        self._stream_of = stream_of
        self._register()
        self._rebalance()
        self._thread = threading.Thread(
            target=self._keep, name=f"{self.consumer}-rebalancer", daemon=True
        )
        self._thread.start()

    def changed(self) -> None:
        """Something that a rebalance depends on may have changed."""
        with self._wake:
            self._due = True
            self._wake.notify_all()

    def close(self) -> None:
        """End; nothing is given up. ``closing`` is set."""
        self.changed()
        if self._thread is not None:
            self._thread.join()

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None, *, retry: bool) -> None:
        """Commit what streams have returned, or these. Raises ClientError."""
        with self.owning:
            self._commit(offsets, retry)

    def lags(self) -> dict[TopicPartition, int]:
        """How many messages of each owned partition were not returned yet, where that is known."""
        return {
            key: max(part.high_watermark - part.consumed, 0)
            for key, part in list(self._owned.items())
            if part.high_watermark is not None and part.consumed is not None
        }

    # -- one after the other

    def _keep(self) -> None:
        again_at: float | None = None
        while True:
            with self._wake:
                while not self._due and not self._closing.is_set():
                    left = None if again_at is None else again_at - time.monotonic()
                    if left is not None and left <= 0:
                        break
                    self._wake.wait(left)
                self._due = False
            if self._closing.is_set():
                return
            again_at = None
            try:
                self._follow()
            except BaseException as error:
                if self._closing.is_set():
                    return
                again_at = time.monotonic() + self._again_s
                self._failed(error)

    def _follow(self) -> None:
        """The session has ended or begun, or something has changed."""
        session = self._session.id
        if self._session.take_lost() or session not in (None, self._registered):
            self._lose()
        if session is None:
            return  # told again when there is a connection
        if session != self._registered:
            logger.info("%s has a new session with ZooKeeper: registering again", self.consumer)
            self._register()
        self._rebalance()

    def _register(self) -> None:
        session = self._session.id
        self._session.register(self.consumer, self._subscription.node())
        self._registered = session

    def _failed(self, error: BaseException) -> None:
        failure = as_client_error(error)
        if not isinstance(error, ClientError):
            logger.exception("the rebalancer of %s failed", self.consumer)
        again = "with the next change of the group"
        logger.error("%s; trying again %s, or in %.3g s", failure, again, self._again_s)
        for stream in self._streams:
            stream.fail(None, failure)

    # -- a rebalance

    def _rebalance(self) -> None:
        with self._one:
            last = ""
            for attempt in range(self._attempts):
                busy: list[TopicPartition] = []
                try:
                    busy = self._attempt()
                    if not busy:
                        return
                    last = "others own " + ", ".join(f"{topic}-{n}" for topic, n in busy)
                except ClientError as error:
                    last = str(error)
                self._abandon()
                if self._closing.is_set() or self._session.lost:
                    return  # the thread sees to it
                logger.info(
                    "%s: attempt %d at a rebalance failed: %s", self.consumer, attempt + 1, last
                )
                if attempt + 1 < self._attempts:
                    self._pause(busy)
            raise RebalanceFailed(self.consumer, self._attempts, last)

    def _abandon(self) -> None:
        """An attempt has failed: own nothing."""
        self._seen = None
        self._fetcher.stop()
        try:
            self._release()
        except ClientError as error:
            logger.info("%s cannot release partitions: %s", self.consumer, error)

    def _pause(self, busy: list[TopicPartition]) -> None:
        """Until these are released, something changes, or the backoff is over."""
        released = 0

        def one_more() -> None:
            nonlocal released
            with self._wake:
                released += 1
                self._wake.notify_all()

        # A change alone does not end the pause: it would use up the attempts.
        deadline = time.monotonic() + self._backoff_s
        try:
            self._session.watch_owners(busy, one_more)
        except ClientError:
            busy = []
        with self._wake:
            while not self._closing.is_set():
                left = deadline - time.monotonic()
                if left <= 0 or (busy and released >= len(busy)):
                    break
                self._wake.wait(left)
            self._due = False

    def _attempt(self) -> list[TopicPartition]:
        """Returns the partitions that others still own; then nothing was taken."""
        seen = self._session.see(self.consumer, self._exclude_internal)
        if seen == self._seen:
            return []
        if not seen.brokers:
            logger.warning("no broker is registered in ZooKeeper; %s waits", self.consumer)
            self._give_up()
            self._seen = None
            return []
        self._give_up()
        streams = self._assign(seen.streams, seen.topics, self.consumer)
        owners = {key: thread_id(self.consumer, stream) for key, stream in streams.items()}
        self._claimed.update(owners)
        busy = self._session.claim(owners)
        if busy:
            return busy
        # COMPAT: 0.8.2 counts the transactions' topic as one of users', which it is not.
        hidden = self._exclude_internal and self._subscription.filter is not None
        read = {
            key: stream
            for key, stream in streams.items()
            if not (hidden and key[0] in INTERNAL_TOPICS)
        }
        # Not before the claim: the owner before has committed by then.
        self._take(read, self._storage.read(read), seen)
        return []

    def _take(
        self,
        streams: Mapping[TopicPartition, int],
        offsets: Mapping[TopicPartition, int],
        seen: GroupSnapshot,
    ) -> None:
        assert self._stream_of is not None
        with self.owning:
            if self._closing.is_set():
                return
            for key, stream in streams.items():
                part = PartitionReading(
                    key, self._stream_of(key[0], stream), self._config["fetch.message.max.bytes"]
                )
                part.consumed = part.fetch_offset = part.committed = offsets.get(key)
                self._owned[key] = part
            self._seen = seen
            self._fetcher.start(list(self._owned.values()), seen.brokers.values())
        logger.info("%s owns %d partitions", self.consumer, len(streams))

    def _give_up(self) -> None:
        """All partitions, after a commit."""
        self._fetcher.stop()
        with self.owning:
            self._stop_reading()
            if self._auto_commit:
                try:
                    self._commit(None, retry=True)
                except ClientError as error:
                    logger.warning("cannot commit before a rebalance: %s", error)
            self._owned.clear()
        self._release()

    def _lose(self) -> None:
        """The session has ended: others own the partitions, and commit."""
        self._fetcher.stop()
        with self.owning:
            self._stop_reading()
            self._owned.clear()
            self._seen = None

    def _stop_reading(self) -> None:
        for stream in self._streams:
            parts = [part for part in self._owned.values() if part.stream is stream]
            stream.give_up(parts)

    def _release(self) -> None:
        if self._claimed:
            self._session.release(self._claimed)
            self._claimed.clear()

    def _commit(self, given: Mapping[TopicPartition, int] | None, retry: bool) -> None:
        offsets = dict(given) if given is not None else {}
        if given is None:
            for key, part in self._owned.items():
                consumed = part.consumed
                if consumed is not None and consumed != part.committed:
                    offsets[key] = consumed
        self._storage.commit(offsets, retry=retry)
        for key, offset in offsets.items():
            owned = self._owned.get(key)
            if owned is not None:
                # What was given stays, until the stream has returned another message.
                owned.committed = offset if given is None else owned.consumed
