"""Logs and retries files that an io worker could not open because descriptors, maps or memory ran
out, and logs writes that failed on a full disk.

Nothing is wrong with the disk then, so no log directory goes offline. Requests are rejected until
there is room, and the log says from time to time what to do.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable

from kbroker.descriptors import first_kept, open_file
from kbroker.errors import ShortageError
from kbroker.logcontext import RateLimit
from kbroker.wording import counted

logger = logging.getLogger(__name__)

# The delay before a partition that could not be opened is retried.
RETRY_MS = 5_000
# Descriptors that no log is opened with.
RESERVED = 64


class Shortages:
    """Created by the LogManager. Slots wait here whose logs could not be opened."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._lines = RateLimit()
        self._slots: set[int] = set()
        self._due_ms = 0

    def report(self, error: ShortageError) -> None:
        """A request was rejected because of the shortage."""
        count = self._lines.due(error.errno)
        if count:
            logger.error("requests are rejected for now (%d times): %s", count, error)

    def report_full_disk(self, log_dir: str, text: str) -> None:
        """An append found no room: the producer gets an error, and the operator this log line."""
        count = self._lines.due(log_dir)
        if count:
            logger.error(
                "produce requests are rejected until there is room (%s): %s",
                counted(count, "time"),
                text,
            )

    def ensure_room(self) -> None:
        """Raises ShortageError if another log would take descriptors that open ones need at times.

        They are synced, rolled, looked up and checkpointed with descriptors of a moment.
        """
        fd = open_file(os.devnull)
        os.close(fd)
        if fd >= first_kept(RESERVED):
            raise ShortageError(errno.EMFILE)

    def wait(self, slot: int) -> None:
        """Queue the log of this slot to be opened later."""
        if not self._slots:
            self._due_ms = self._monotonic_ms() + RETRY_MS
        self._slots.add(slot)

    def forget(self, slot: int) -> None:
        """The slot is open, free, or offline for another reason."""
        self._slots.discard(slot)

    def is_waiting(self, slot: int) -> bool:
        """Whether the log of this slot is to be opened later."""
        return slot in self._slots

    def due(self) -> set[int]:
        """The slots whose logs should be retried now; each waits again if that fails."""
        if not self._slots or self._monotonic_ms() < self._due_ms:
            return set()
        due, self._slots = self._slots, set()
        return due
