"""Which logs to compact, how far, and in which groups. Pure decisions of the cleaner.

Terms are Kafka's: the clean section ends at the first dirty offset, where the last compaction
ended. The dirty section goes from there to the first uncleanable offset. The log with the highest
ratio of dirty bytes to all bytes below that offset comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.storage.topic_settings import NO_LIMIT
from kbroker.types import FIRST_OFFSET, Offset

RELATIVE_OFFSET_MAX = (1 << 31) - 1
# BOUND: segments merged at a time; the owner of the log renames the files of all in one turn.
GROUP_SEGMENTS_MAX = 64


class CleanableSegment(NamedTuple):
    """A sealed segment. next_offset: base offset of the segment after it.

    Timestamps are those of the newest record and of the first batch; -1 if they were not needed.
    """

    base_offset: Offset
    next_offset: Offset
    size: int
    index_bytes: int
    largest_timestamp: int = -1
    first_timestamp: int = -1


class CompactionRules(NamedTuple):
    """The settings of a topic that determine when it is compacted."""

    dirty_ratio_min: float
    lag_ms_min: int
    lag_ms_max: int


class DirtyRange(NamedTuple):
    """The range of a log that may be compacted.

    first_dirty, end: offsets; ``end`` is the base of the first segment that may not be touched.
    delay_ms: by how much ``max.compaction.lag.ms`` is exceeded. is_reset: the checkpoint was of no
    use.
    """

    first_dirty: Offset
    end: Offset
    clean_bytes: int
    dirty_bytes: int
    delay_ms: int
    is_reset: bool

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, rules: CompactionRules) -> bool:
        """Whether the log is dirty enough, or has waited for too long."""
        if self.delay_ms > 0 and self.dirty_bytes > 0:
            return True
        return self.ratio > rules.dirty_ratio_min


def dirty_range(
    segments: Sequence[CleanableSegment],
    checkpoint: Offset | None,
    rules: CompactionRules,
    now_ms: int,
    *,
    log_start_offset: Offset,
    log_end_offset: Offset,
    last_stable_offset: Offset,
) -> DirtyRange:
    """The part of a log that may be compacted.

    segments: every sealed one, in order. checkpoint: where the last compaction ended, None if there
    was none. Never past the last stable offset, nor into a segment with a record younger than
    ``lag_ms_min``, nor into the active one.
    """
    first_dirty = log_start_offset if checkpoint is None else checkpoint
    is_reset = not log_start_offset <= first_dirty <= log_end_offset
    if is_reset:
        first_dirty = log_start_offset
    end = FIRST_OFFSET
    for segment in segments:
        end = segment.base_offset
        if segment.next_offset > last_stable_offset:
            break
        is_young = segment.largest_timestamp > now_ms - rules.lag_ms_min
        if rules.lag_ms_min > 0 and is_young and segment.next_offset > first_dirty:
            break
        end = segment.next_offset
    clean_bytes = dirty_bytes = delay_ms = 0
    for segment in segments:
        if segment.base_offset >= end:
            break
        if segment.next_offset <= first_dirty:
            clean_bytes += segment.size
            continue
        dirty_bytes += segment.size
        if rules.lag_ms_max < NO_LIMIT and segment.first_timestamp > 0:
            delay_ms = max(delay_ms, now_ms - rules.lag_ms_max - segment.first_timestamp)
    return DirtyRange(first_dirty, end, clean_bytes, dirty_bytes, delay_ms, is_reset)


def group_segments(
    segments: Sequence[CleanableSegment], end: int, *, segment_bytes: int, index_bytes: int
) -> list[list[CleanableSegment]]:
    """Adjacent segments that become one, in order; each group is written and swapped separately.

    end: offset; segments from it on are left out. A group stays within ``segment_bytes``,
    ``index_bytes`` and the offsets that fit an index entry.
    """
    groups: list[list[CleanableSegment]] = []
    size = indexed = 0
    for segment in segments:
        if segment.base_offset >= end:
            break
        group = groups[-1] if groups else []
        if (
            group
            and len(group) < GROUP_SEGMENTS_MAX
            and size + segment.size <= segment_bytes
            and indexed + segment.index_bytes <= index_bytes
            and segment.next_offset - 1 - group[0].base_offset <= RELATIVE_OFFSET_MAX
        ):
            group.append(segment)
        else:
            groups.append([segment])
            size = indexed = 0
        size += segment.size
        indexed += segment.index_bytes
    return groups
