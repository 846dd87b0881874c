"""A compaction of a log in this process: the steps of the cleaner and the io worker."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kbroker.record.batch import RecordBatch, iterate_batches
from kbroker.storage.cleaning.cleaner import (
    CleaningLimits,
    CleaningStats,
    LogCleaning,
    read_aborted,
)
from kbroker.storage.cleaning.cleaner_policy import CleanableSegment, group_segments
from kbroker.storage.cleaning.segment_swap import SegmentSwap
from kbroker.storage.log.partition_log import PartitionLog

DAY_MS = 86_400_000
# For a compacted topic with the index sizes of ``limits``; ``segment.bytes`` is the test's.
CONFIG = {
    "cleanup.policy": ("compact",),
    "index.interval.bytes": 150,
    "segment.index.bytes": 4096,
    "file.delete.delay.ms": 0,
}
STEPS_MAX = 40


def limits(**changes: Any) -> CleaningLimits:
    defaults = CleaningLimits(
        map_bytes=1 << 20,
        map_load_factor=0.9,
        read_bytes=4096,
        decompressed_bytes_max=1 << 20,
        delete_retention_ms=DAY_MS,
        index_bytes_max=4096,
        index_interval_bytes=150,
    )
    return defaults._replace(**changes)


def sealed(log: PartitionLog) -> list[CleanableSegment]:
    return [
        CleanableSegment(s.base_offset, s.next_offset, s.size, _size(s.path(".index")))
        for s in log.segments[:-1]
    ]


def _size(path: str) -> int:
    return os.stat(path).st_size if os.path.exists(path) else 0


def cleanable_end(log: PartitionLog) -> int:
    """The base offset of the first segment that may not be compacted."""
    bases = [s.next_offset for s in log.segments[:-1] if s.next_offset <= log.last_stable_offset]
    return max(bases, default=log.segments[0].base_offset)


class Compaction:
    """The result of one pass: ``end`` is the next checkpoint."""

    def __init__(self, log: PartitionLog, *, first_dirty: int = 0, now_ms: int, **changes: Any):
        self.log = log
        self.first_dirty = first_dirty
        self.now_ms = now_ms
        self.segment_bytes = changes.pop("segment_bytes", log.settings.segment_bytes)
        self.limits = limits(**changes)
        self.end = first_dirty
        self.stats: CleaningStats | None = None
        self.unchanged = 0

    def steps(self) -> Iterator[str]:
        """Each change after which a crash may happen."""
        log, stop = self.log, cleanable_end(self.log)
        segments = sealed(log)
        bases = [s.base_offset for s in log.segments]
        job = LogCleaning(
            log.path,
            self.limits,
            read_aborted(log.path, bases, stop),
            now_ms=self.now_ms,
            on_bytes=lambda _count: None,
        )
        end = job.build_map(segments, self.first_dirty, stop)
        groups = group_segments(
            segments, min(end, stop), segment_bytes=self.segment_bytes, index_bytes=4096
        )
        for group in groups:
            producers = {
                entry.producer_id: (
                    entry.recent_batches[-1][3] if entry.last_sequence_number >= 0 else -1,
                    entry.producer_epoch,
                )
                for entry in log.producers()
            }
            cleaned = job.clean_group(group, producers)
            yield "cleaned"
            if not cleaned.changed:
                self.unchanged += 1
                continue
            swap = SegmentSwap(
                log,
                base_offset=cleaned.base_offset,
                size=cleaned.size,
                largest_timestamp=cleaned.largest_timestamp,
                replaced=[(s.base_offset, s.size) for s in group],
                cuts=log.cuts,
            )
            swap.check()
            yield from swap.prepare_steps()
            yield from swap.commit_steps()
            yield "swapped"
        self.stats = job.finish()
        self.end = end

    def run(self, on_step: Callable[[str], None] = lambda _step: None) -> Compaction:
        for step in self.steps():
            on_step(step)
        return self

    def crash(self, draw: random.Random) -> None:
        """Stop after a random step, as if everything had been killed: no checkpoint is written."""
        steps = self.steps()
        for _ in range(draw.randint(1, STEPS_MAX)):
            if next(steps, None) is None:
                break
        steps.close()


def compact(log: PartitionLog, *, first_dirty: int = 0, now_ms: int, **changes: Any) -> Compaction:
    """Compact everything possible; ``end`` of the result is the next ``first_dirty``."""
    if cleanable_end(log) <= first_dirty:
        return Compaction(log, first_dirty=first_dirty, now_ms=now_ms, **changes)
    return Compaction(log, first_dirty=first_dirty, now_ms=now_ms, **changes).run()


def stored_batches(log: PartitionLog) -> list[RecordBatch]:
    """Every batch of the files, checked, oldest first."""
    found: list[RecordBatch] = []
    for segment in log.segments:
        data = Path(segment.path(".log")).read_bytes()[: segment.size]
        for batch in iterate_batches(data):
            batch.check()
            assert segment.base_offset <= batch.base_offset
            assert batch.last_offset < max(segment.next_offset, log.log_end_offset)
            assert not found or batch.base_offset > found[-1].last_offset
            found.append(batch)
    return found
