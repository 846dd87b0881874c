"""Metrics of a producer under Java's names, from the counters of its extension."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Any, NamedTuple

from kbroker._ext.client.appender import Appender
from kbroker.client.client_settings import Settings

logger = logging.getLogger(__name__)

# name, counter: per second over the samples, and since the start.
_RATES = (
    ("record-send", "acknowledged"),
    ("record-error", "failed"),
    ("record-retry", "retried"),
    ("request", "requests"),
    ("outgoing-byte", "sent_bytes"),
    ("batch", "batches"),
)
# name, what is counted, of what it is the mean, factor.
_MEANS = (
    ("request-latency-avg", "latency_us", "requests", 1e-3),
    ("record-queue-time-avg", "queued_us", "batches", 1e-3),
    ("batch-size-avg", "sent_bytes", "batches", 1.0),
    ("records-per-request-avg", "records", "requests", 1.0),
    ("record-size-avg", "record_bytes", "records", 1.0),
)


class Metric(NamedTuple):
    """What a reporter is told of. value: a call that returns the present one."""

    name: str
    group: str
    tags: dict[str, str]
    value: Any


class ProducerMetrics:
    """Rates and means are of the last samples: ``metrics.num.samples`` of the length
    ``metrics.sample.window.ms``.

    A sample begins with the first call of ``values`` after the last one's window is over.
    """

    def __init__(self, settings: Settings, client_id: str, pool: Appender) -> None:
        self._pool = pool
        self._buffer_bytes: int = settings["buffer.memory"]
        self._window_s: float = settings["metrics.sample.window.ms"] / 1000
        self._lock = threading.Lock()
        self._samples: deque[tuple[float, dict[str, int]]] = deque(
            maxlen=settings["metrics.num.samples"]
        )
        self._samples.append((time.monotonic(), pool.counts()))
        self._reporters = settings["metric.reporters"]
        tags = {"client-id": client_id}
        made = [
            Metric(name, "producer-metrics", tags, lambda name=name: self.values()[name])
            for name in self.values()
        ]
        for reporter in self._reporters:
            self._tell(reporter, "init", made)
            for metric in made:
                self._tell(reporter, "metric_change", metric)

    def values(self) -> dict[str, float]:
        """The present values."""
        now, counts = time.monotonic(), self._pool.counts()
        with self._lock:
            began, before = self._samples[0]
            if now - self._samples[-1][0] >= self._window_s:
                self._samples.append((now, counts))
        seconds = max(now - began, 1e-3)
        since = {name: counts[name] - before[name] for name in counts}
        found: dict[str, float] = {}
        for name, counter in _RATES:
            found[f"{name}-total"] = counts[counter]
            found[f"{name}-rate"] = since[counter] / seconds
        for name, counted, of, factor in _MEANS:
            found[name] = factor * since[counted] / since[of] if since[of] else 0.0
        found["request-latency-max"] = counts["latency_max_us"] / 1e3
        found["bufferpool-wait-ratio"] = min(1.0, since["waited_us"] / 1e6 / seconds)
        found["buffer-total-bytes"] = self._buffer_bytes
        found["buffer-available-bytes"] = max(0, self._buffer_bytes - self._pool.used_bytes)
        return found

    def close(self) -> None:
        """Tell the reporters that there will be no more."""
        for reporter in self._reporters:
            if hasattr(reporter, "close"):
                self._tell(reporter, "close")

    @staticmethod
    def _tell(reporter: Any, what: str, *arguments: Any) -> None:
        try:
            getattr(reporter, what)(*arguments)
        except Exception:
            logger.exception("%s of metric reporter %r raised an error", what, reporter)
