"""What a consumer knows of topics and brokers, refreshed beside the thread that polls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.metadata import ClusterMetadata, MetadataView
from kbroker.client.consumer.lanes import Lane
from kbroker.client.settings.client_settings import ClientSettings

logger = logging.getLogger(__name__)
_TELL_AFTER_S = 5.0
_TELL_AGAIN_S = 30.0


class ConsumerMetadata(MetadataView):
    """All of it belongs to the thread that polls. changed: called there after a response."""

    def __init__(
        self,
        lane: Lane,
        settings: ClientSettings,
        changed: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        backoff_s: float = settings["retry.backoff.ms"] / 1000
        backoff_max_s = max(settings["retry.backoff.max.ms"] / 1000, backoff_s)
        super().__init__(clock, backoff_s=backoff_s, backoff_max_s=backoff_max_s)
        self.subscribe(self._heard)
        self.subscribe(lambda response: changed())
        self._lane = lane
        self._create = settings["allow.auto.create.topics"]
        self._age_s: float = settings["metadata.max.age.ms"] / 1000
        self._request_s: float = settings["request.timeout.ms"] / 1000
        self.created_at = self._clock()
        self._tracked: frozenset[str] | None = frozenset()
        self._wanted = True
        self._running = False
        self._told_at = 0.0

    def track(self, names: Iterable[str] | None) -> None:
        """Ask for these topics from now on, and for no others. None: for all."""
        tracked = None if names is None else frozenset(names)
        if tracked is None:
            self._wanted = self._wanted or self._tracked is not None
        elif self._tracked is None or not tracked <= self._tracked or tracked - self.topics.keys():
            self._wanted = True
        self._tracked = tracked

    def want(self) -> None:
        """What is known is wrong or too old."""
        self._wanted = True

    def maintain(self, now: float) -> None:
        """Begin a refresh, if one is due."""
        aged = self.heard_at is not None and now - self.heard_at >= self._age_s
        if self._running or now < self.next_at or not (self._wanted or aged):
            return
        self._running, self._wanted = True, False
        names = None if self._tracked is None else sorted(self._tracked)
        failures = self.failures
        self._lane.run(
            lambda cluster, seconds: ask(cluster, names, self._create, seconds, failures),
            "metadata",
            self._request_s,
            self._take,
        )

    def due_in(self, now: float) -> float:
        """Seconds until ``maintain`` has something to do."""
        if self._running:
            return float("inf")
        if self._wanted:
            return max(0.0, self.next_at - now)
        return (
            float("inf") if self.heard_at is None else max(0.0, self.heard_at + self._age_s - now)
        )

    def _take(self, response: ClusterMetadata | None, error: Exception | None) -> None:
        self._running = False
        if response is None:
            self.fail(error)
        else:
            self.take(response)

    def _heard(self, response: ClusterMetadata | None) -> None:
        if response is None:
            self._wanted = True
            self._warn()
        elif any(error.retriable for error in self.errors.values()):
            self._wanted = True  # such as a topic that is being created

    def _warn(self) -> None:
        now = self._clock()
        silent_s = now - (self.heard_at or self.created_at)
        if silent_s >= _TELL_AFTER_S and now - self._told_at >= _TELL_AGAIN_S:
            self._told_at = now
            logger.warning("no metadata for %.0f s: %s; asking again", silent_s, self.trouble)


def ask(
    cluster: Cluster,
    names: list[str] | None,
    create: bool,
    seconds: float | None = None,
    failures: int = 0,
) -> ClusterMetadata:
    """Metadata of topics, None: of all. One attempt, which may take longer the more have failed.
    Raises ClientError.
    """
    retry = cluster.retry("metadata", cluster.request_timeout if seconds is None else seconds)
    retry.attempts = failures
    return cluster.ask_metadata(names, retry, create=create)
