"""Writes the leader epochs of logs a moment after they have begun.

A broker that comes to lead hundreds of partitions at once answers for them first: on ext4, to
replace the file of each takes a third of a millisecond, in which none of the others is led. Runs in
the io worker's loop, a few files at each tick.

Until an epoch is written, a crash costs nothing: recovery finds in the log what has been written in
it, and an epoch without records is none. INVARIANT: what recovery does not walk has its epochs on
disk. So they are written before a recovery point is, and before a log is closed or moved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kbroker.storage.log.partition_log import PartitionLog

# When an epoch is written at the earliest: a broker that stops has handed over all by then.
DELAY_MS = 5_000
# For how many files, and for how long, one tick may hold up the loop. A busy disk may take as long
# for one file.
FILES_AT_ONCE = 16
SLICE_MS = 5


class Due(NamedTuple):
    at_ms: int
    log: PartitionLog


class EpochWrites:
    """on_failure: called with a log whose epochs cannot be written."""

    def __init__(
        self,
        monotonic_ms: Callable[[], int],
        on_failure: Callable[[PartitionLog, OSError], object],
    ) -> None:
        self._monotonic_ms = monotonic_ms
        self._on_failure = on_failure
        self._due: deque[Due] = deque()

    def add(self, log: PartitionLog) -> None:
        """An epoch has begun."""
        self._due.append(Due(self._monotonic_ms() + DELAY_MS, log))

    def write_due(self) -> None:
        """Write a few that are due."""
        begun_ms, left = self._monotonic_ms(), FILES_AT_ONCE
        while left and self._due and self._due[0].at_ms <= begun_ms:
            left -= self._write(self._due.popleft().log)
            if self._monotonic_ms() >= begun_ms + SLICE_MS:
                return

    @property
    def is_waiting(self) -> bool:
        """Whether epochs have begun that may not be in their files."""
        return bool(self._due)

    def write_all(self) -> None:
        """Write all, before recovery points are written: without a bound to the time it takes."""
        due, self._due = self._due, deque()
        for _, log in due:
            self._write(log)

    def _write(self, log: PartitionLog) -> int:
        if log.appender.closed or not log.epochs.is_behind:
            return 0
        try:
            log.epochs.write()
        except OSError as error:
            self._on_failure(log, error)
        return 1
