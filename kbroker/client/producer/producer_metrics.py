"""Metrics of a producer under Java's names, from the counters of its extension."""

from __future__ import annotations

from kbroker._ext.client.appender import Appender
from kbroker.client.client_metrics import ClientMetrics
from kbroker.client.client_settings import Settings

# name, counter: per second over the samples, and since the start.
_RATES = (
    ("record-send", "acknowledged"),
    ("record-error", "failed"),
    ("record-retry", "retried"),
    ("request", "requests"),
    ("outgoing-byte", "sent_bytes"),
    ("batch", "batches"),
    ("batch-split", "splits"),
)
# name, what is counted, of what it is the mean, factor.
_MEANS = (
    ("request-latency-avg", "latency_us", "requests", 1e-3),
    ("record-queue-time-avg", "queued_us", "batches", 1e-3),
    ("batch-size-avg", "sent_bytes", "batches", 1.0),
    ("records-per-request-avg", "records", "requests", 1.0),
    ("record-size-avg", "record_bytes", "records", 1.0),
)


class ProducerMetrics(ClientMetrics):
    """Those of ``ClientMetrics``, and what the buffer is at."""

    def __init__(self, settings: Settings, client_id: str, pool: Appender) -> None:
        self._pool = pool
        self._buffer_bytes: int = settings["buffer.memory"]
        super().__init__(settings, client_id, "producer-metrics", pool.counts, _RATES, _MEANS)

    def _present(self, since: dict[str, int], seconds: float) -> dict[str, float]:
        return {
            "request-latency-max": self._pool.counts()["latency_max_us"] / 1e3,
            "bufferpool-wait-ratio": min(1.0, since["waited_us"] / 1e6 / seconds),
            "buffer-total-bytes": self._buffer_bytes,
            "buffer-available-bytes": max(0, self._buffer_bytes - self._pool.used_bytes),
        }
