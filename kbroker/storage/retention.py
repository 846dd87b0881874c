"""Which of a log's oldest segments may be deleted. Pure decisions; ``PartitionLog`` acts on them.

Runs in the io worker. Invariant: nothing at or above the high watermark is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.types import Offset


class SegmentView(NamedTuple):
    """A segment as retention sees it. The last of a list is the active segment."""

    base_offset: Offset
    next_offset: Offset
    size: int
    largest_timestamp: int


class RetentionPolicy(NamedTuple):
    """delete: the topic's cleanup.policy has ``delete``; without it only the log start counts.
    None: no limit.
    """

    delete: bool
    retention_ms: int | None
    retention_bytes: int | None


def deletable_count(
    segments: Sequence[SegmentView],
    policy: RetentionPolicy,
    now_ms: int,
    *,
    log_start_offset: Offset,
    high_watermark: Offset,
) -> int:
    """The number of oldest segments that may be deleted; possibly all of them, if the active one is
    not empty.

    A segment goes when (a) it lies below the log start, (b) its newest record is older than
    ``retention_ms``, or (c) the log stays at ``retention_bytes`` or more without it. It goes by its
    newest timestamp, so one record from the future keeps the whole segment. The first segment that
    stays ends the search.
    """
    excess = _excess(segments, policy)
    count = 0
    for at, segment in enumerate(segments):
        is_active = at + 1 == len(segments)
        if segment.next_offset > high_watermark or (is_active and segment.size == 0):
            break
        due = segment.next_offset <= log_start_offset and not is_active
        if policy.delete:
            if policy.retention_ms is not None:
                due = due or now_ms - segment.largest_timestamp > policy.retention_ms
            due = due or 0 < segment.size <= excess
        if not due:
            break
        excess -= segment.size
        count += 1
    return count


def _excess(segments: Sequence[SegmentView], policy: RetentionPolicy) -> int:
    if policy.retention_bytes is None:
        return -1
    return sum(segment.size for segment in segments) - policy.retention_bytes
