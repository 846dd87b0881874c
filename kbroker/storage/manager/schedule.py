"""When the recurring work of an io worker's logs is due: retention, expiry, each checkpoint."""

from __future__ import annotations

from kbroker.storage.formats import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from kbroker.storage.topic_settings import TypedSettings

RETENTION = "retention"
PRODUCER_EXPIRY = "producer expiry"

INTERVAL_KEYS = {
    RETENTION: "log.retention.check.interval.ms",
    PRODUCER_EXPIRY: "producer.id.expiration.check.interval.ms",
    RECOVERY_POINT_CHECKPOINT: "log.flush.offset.checkpoint.interval.ms",
    LOG_START_CHECKPOINT: "log.flush.start.offset.checkpoint.interval.ms",
    HIGH_WATERMARK_CHECKPOINT: "replica.high.watermark.checkpoint.interval.ms",
}


class Schedule:
    """Times are of the monotonic clock, in ms."""

    __slots__ = ("_next",)

    def __init__(self, config: TypedSettings, now: int) -> None:
        """Every task is due first after ``log.initial.task.delay.ms``, or its interval if that is
        shorter.
        """
        delay = config["log.initial.task.delay.ms"]
        self._next = {task: now + min(delay, config[key]) for task, key in INTERVAL_KEYS.items()}

    def take(self, task: str, config: TypedSettings, now: int) -> bool:
        """Whether ``task`` is due; if so it is due again one interval from now."""
        if now < self._next[task]:
            return False
        self._next[task] = now + config[INTERVAL_KEYS[task]]
        return True
