"""What a producer knows of its topics: refreshed beside the sender, awaited by those who send."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from kbroker._ext.client.appender import Appender
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientClosed, ClientError, RejectedError, Timeout, as_error
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.metadata import MetadataRequest

_NO_LEADER = -1


class TopicMetadata:
    """One refresh at a time, in a thread of its own, which alone uses the cluster meanwhile.

    done: called after each refresh, in that thread; with whether a broker has responded.
    """

    clock = staticmethod(time.monotonic)

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
        self._backoff = backoff
        self._backoff_max = backoff_max
        self._done = done
        self._changed = threading.Condition()
        self._tracked: set[str] = set()
        self._refused: dict[str, ClientError] = {}
        self._last_error: Exception | None = None
        self._running = False
        self._closed = False
        self._failures = 0
        self._next_at = 0.0
        self.heard_at = self.clock()  # a broker, last
        self.leading: frozenset[int] = frozenset()  # brokers, by the last response

    def refresh(self) -> None:
        """Ask for all topics that were sent to, now or after the pause that an error needs."""
        with self._changed:
            self._start()

    def close(self) -> None:
        """No more of it. A refresh that is under way closes the cluster at its end."""
        with self._changed:
            self._closed = True
            if not self._running:
                self._cluster.close()
            self._changed.notify_all()

    def _start(self) -> None:
        if self._closed or self._running or not self._tracked or self.clock() < self._next_at:
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
                self._changed.wait(min(left, max(self._next_at - self.clock(), 0.05)))

    def trouble(self) -> str:
        """Why the last refresh was in vain; empty if it was not."""
        with self._changed:
            return str(self._last_error) if self._failures and self._last_error else ""

    def partitions(self, topic: str, seconds: float) -> list[int]:
        """The partitions of a topic."""
        if not self._pool.partition_count(topic):
            self.wait_for(topic, seconds)
        return list(range(self._pool.partition_count(topic)))

    def _refresh(self, names: list[str]) -> None:
        try:
            response = self._ask(names)
        except BaseException as error:
            self._ended(names, None, error)
        else:
            self._ended(names, response, None)

    def _ended(self, names: list[str], response: Any, error: BaseException | None) -> None:
        try:
            if error is None:
                self._take(response)
        except BaseException as unexpected:
            error = unexpected
        heard = error is None
        failure: Exception | None = None
        if error is not None:
            failure = as_error(error)
        with self._changed:
            self._running = False
            if self._closed:
                self._cluster.close()
            self._failures = 0 if heard else self._failures + 1
            pause = self._backoff * 2.0 ** min(max(self._failures - 1, 0), 30)
            self._next_at = self.clock() + min(pause, self._backoff_max)
            if heard:
                self.heard_at = self.clock()
            else:
                self._last_error = failure
                if isinstance(failure, ClientError) and not failure.retriable:
                    self._refused.update(dict.fromkeys(names, failure))
            self._changed.notify_all()
        self._done(heard)

    def _ask(self, names: Iterable[str]) -> Any:
        cluster = self._cluster
        retry = cluster.retry("metadata", cluster.request_timeout)
        retry.attempts = self._failures
        connection = cluster.connection(None, retry)
        rows = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=rows, allow_auto_topic_creation=True)
        response = connection.call(request, cluster.attempt(retry))
        if response.error_code:
            raise RejectedError(response.error_code, "metadata")
        return response

    def _take(self, response: Any) -> None:
        self._cluster.adopt_brokers(response.brokers)
        for row in response.topics:
            self._take_topic(row)
        self.leading = frozenset(
            part.leader_id for row in response.topics for part in row.partitions
        )

    def _take_topic(self, row: Any) -> None:
        code = row.error_code
        if code and code != ErrorCode.LEADER_NOT_AVAILABLE:
            # A topic that is being created is unknown for a moment; one that was deleted for good.
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._pool.set_topic(row.name, [], [])
            with self._changed:
                self._refused[row.name] = RejectedError(code, f"metadata of topic {row.name}")
            return
        found = {part.partition_index: part for part in row.partitions}
        if sorted(found) != list(range(len(found))):
            return  # not a list of partitions
        parts = [found[index] for index in range(len(found))]
        leaders = [part.leader_id if part.leader_id >= 0 else _NO_LEADER for part in parts]
        with self._changed:
            self._refused.pop(row.name, None)
        self._pool.set_topic(row.name, leaders, [part.leader_epoch for part in parts])
