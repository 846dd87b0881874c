"""Removes files and directories after a delay, in the background thread.

Until then they wait under a name that means nothing to a start (``.deleted``, ``-delete``). What a
stop leaves is removed by the next start.
"""

from __future__ import annotations

import heapq
import logging
import os

from kbroker.storage.background import BackgroundDisk
from kbroker.storage.files import remove_if_present, remove_tree

logger = logging.getLogger(__name__)


class DelayedDeletions:
    """Times are of the monotonic clock, in ms."""

    def __init__(self, background: BackgroundDisk) -> None:
        self._background = background
        self._waiting: list[tuple[int, int, list[str]]] = []  # a heap: due, number, paths
        self._count = 0

    def add(self, paths: list[str], due_ms: int) -> None:
        """Schedule the removal of the paths."""
        self._count += 1
        heapq.heappush(self._waiting, (due_ms, self._count, paths))

    def start_due(self, now_ms: int) -> None:
        """Submit the removals that are due."""
        while self._waiting and self._waiting[0][0] <= now_ms:
            _due, _number, paths = heapq.heappop(self._waiting)

            def job(paths: list[str] = paths) -> None:
                for path in paths:
                    if os.path.isdir(path):
                        remove_tree(path)
                    else:
                        remove_if_present(path)

            self._background.submit(job, _on_done)


def _on_done(_result: object, error: OSError | None) -> None:
    if error is not None:
        logger.warning("cannot remove a deleted file; the next start removes it: %s", error)
