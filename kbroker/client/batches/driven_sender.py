"""The sender of a producer without a thread: its turns are its caller's calls.

Brokers are asked in the same calls, by the cluster that the caller has: it remembers leaders and
keeps connections for whoever comes next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from kbroker._ext.client.appender import Appender
from kbroker._ext.client.send_loop import SendLoop
from kbroker._ext.client.sent_batch import SentBatch
from kbroker.client.batches.answers import MOVED
from kbroker.client.batches.producer_metadata import ProducerMetadata
from kbroker.client.batches.sender import BatchSender
from kbroker.client.connections.cluster import Cluster, Topic
from kbroker.client.connections.connection import Connection
from kbroker.client.connections.metadata import ClusterMetadata
from kbroker.client.connections.retry import FIRST_PAUSE_S, PAUSE_MAX_S, Retry, pause_after
from kbroker.client.errors import ClientError, ConnectionLost, RejectedError, as_error
from kbroker.errors import ErrorCode

Result = TypeVar("Result")

_NEVER = (1 << 31) - 1


class DrivenSettings(dict[str, Any]):
    """Of ``BatchSender``, by Kafka's names."""

    given: frozenset[str] = frozenset()

    def __init__(self, transactional_id: str | None) -> None:
        first_ms, last_ms = FIRST_PAUSE_S * 1000, PAUSE_MAX_S * 1000
        super().__init__(
            {
                "transactional.id": transactional_id,
                "retries": _NEVER,
                "retry.backoff.ms": first_ms,
                "retry.backoff.max.ms": last_ms,
                "reconnect.backoff.ms": first_ms,
                "reconnect.backoff.max.ms": last_ms,
                "metadata.max.age.ms": 300_000,
                "receive.buffer.bytes": -1,
                "send.buffer.bytes": -1,
            }
        )


class InPlace:
    """See ``sender.BlockingCalls``: calls are made at once."""

    def run(
        self,
        what: str,
        call: Callable[[], Result],
        then: Callable[[Result | None, Exception | None], Any],
    ) -> None:
        try:
            result = call()
        except Exception as error:
            then(None, error)
        except BaseException as interruption:
            then(None, ConnectionLost(what, f"{as_error(interruption)}"))
            raise
        else:
            then(result, None)


class SharedMetadata(ProducerMetadata):
    """What a cluster knows, which others use, too; so the latest that it was told counts, whatever
    its epoch. Creates no topics.
    """

    keeps_epochs = False

    def _begin(self, names: list[str]) -> None:
        error = self._refresh(names)
        if error is not None and not isinstance(error, Exception):
            raise error  # such as an interruption of the caller

    def _ask(self, names: Iterable[str]) -> ClusterMetadata:
        retry = self._cluster.retry("metadata", self._cluster.request_timeout)
        topics = self._cluster.refresh(names, retry)
        gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ClusterMetadata(topics, {name: gone for name in names if name not in topics}, {})

    def track(self, topic: str) -> None:
        """It is sent to."""
        self._tracked.add(topic)

    def enter(self, topic: Topic) -> None:
        """A topic, as the cluster knows it."""
        self.take(ClusterMetadata({topic.name: topic}, {}, {}))

    def close(self) -> None:
        """The cluster is the caller's."""


