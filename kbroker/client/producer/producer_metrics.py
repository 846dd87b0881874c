"""Metrics of a producer under Java's names, from the counters of its extension.

Requests, bytes, transfers and connections are those that carry records. What is asked beside them,
for metadata and producer ids, is not counted: docs/clients.md has what differs from Java.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from kbroker._ext.client import producer_figures
from kbroker._ext.client.appender import Appender
from kbroker._ext.client.send_loop import SendLoop
from kbroker.client.monitoring.client_metrics import (
    ClientMetrics,
    Counts,
    Lately,
    MetricGroup,
    MetricNames,
    Samples,
    Values,
)
from kbroker.client.producer.sender_thread import SenderThread
from kbroker.client.settings.client_settings import ClientSettings

_PRODUCER = MetricNames(
    rates=(
        ("record-send", "acknowledged"),
        ("record-error", "failed"),
        ("record-retry", "retried"),
        ("request", "requests"),
        ("response", "responses"),
        ("outgoing-byte", "sent_bytes"),
        ("incoming-byte", "received_bytes"),
        ("network-io", "transfers"),
        ("select", "polls"),
        ("batch", "batches"),
        ("batch-split", "splits"),
        ("connection-creation", "connections_made"),
        ("connection-close", "connections_closed"),
    ),
    means=(
        ("request-latency-avg", "latency_us", "responses", 1e-3),
        ("request-size-avg", "request_bytes", "requests", 1.0),
        ("record-queue-time-avg", "queued_us", "sent_batches", 1e-3),
        ("batch-size-avg", "batch_bytes", "sent_batches", 1.0),
        ("compression-rate-avg", "compression_ppm", "measured", 1e-6),
        ("records-per-request-avg", "sent_records", "requests", 1.0),
        ("record-size-avg", "record_bytes", "records", 1.0),
        ("produce-throttle-time-avg", "throttled_ms", "responses", 1.0),
        ("io-wait-time-ns-avg", "polling_us", "polls", 1e3),
        ("io-time-ns-avg", "transferring_us", "polls", 1e3),
    ),
    maxima=(
        ("request-latency-max", "latency_us", 1e-3),
        ("request-size-max", "request_bytes", 1.0),
        ("record-queue-time-max", "queued_us", 1e-3),
        ("batch-size-max", "batch_bytes", 1.0),
        ("record-size-max", "record_bytes", 1.0),
        ("produce-throttle-time-max", "throttled_ms", 1.0),
    ),
)
_NODE = MetricNames(
    rates=(
        ("request", "requests"),
        ("response", "responses"),
        ("outgoing-byte", "sent_bytes"),
        ("incoming-byte", "received_bytes"),
    ),
    means=(
        ("request-latency-avg", "latency_us", "responses", 1e-3),
        ("request-size-avg", "request_bytes", "requests", 1.0),
    ),
    maxima=(("request-latency-max", "latency_max_us", 1e-3),),
)
_TOPIC = MetricNames(
    rates=(
        ("record-send", "acknowledged"),
        ("record-error", "failed"),
        ("record-retry", "retried"),
        ("byte", "batch_bytes"),
    ),
    means=(("compression-rate", "compression_ppm", "measured", 1e-6),),
)


class ProducerMetrics(ClientMetrics):
    """Those of ``ClientMetrics``, what the producer is at, and its metrics by node and topic."""

    def __init__(
        self,
        settings: ClientSettings,
        client_id: str,
        pool: Appender,
        loop: SendLoop,
        sender: SenderThread,
    ) -> None:
        self._pool = pool
        self._loop = loop
        self._sender = sender
        self._buffer_bytes: int = settings["buffer.memory"]
        self._by_topic = Samples(settings, lambda: producer_figures.topic_counts(pool))
        self._by_node = Samples(
            settings,
            lambda: producer_figures.node_counts(loop, False),
            lambda taken: producer_figures.node_counts(loop, taken),
        )
        super().__init__(
            settings,
            client_id,
            "producer-metrics",
            self._counts,
            _PRODUCER,
            lambda taken: producer_figures.maxima(pool, taken),
        )

    def by_node(self) -> dict[int, Values]:
        """Of each node that records were for, under the names of Java's group
        ``producer-node-metrics``.
        """
        lately = self._by_node.lately()
        return {node: row.values(_NODE) for node, row in lately.items()}

    def by_topic(self) -> dict[str, Values]:
        """Of each topic that records were sent to, under those of ``producer-topic-metrics``."""
        lately = self._by_topic.lately()
        return {topic: row.values(_TOPIC) for topic, row in lately.items()}

    def groups(self) -> Iterator[MetricGroup]:
        yield from super().groups()
        for node, values in self.by_node().items():
            yield MetricGroup("producer-node-metrics", (("node-id", f"node-{node}"),), values)
        for topic, values in self.by_topic().items():
            yield MetricGroup("producer-topic-metrics", (("topic", topic),), values)

    def _counts(self) -> Counts:
        sender = self._sender
        return self._pool.counts() | {
            "connections_made": sender.connections_made,
            "connections_closed": sender.connections_closed,
        }

    def _present(self, lately: Lately) -> Values:
        counts, since, seconds = lately.counts, lately.since, lately.seconds
        waited_ns = counts["waited_us"] * 1000
        return {
            "waiting-threads": self._pool.starved,
            "bufferpool-wait-ratio": min(1.0, since["waited_us"] / 1e6 / seconds),
            "bufferpool-wait-time-total": waited_ns,
            "bufferpool-wait-time-ns-total": waited_ns,
            "buffer-total-bytes": self._buffer_bytes,
            "buffer-available-bytes": max(0, self._buffer_bytes - self._pool.used_bytes),
            "requests-in-flight": producer_figures.in_flight(self._loop),
            "metadata-age": max(0.0, time.monotonic() - self._sender.metadata.heard_at),
            "connection-count": counts["connections_made"] - counts["connections_closed"],
            "io-wait-ratio": min(1.0, since["polling_us"] / 1e6 / seconds),
            "io-ratio": min(1.0, since["transferring_us"] / 1e6 / seconds),
            "io-wait-time-ns-total": counts["polling_us"] * 1000,
            "io-time-ns-total": counts["transferring_us"] * 1000,
        }
