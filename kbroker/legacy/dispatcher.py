"""Sends messages to the leaders of their partitions, and again what was not acknowledged."""

from __future__ import annotations

import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.errors import ClientError, RejectedError
from kbroker.errors import ErrorCode
from kbroker.legacy.cluster_view import ClusterView
from kbroker.legacy.keyed_message import Outgoing
from kbroker.legacy.legacy_errors import FailedToSendMessage
from kbroker.legacy.message_set import MessageSet
from kbroker.legacy.producer_config import ProducerConfig
from kbroker.legacy.sync_producer import ProducerRequest
from kbroker.legacy.topic_metadata import PartitionMetadata

logger = logging.getLogger("kbroker.client.legacy.dispatcher")

_NOBODY = -1


@dataclass
class ProducerStats:
    """Counts since the producer was created.

    messages, bytes: given to be sent. resends: pauses before messages were sent again.
    failed_sends: calls or batches with messages that were given up. dropped: messages for which
    the queue had no place.
    """

    messages: int = 0
    bytes: int = 0
    resends: int = 0
    failed_sends: int = 0
    serialization_errors: int = 0
    dropped: int = 0


class Dispatcher:
    """Called by one thread at a time. sleep, clock: of the pauses, in seconds."""

    def __init__(
        self,
        config: ProducerConfig,
        view: ClusterView,
        *,
        stats: ProducerStats | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.stats = stats or ProducerStats()
        self._view = view
        self._sleep = sleep
        self._clock = clock
        self._acks: int = config["request.required.acks"]
        self._codec: str = config["compression.codec"]
        self._compressed = frozenset(config["compressed.topics"])
        self._refresh_s: float = config["topic.metadata.refresh.interval.ms"] / 1000
        self._refreshed_at = float("-inf")
        self._used: set[str] = set()  # topics, since the last refresh
        # Of messages without a key, by topic, until the next refresh.
        self._sticky: dict[str, int] = {}
        self._last = ""

    def close(self) -> None:
        """Close the connections."""
        self._view.close()

    def dispatch(self, outgoing: Iterable[Outgoing]) -> None:
        """Send messages; returns when all are acknowledged (acks 0: written to their sockets).

        Raises FailedToSendMessage after ``message.send.max.retries`` retries.
        """
        left = list(outgoing)
        self.stats.messages += len(left)
        self.stats.bytes += sum(one.message.size for one in left)
        tries = self.config["message.send.max.retries"] + 1
        for attempt in range(tries):
            if not left:
                return
            self._used.update(one.topic for one in left)
            self._maybe_refresh()
            left = self._attempted(left)
            if left:
                self._back_off(left, tries - attempt - 1)
        if left:
            self.stats.failed_sends += 1
            raise FailedToSendMessage(tries, len(left), self._last)

    # -- metadata

    def _maybe_refresh(self) -> None:
        now = self._clock()
        if self._refresh_s < 0 or now - self._refreshed_at < self._refresh_s:
            return
        self._refresh(self._used)
        self._used.clear()
        self._refreshed_at = now

    def _refresh(self, topics: Iterable[str]) -> None:
        try:
            self._view.update(topics)
        except ClientError as error:
            self._last = str(error)
            logger.warning("cannot refresh metadata: %s", error)
        self._sticky.clear()

    def _back_off(self, left: list[Outgoing], remaining: int) -> None:
        """COMPAT: also after the last attempt, so that the next call knows the new leaders."""
        pause_ms = self.config["retry.backoff.ms"]
        logger.info(
            "%d messages are not acknowledged (%s): pausing %d ms, then %d more tries",
            len(left),
            self._last,
            pause_ms,
            remaining,
        )
        self._sleep(pause_ms / 1000)
        self._refresh({one.topic for one in left})
        self.stats.resends += 1

    # -- one attempt

    def _attempted(self, outgoing: list[Outgoing]) -> list[Outgoing]:
        """Send to all leaders; returns what is to be sent again."""
        try:
            by_leader = self._by_leader(outgoing)
        except ClientError as error:
            self._failed("cannot place messages", error)
            return outgoing
        left: list[Outgoing] = []
        for leader, by_partition in by_leader.items():
            for key in self._sent(leader, by_partition):
                left.extend(by_partition[key])
        return left

    def _by_leader(
        self, outgoing: list[Outgoing]
    ) -> dict[int, dict[TopicPartition, list[Outgoing]]]:
        by_leader: dict[int, dict[TopicPartition, list[Outgoing]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for one in outgoing:
            partitions = self._view.partitions(one.topic)
            index = self._index(one, partitions)
            row = partitions[index]
            # Without a leader it fails alone; others can be sent.
            leader = _NOBODY if row.leader is None else row.leader.id
            by_leader[leader][one.topic, row.partition_id].append(one)
        return by_leader

    def _index(self, one: Outgoing, partitions: list[PartitionMetadata]) -> int:
        count = len(partitions)
        if one.partition is not None:
            index = one.partition
        elif one.part_key is None and not self.config.takes_null_keys:
            return self._any(one.topic, partitions)
        else:
            index = self.config.partition(one.part_key, count)
        if not 0 <= index < count:
            raise RejectedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"partition {index} of topic {one.topic}, which has {count}",
            )
        return index

    def _any(self, topic: str, partitions: list[PartitionMetadata]) -> int:
        known = self._sticky.get(topic)
        if known is None:
            led = [n for n, row in enumerate(partitions) if row.leader is not None]
            if not led:
                raise RejectedError(
                    ErrorCode.LEADER_NOT_AVAILABLE, f"any partition of topic {topic}"
                )
            known = self._sticky[topic] = random.choice(led)
        return known

    def _sent(
        self, leader: int, by_partition: dict[TopicPartition, list[Outgoing]]
    ) -> list[TopicPartition]:
        """Send one request; returns the partitions that have failed."""
        if leader == _NOBODY:
            named = ", ".join(f"{topic}-{partition}" for topic, partition in by_partition)
            self._failed(
                "cannot send messages", RejectedError(ErrorCode.LEADER_NOT_AVAILABLE, named)
            )
            return list(by_partition)
        sets = {
            key: MessageSet.of([one.message for one in messages], self._codec_of(key[0]))
            for key, messages in by_partition.items()
        }
        try:
            response = self._view.producer(leader).send(ProducerRequest(sets))
        except ClientError as error:
            self._failed(f"cannot send messages to broker {leader}", error)
            return list(by_partition)
        if response is None:
            return []
        failed = [
            key for key in by_partition if key not in response.status or response.status[key].error
        ]
        for topic, partition in failed:
            status = response.status.get((topic, partition))
            code = ErrorCode.UNKNOWN_SERVER_ERROR if status is None else status.error
            self._failed("not written", RejectedError(code, f"produce to {topic}-{partition}"))
        return failed

    def _codec_of(self, topic: str) -> str:
        return self._codec if not self._compressed or topic in self._compressed else "none"

    def _failed(self, what: str, error: ClientError) -> None:
        self._last = str(error)
        logger.warning("%s: %s", what, error, extra={"event": "dispatcher.failed"})
