"""Counts what an application publishes or consumes, as messages for the audit topic.

A message says that its sender, as a ``tier``, has seen ``count`` records of a topic whose own times
fall into one bucket. Messages of a sender add up; each has a ``guid``, so that one which arrives
twice counts once. Needs no client: the application sends what ``take`` returns with its own, every
minute or so::

    counter = AuditCounter("producer", "shop", send=lambda texts: send_all("kbroker-audit", texts))
    counter.add("clicks", record_time_ms)
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable

BUCKET_MS = 600_000
# BOUND: a day. Readers ignore messages with a larger bucket.
BUCKET_MS_MAX = 86_400_000
AUDIT_TOPIC = "kbroker-audit"
# BOUND: topics times buckets that wait to be taken.
COUNTS_MAX = 10_000

logger = logging.getLogger(__name__)


class AuditCounter:
    """Thread-safe.

    bucket_ms: ``BUCKET_MS_MAX`` at most. send: takes messages, as ``take`` returns them; called in
    the thread that adds a count when ``counts_max`` others are waiting. Without it such a count is
    dropped, and counted in ``dropped``.
    """

    def __init__(
        self,
        tier: str,
        application: str,
        *,
        bucket_ms: int = BUCKET_MS,
        send: Callable[[list[bytes]], None] | None = None,
        counts_max: int = COUNTS_MAX,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not 0 < bucket_ms <= BUCKET_MS_MAX:
            raise ValueError(f"bucket_ms is {bucket_ms}, and must be 1 to {BUCKET_MS_MAX}")
        self._about = {"tier": tier, "application": application, "host": socket.gethostname()}
        self._bucket_ms = bucket_ms
        self._send = send
        self._counts_max = counts_max
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, int], int] = {}
        self.dropped = 0

    def add(self, topic: str, time_ms: int, count: int = 1) -> None:
        """Records of that time (theirs, not that of the call) were published or consumed."""
        bucket = max(0, time_ms) // self._bucket_ms * self._bucket_ms
        key = (topic, bucket)
        full: dict[tuple[str, int], int] = {}
        with self._lock:
            if key not in self._counts and len(self._counts) >= self._counts_max:
                if self._send is None:
                    self._drop(count)
                    return
                full, self._counts = self._counts, {}
            self._counts[key] = self._counts.get(key, 0) + count
        if full and self._send is not None:
            self._send(self._messages(full))

    def _drop(self, count: int) -> None:
        if not self.dropped:
            logger.warning(
                "dropping counts: %d are waiting to be taken; call take() more often, or pass send",
                len(self._counts),
            )
        self.dropped += count

    def take(self) -> list[bytes]:
        """A message for each topic and bucket that has counts; counting starts over."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return self._messages(counts)

    def _messages(self, counts: dict[tuple[str, int], int]) -> list[bytes]:
        now = int(self._clock() * 1000)
        return [
            json.dumps(
                self._about
                | {
                    "time": now,
                    "topic": topic,
                    "bucket_start": bucket,
                    "bucket_end": bucket + self._bucket_ms,
                    "guid": uuid.uuid4().hex,
                    "count": count,
                }
            ).encode()
            for (topic, bucket), count in sorted(counts.items())
        ]
