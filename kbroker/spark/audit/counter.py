"""Counts what an application publishes or consumes, as messages for the audit topic.

A message says that its sender, as a ``tier``, has seen ``count`` records of a topic whose own times
fall into one bucket. Messages of a sender add up; each has a ``guid``, so that one which arrives
twice counts once. Needs no client: the application sends what ``take`` returns with its own.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from collections.abc import Callable

BUCKET_MS = 600_000
AUDIT_TOPIC = "kbroker-audit"


class AuditCounter:
    """Thread-safe. BOUND: one number for each topic and bucket that was not taken yet."""

    def __init__(
        self,
        tier: str,
        application: str,
        *,
        bucket_ms: int = BUCKET_MS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._about = {"tier": tier, "application": application, "host": socket.gethostname()}
        self._bucket_ms = bucket_ms
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, int], int] = {}

    def add(self, topic: str, time_ms: int, count: int = 1) -> None:
        """Records of that time (theirs, not that of the call) were published or consumed."""
        bucket = max(0, time_ms) // self._bucket_ms * self._bucket_ms
        with self._lock:
            key = (topic, bucket)
            self._counts[key] = self._counts.get(key, 0) + count

    def take(self) -> list[bytes]:
        """A message for each topic and bucket that has counts; counting begins anew."""
        with self._lock:
            counts, self._counts = self._counts, {}
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
