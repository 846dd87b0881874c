"""Producer state that the snapshots of a log do not have, read from the log itself.

A snapshot has the last batch of each producer and the first offset of its open transaction. Where
that lies is looked up when the log is opened; after a cut everything behind an older snapshot is
replayed; and the batches before the last one are recalled when somebody sends one again. Headers
only, in the io worker that owns the log.
"""

from __future__ import annotations

from kbroker._ext.log.producer_state import ProducerState
from kbroker.storage.log.log_segments import LogSegments
from kbroker.storage.repair.recovery import replay_segment
from kbroker.storage.segments import producer_snapshots
from kbroker.storage.segments.segment import Segment
from kbroker.types import Offset

# BOUND: the end of a log that is searched for duplicates after a start. A client has at most five
# batches in flight, of 1 MB as a rule, and others write to the partition too.
RECALLED_BYTES = 8 << 20


def walk_end(segments: LogSegments, producers: ProducerState) -> None:
    """Feed ``producers`` with the headers of at least the last RECALLED_BYTES, or of all.

    Raises OSError, ValueError on a damaged log.
    """
    left = RECALLED_BYTES
    walked: list[tuple[Segment, int]] = []
    for segment in reversed(segments):
        walked.append((segment, max(segment.size - left, 0)))
        left -= segment.size
        if left <= 0:
            break
    for segment, position in reversed(walked):
        replay_segment(segment, producers, segments.border_before(segment, position))


def load_after_cut(directory: str, segments: LogSegments, end: Offset) -> ProducerState:
    """Restore the state at ``end``, where the log was truncated. Later snapshots are removed.
    Raises OSError.
    """
    producer_snapshots.remove_above(directory, end)
    producers = producer_snapshots.load_newest(directory, end, segments[0].base_offset)
    for segment in segments:
        if segment.next_offset > producers.end_offset:
            position = segments.start_position(segment, producers.end_offset)
            replay_segment(segment, producers, position)
    producers.set_end_offset(end)
    return producers


def place_transactions(
    producers: ProducerState, segments: LogSegments, log_start_offset: Offset
) -> None:
    """Find the start of transactions that are known only from a snapshot. Raises OSError."""
    for producer_id, first_offset in producers.unplaced_transactions():
        offset = max(first_offset, log_start_offset)
        segment, position = segments.locate(offset)
        producers.place_transaction(producer_id, offset, segment.base_offset, position)