class DrivenSender(BatchSender):
    """See ``BatchSender``. One thread at a time.

    failed: called with the first error that ends a batch, and every later one.
    """

    splits = False
    metadata: SharedMetadata

    def __init__(
        self,
        settings: DrivenSettings,
        pool: Appender,
        loop: SendLoop,
        cluster: Cluster,
        failed: Callable[[ClientError], None],
        metadata: type[SharedMetadata] = SharedMetadata,
    ) -> None:
        super().__init__(settings, pool, loop, cluster, failed, metadata)
        self.beside = InPlace()
        self._leaders_failures = 0  # in a row
        self._wait_s = 0.0
        self._enough_bytes = -1
        self._events = 0

    # -- turns

    def turn(self, seconds: float, enough_bytes: int = -1) -> int:
        """Send and receive, and decide; how much there was to decide. It waits for so long at most,
        until something has happened or only so many bytes are not acknowledged.

        An exception, such as that of an interruption, leaves each batch where it is or at its end.
        """
        self._wait_s, self._enough_bytes = seconds, enough_bytes
        self._turn()
        return self._events

    def _take_events(self, seconds: float) -> None:
        events = self._loop.run(min(seconds, self._wait_s), self._enough_bytes)
        self._events = len(events)
        for n, event in enumerate(events):
            try:
                self._take(event)
            except BaseException as error:
                for left in events[n:]:
                    self._undo(left, error)
                raise

    def _undo(self, event: tuple[Any, ...], error: BaseException) -> None:
        """Nobody has dealt with it: let the loop ask again, or fail its batches."""
        match event:
            case ("connect", node):
                self._loop.unreachable(node, 0.0)
            case ("add", parts):
                self._pool.added(parts, False)
            case ("leaders", _):
                self.later(0.0, self._loop.leaders_known)
            case _:
                self._fail_undecided(event[-1], error)

    def give_up(self) -> None:
        """What has not been sent is not sent any more; see ``unsure``."""
        self._give_up(self._loop.take_all())

    def leave(self, why: ClientError) -> None:
        """End what has not ended, and let others have the connections."""
        for node, link in list(self._links.items()):
            if not self._loop.release(node):
                self._loop.disconnect(node, str(why))
                link.close()
            self._note_closed(node)
            link.used_at = time.monotonic()
            self._cluster.give_back(node, link)
        for batch in self._loop.take_unended():
            self._loop.fail(batch, why)
        self._loop.run(0.0)  # of connections that are no more

    # -- connections

    def _on_connect(self, node: int) -> None:
        self.beside.run(
            f"connect to node {node}",
            lambda: self._borrow(node),
            lambda made, error: self._take_connection(node, made, error),
        )

    def _borrow(self, node: int) -> tuple[Connection, int]:
        connection = self._cluster.borrow(node, self._retry())
        try:
            return connection, self._version_of(connection)
        except BaseException:
            self._cluster.give_back(node, connection)
            raise

    def _on_lost(self, node: int, why: str, batches: list[SentBatch]) -> None:
        link = self._links.get(node)
        if link is not None:
            link.failed = True
            self._cluster.give_back(node, link)
        super()._on_lost(node, why, batches)

    def _retry(self) -> Retry:
        return self._cluster.retry("produce", self._cluster.request_timeout)

    # -- leaders

    def _on_leaders(self, topics: list[str]) -> None:
        for key in self._loop.leaderless():
            try:
                topic, _ = self._cluster.leader(*key, self._retry())
            except ClientError as error:
                if not error.retriable:
                    self.fail_all(error)
                    return
                by = f" (by {self._cluster.asked})" if isinstance(error, RejectedError) else ""
                self._last_errors[key] = f"{error}{by}"
            else:
                self.metadata.enter(topic)
        failures = self._leaders_failures = (
            self._leaders_failures + 1 if self._loop.leaderless() else 0
        )
        self.later(pause_after(failures) if failures else 0.0, self._loop.leaders_known)

    def _put_back(self, batch: SentBatch, error: ClientError) -> None:
        super()._put_back(batch, error)
        self._cluster.forget_topic(batch.topic)
        if error.code not in MOVED:
            self._pool.set_leader(batch.topic, batch.partition, -1, -1)

    # -- transactions

    def _added(
        self, transaction: int, parts: list[tuple[str, int]], error: Exception | None
    ) -> None:
        if not isinstance(error, ClientError) or not error.retriable:
            super()._added(transaction, parts, error)
            return
        self._last_errors.update(dict.fromkeys(parts, str(error)))
        self.later(pause_after(1), lambda: self._mark_added(transaction, parts, False))

    # -- words

    def _why_not_sent(self, batch: SentBatch) -> str:
        return self.trouble() or "it was not acknowledged"
