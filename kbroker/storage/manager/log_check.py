"""Checks logs from before the start in the background, and records damaged segments.

Runs in the worker's loop; a thread reads. Each log is checked from the newest segment that has not
been checked towards the oldest, and the slot follows (``LogTail.set_checked_from``): what lies
before that place, network processes check before they first send it. They report here what they
find. Each damaged segment is said once. docs/decisions/0010-checked-before-sent.md has the reasons.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

from kbroker._ext.log.log_scan import DAMAGED, Scan, scan_segment
from kbroker.storage.background import BackgroundDisk
from kbroker.storage.files import read_if_present
from kbroker.storage.formats import INDEX_SUFFIX, LOG_SUFFIX, segment_name
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.storage.segments.segment import Segment
from kbroker.types import NO_OFFSET, Offset

logger = logging.getLogger(__name__)

RATE_KEY = "log.check.io.max.bytes.per.second"
# BOUND: bytes per job, except for a larger batch. A shutdown waits for the job in progress.
SLICE_BYTES = 4 << 20
# Time lost in a longer pause is not made up for.
SAVED_MS = 2_000
NOWHERE = (NO_OFFSET, 0, NO_OFFSET)
ENTRY = struct.Struct(">ii")


class Walked(NamedTuple):
    """is_all: the walk reached the end. problem: of the following data, or what is missing."""

    scan: Scan
    is_all: bool
    problem: str | None


class Walk(NamedTuple):
    """A piece of a segment to walk: from ``position``, where ``next_offset`` is the lowest
    possible, up to ``end``. limit: upper bound of the segment's offsets. gapless: none is missing.
    is_sealed: the segment ends at ``end``.
    """

    segment: Segment
    position: int
    next_offset: Offset
    end: int
    size: int
    limit: int
    gapless: bool
    is_sealed: bool

    @classmethod
    def of(cls, log: PartitionLog, at: tuple[Offset, int, Offset], size: int) -> Walk:
        """About ``size`` bytes of the log's segment, position and offset ``at``."""
        base, position, next_offset = at
        segment = next(one for one in log.segments if one.base_offset == base)
        checked, end = log.appender.checked_from
        if base != checked:
            end = segment.size
        is_active = segment is log.segments.active
        limit = log.log_end_offset if is_active else segment.next_offset
        # Data that the owner has appended after this point is not part of the walk.
        is_sealed = not is_active and end == segment.size
        gapless = log.is_gapless
        return cls(segment, position, next_offset, end, size, limit, gapless, is_sealed)

    def run(self) -> Walked:
        """Walk at least one batch, in any thread. Raises OSError."""
        size = self.size
        fd = self.segment.open_log()
        try:
            while True:
                stop = min(self.end, self.position + size)  # which may lie inside a batch
                scan = scan_segment(
                    fd,
                    self.segment.base_offset,
                    stop,
                    position=self.position,
                    next_offset=self.next_offset,
                    offset_limit=self.limit,
                    contiguous=self.gapless,
                )
                if stop == self.end or scan.out_of_order:
                    return Walked(scan, True, self._problem(scan))
                if scan.batch_count:
                    return Walked(scan, False, None)
                size *= 2
        finally:
            os.close(fd)

    def _problem(self, scan: Scan) -> str | None:
        if scan.stop == DAMAGED:
            return scan.problem
        if not self.is_sealed:
            return None
        if self.gapless and scan.next_offset < self.limit:
            return f"ends at offset {scan.next_offset}, but the next segment begins at {self.limit}"
        entries = read_if_present(self.segment.path(INDEX_SUFFIX)) or b""
        last = entries[: len(entries) - len(entries) % ENTRY.size].rstrip(b"\0")
        if last:
            at = (len(last) - 1) // ENTRY.size * ENTRY.size
            _, indexed = ENTRY.unpack_from(entries, at)
            if indexed >= self.segment.size:
                return f"its index has an entry for position {indexed}"
        return None


