"""Partitions whose state this broker has written itself, until the controller is told of them.

COMPAT: the times are Kafka's. A partition whose followers come and go is not reported each time;
the controller needs the news for its metadata only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from kbroker.cluster.control_requests import PartitionKey
from kbroker.ipc.pending import Pending

logger = logging.getLogger(__name__)

CHECK_MS = 2_500
LINGER_MS = 5_000  # after the last change
LONGEST_MS = 60_000  # after the last report, however often there are changes
# Partitions in one report: 100 bytes each in a node of at most 1 MiB.
GROUP = 5_000


class IsrReports:
    """report: writes a notification. now_ms: a monotonic clock."""

    def __init__(
        self, report: Callable[[list[PartitionKey]], Pending[None]], now_ms: Callable[[], int]
    ) -> None:
        self._report = report
        self._now_ms = now_ms
        # BOUND: the partitions that this broker leads.
        self._changed: dict[PartitionKey, None] = {}
        self._changed_ms = self._reported_ms = self._checked_ms = now_ms()

    def note(self, keys: Iterable[PartitionKey]) -> None:
        """These have changed."""
        changed = dict.fromkeys(keys)
        if changed:
            self._changed |= changed
            self._changed_ms = self._now_ms()

    def tick(self) -> None:
        """Report what is due."""
        now = self._now_ms()
        if not self._changed or now < self._checked_ms + CHECK_MS:
            return
        self._checked_ms = now
        if now < self._changed_ms + LINGER_MS and now < self._reported_ms + LONGEST_MS:
            return
        self._reported_ms = now
        changed, self._changed = list(self._changed), {}
        for first in range(0, len(changed), GROUP):
            self._send(changed[first : first + GROUP])

    def _send(self, keys: list[PartitionKey]) -> None:
        def ended(outcome: Pending[None]) -> None:
            if outcome.error is not None:
                text = "cannot report the in-sync replicas of %d partitions: %s; trying again"
                logger.warning(text, len(keys), outcome.error)
                self._changed |= dict.fromkeys(keys)

        self._report(keys).then(ended)
