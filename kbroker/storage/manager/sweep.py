"""Sweeps all logs of an io worker: deletes segments past their retention and expires producers.

Runs in the worker's loop, a slice at a time, so that requests are answered in between.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping

from kbroker.clock import Clock, ClockGuard
from kbroker.errors import StorageError
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.storage.manager.schedule import INTERVAL_KEYS, PRODUCER_EXPIRY, RETENTION, Schedule
from kbroker.storage.retention import RetentionPolicy
from kbroker.storage.topic_settings import TypedSettings

logger = logging.getLogger(__name__)

# BOUND: the length of a slice, except for its last log; and the time between slices.
SLICE_MS = 5
SLICE_EVERY_MS = 10 * SLICE_MS


class Sweep:
    """Made by the log manager. Times are of the monotonic clock."""

    def __init__(
        self,
        clock: Clock,
        logs: Mapping[int, PartitionLog],
        on_failure: Callable[[PartitionLog, StorageError | OSError | ValueError], None],
    ) -> None:
        """logs: returns the open logs. on_failure: called with an operation that a log failed."""
        self._clock = clock
        self._clock_guard = ClockGuard(clock.now_ms, clock.monotonic_ms)
        self._logs = logs
        self._on_failure = on_failure
        self._waiting: deque[PartitionLog] = deque()
        self._with_retention = False
        self._by_time = False
        self._due_ms = 0

    @property
    def next_slice_ms(self) -> int | None:
        """The time of the next slice; None while it rests."""
        return self._due_ms if self._waiting else None

    def begin_if_due(self, schedule: Schedule, config: TypedSettings) -> None:
        """Queue every log when retention or the expiry of producers is due, unless it is at it."""
        if self._waiting:
            return
        monotonic = self._clock.monotonic_ms()
        retention = schedule.take(RETENTION, config, monotonic)
        if not schedule.take(PRODUCER_EXPIRY, config, monotonic) and not retention:
            return
        self._with_retention = retention
        keys = (INTERVAL_KEYS[RETENTION], INTERVAL_KEYS[PRODUCER_EXPIRY])
        trusted = self._clock_guard.is_trusted(min(config[key] for key in keys))
        if self._by_time and not trusted:
            logger.warning(
                "the wall clock jumped; retention by time is suspended until it is stable"
            )
        self._by_time = trusted
        self._waiting.extend(self._logs.values())

    def do_slice(self, config: TypedSettings) -> list[int]:
        """Continue for SLICE_MS; returns the slots whose log start offset has advanced."""
        began_ms = self._clock.monotonic_ms()
        changed = []
        while self._waiting:
            log = self._waiting.popleft()
            if self._logs.get(log.slot) is not log:
                continue
            try:
                # The clock may jump before the last log's turn comes.
                if self._look_at(log, self._clock_guard.wall_ms, config):
                    changed.append(log.slot)
            except (StorageError, OSError, ValueError) as error:
                self._on_failure(log, error)
            if self._clock.monotonic_ms() >= began_ms + SLICE_MS:
                break
        self._due_ms = began_ms + SLICE_EVERY_MS
        return changed

    def _look_at(self, log: PartitionLog, now_ms: int, config: TypedSettings) -> bool:
        """Whether something was deleted.

        The checkpoint of log starts may wait for its time: a log that is opened begins at its first
        segment at the earliest.
        """
        if self._by_time:
            log.appender.expire_producers(now_ms, config["producer.id.expiration.ms"])
        if not self._with_retention:
            return False
        settings = log.settings
        policy = RetentionPolicy(
            delete=settings.delete,
            retention_ms=settings.retention_ms if self._by_time else None,
            retention_bytes=settings.retention_bytes,
        )
        return log.delete_old_segments(policy, now_ms) > 0