class LogCheck:
    """Made by the log manager. Times are of the monotonic clock."""

    def __init__(
        self,
        logs: Mapping[int, PartitionLog],
        monotonic_ms: Callable[[], int],
        rate: Callable[[], int],
        *,
        inline: bool,
    ) -> None:
        """logs: the open ones, at any time. rate: of this worker, in bytes per second."""
        self._logs = logs
        self._monotonic_ms = monotonic_ms
        self._rate = rate
        self._disk = BackgroundDisk(inline=inline)
        self._waiting: list[PartitionLog] = []
        self._is_running = False
        # State of the check in progress: segment, position and offset at which to continue.
        self._at = NOWHERE
        # Whether a segment newer than the one being checked is damaged: the slot cannot follow.
        self._is_held = False
        self._began_ms = monotonic_ms()
        # Segments by slot; a reopened log starts without.
        self._damaged: dict[int, tuple[PartitionLog, set[int]]] = {}

    # ---- what is damaged ----

    @property
    def damaged_count(self) -> int:
        """Damaged segments of logs that are open and still have them."""
        count = 0
        for slot, (log, bases) in list(self._damaged.items()):
            if self._logs.get(slot) is not log:
                del self._damaged[slot]
                continue
            present = {segment.base_offset for segment in log.segments}
            count += len(bases & present)
        return count

    def damage_found(self, log: PartitionLog, segment: int, position: int, what: str) -> None:
        """Log the damage, once per segment."""
        known, bases = self._damaged.get(log.slot, (log, set[int]()))
        if known is not log:
            bases = set()
        self._damaged[log.slot] = (log, bases)
        if segment in bases:
            return
        bases.add(segment)
        logger.error(
            "%s: damaged at position %d: %s; readers get CORRUPT_MESSAGE there",
            os.path.join(log.path, segment_name(segment, LOG_SUFFIX)),
            position,
            what,
        )

    # ---- the check ----

    def opened(self, log: PartitionLog) -> None:
        """A log was opened that may have unchecked batches."""
        if log.appender.checked_from > (log.segments[0].base_offset, 0):
            self._waiting.append(log)

    def turn(self) -> None:
        """Continue if it is time; called in each tick."""
        self._disk.collect()
        now_ms, rate = self._monotonic_ms(), self._rate()
        allowed = rate * min(now_ms - self._began_ms, SAVED_MS) // 1000
        if self._is_running or not self._waiting or rate <= 0:
            self._began_ms = now_ms
        elif allowed > 0:
            self._began_ms = now_ms
            self._check(min(allowed, SLICE_BYTES))

    def _check(self, size: int) -> None:
        log = self._waiting[0]
        if self._logs.get(log.slot) is not log or not self._find(log):
            self._next_log()
            return
        walk = Walk.of(log, self._at, size)
        version = _version(log)
        self._is_running = True

        def on_done(result: object, error: OSError | None) -> None:
            self._is_running = False
            if self._logs.get(log.slot) is not log:
                return
            if _version(log) != version or error is not None:
                self._at = NOWHERE  # replaced or removed files; readers report a bad disk
                self._is_held |= error is not None
            else:
                self._walked(log, walk, cast(Walked, result))

        self._disk.submit(walk.run, on_done)

    def _find(self, log: PartitionLog) -> bool:
        """Whether there is anything left to check in this log; ``_at`` is the position."""
        if self._at == NOWHERE:
            place = log.appender.checked_from
            older = [one.base_offset for one in log.segments if (one.base_offset, 0) < place]
            if not older or self._is_held:
                return False
            self._at = older[-1], 0, older[-1]
        return any(one.base_offset == self._at[0] for one in log.segments)

    def _walked(self, log: PartitionLog, walk: Walk, walked: Walked) -> None:
        base = walk.segment.base_offset
        if not walked.is_all:
            self._at = base, walked.scan.end_position, walked.scan.next_offset
            return
        if walked.problem is not None:
            self.damage_found(log, base, walked.scan.end_position, walked.problem)
        # Bytes after the last batch are not sent, so they need no check.
        self._is_held |= walked.problem is not None or walked.scan.end_position < walk.end
        if not self._is_held:
            log.is_checked_from(base, 0)
        older = [one.base_offset for one in log.segments if one.base_offset < base]
        if older:
            self._at = older[-1], 0, older[-1]
        else:
            self._next_log()

    def _next_log(self) -> None:
        self._waiting.pop(0)
        self._at = NOWHERE
        self._is_held = False

    def close(self) -> None:
        """Wait for the job that is under way."""
        self._disk.close()
        self._waiting.clear()


def _version(log: PartitionLog) -> tuple[int, int, str]:
    """A value that changes when segments of the log are replaced."""
    return log.exchanges, log.cuts, log.path
