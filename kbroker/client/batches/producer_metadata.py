"""What a producer knows of its topics: refreshed beside the sender, awaited by those who send."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from kbroker._ext.client.appender import Appender
from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.metadata import ClusterMetadata, MetadataView, Topic
from kbroker.client.errors import ClientClosed, ClientError, Timeout, as_error
from kbroker.errors import ErrorCode

_NO_LEADER = _ANY_EPOCH = -1


class ProducerMetadata(MetadataView):
    """One refresh at a time, in a thread of its own, which alone uses the cluster meanwhile.

    done: called after each refresh, in that thread; with whether a broker has responded.
    """

    clock = staticmethod(time.monotonic)
    # Whether an earlier epoch of a partition's leader than the latest one is of no account.
    keeps_epochs = True

    def __init__(
        self,
        cluster: Cluster,
        pool: Appender,
        *,
        backoff: float,
        backoff_max: float,
        done: Callable[[bool], None],
    ) -> None:
        self._cluster = cluster
        self._pool = pool
        super().__init__(self.clock, backoff_s=backoff, backoff_max_s=backoff_max)
        self.subscribe(self._enter)
        self._done = done
        self._changed = threading.Condition()
        self._tracked: set[str] = set()
        self._entered: dict[str, int] = {}  # which incarnation of a topic the pool knows
        self._refused: dict[str, ClientError] = {}
        self._last_error: Exception | None = None
        self._running = False
        self._closed = False
        self.heard_at: float = self.clock()
        self.leading: frozenset[int] = frozenset()  # brokers, by the last response

    def refresh(self) -> None:
        """Ask for all topics that were sent to, now or after the pause that an error needs."""
        with self._changed:
            self._start()

    def close(self) -> None:
        """No more of it. A refresh that is under way is interrupted, and closes the cluster."""
        with self._changed:
            self._closed = True
            if self._running:
                self._cluster.interrupt()
            else:
                self._cluster.close()
            self._changed.notify_all()

    def _start(self) -> None:
        if self._closed or self._running or not self._tracked or self.clock() < self.next_at:
            return
        self._running = True
        self._begin(sorted(self._tracked))

    def _begin(self, names: list[str]) -> None:
        threading.Thread(
            target=self._refresh, args=(names,), name="kafka-producer-metadata", daemon=True
        ).start()

    def wait_for(self, topic: str, seconds: float) -> None:
        """Return when the topic's partitions are known. Raises RejectedError, Timeout, and
        ClientClosed if another thread closes the producer.
        """
        deadline = self.clock() + seconds
        with self._changed:
            self._tracked.add(topic)
            self._refused.pop(topic, None)
            while not self._pool.partition_count(topic):
                if self._closed:
                    raise ClientClosed("the producer is closed")
                refused = self._refused.pop(topic, None)
                if refused is not None and not refused.retriable:
                    self._tracked.discard(topic)
                    raise refused
                self._last_error = refused or self._last_error
                left = deadline - self.clock()
                if left <= 0:
                    last = f"{self._last_error}" if self._last_error else ""
                    raise Timeout(f"metadata of topic {topic}", seconds, last)
                self._start()
                self._changed.wait(min(left, max(self.next_at - self.clock(), 0.05)))

    def partitions(self, topic: str, seconds: float) -> list[int]:
        """The partitions of a topic."""
        if not self._pool.partition_count(topic):
            self.wait_for(topic, seconds)
        return list(range(self._pool.partition_count(topic)))

    def _refresh(self, names: list[str]) -> BaseException | None:
        """Returns why there was no response."""
        try:
            response = self._ask(names)
        except BaseException as error:
            self._ended(names, None, error)
            return error
        self._ended(names, response, None)
        return None

    def _ended(
        self, names: list[str], response: ClusterMetadata | None, error: BaseException | None
    ) -> None:
        try:
            if response is not None:
                self.take(response)
        except BaseException as unexpected:
            error = unexpected
        heard = error is None
        failure = None if error is None else as_error(error)
        if failure is not None:
            self.fail(failure)
        with self._changed:
            self._running = False
            if self._closed:
                self._cluster.close()
            if failure is not None:
                self._last_error = failure
                if isinstance(failure, ClientError) and not failure.retriable:
                    self._refused.update(dict.fromkeys(names, failure))
            self._changed.notify_all()
        self._done(heard)

    def _ask(self, names: Iterable[str]) -> ClusterMetadata:
        retry = self._cluster.retry("metadata", self._cluster.request_timeout)
        retry.attempts = self.failures
        return self._cluster.ask_metadata(names, retry, create=True)

    def _enter(self, response: ClusterMetadata | None) -> None:
        """Let the records of a response's topics go where it says."""
        if response is None:
            return
        for name, code in response.errors.items():
            # A topic that is being created is unknown for a moment; one that was deleted for good.
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._pool.set_topic(name, [], [])
            with self._changed:
                self._refused[name] = self.errors[name]
        for topic in response.topics.values():
            self._enter_topic(topic)
        self.leading = frozenset(
            part.leader
            for topic in self.topics.values()
            for part in topic.partitions.values()
            if part.leader is not None
        )

    def _enter_topic(self, topic: Topic) -> None:
        parts = list(topic.partitions.values())  # by number
        if list(topic.partitions) != list(range(len(parts))):
            return  # not a list of partitions
        with self._changed:
            self._refused.pop(topic.name, None)
        incarnation = self.incarnation(topic.name)
        self._pool.set_topic(
            topic.name,
            [_NO_LEADER if part.leader is None else part.leader for part in parts],
            [part.leader_epoch if self.keeps_epochs else _ANY_EPOCH for part in parts],
            self._entered.get(topic.name) != incarnation,
        )
        self._entered[topic.name] = incarnation
