"""Walks the segments of a partition with the producer state at the start of each.

Which transactions a segment saw aborted depends on what was open before it. A walk over a whole
partition carries that along; a walk over one segment starts from the nearest producer snapshot.
"""

from __future__ import annotations

import os

from kbroker._ext.log.log_scan import scan_segment
from kbroker._ext.log.producer_state import CorruptSnapshotError, ProducerState
from kbroker.logtool.targets import segment_bases
from kbroker.storage.checkpoint import CorruptCheckpointError, OffsetCheckpoint
from kbroker.storage.files import read_if_present
from kbroker.storage.formats import (
    CLEANER_CHECKPOINT,
    LOG_SUFFIX,
    parse_partition_dir,
    segment_name,
)
from kbroker.storage.segments.producer_snapshots import list_snapshots, snapshot_path
from kbroker.storage.segments.txn_index import AbortedTransaction


def read_snapshot(directory: str, offset: int) -> ProducerState | None:
    """The snapshot at ``offset``, None without one. Raises CorruptSnapshotError, OSError."""
    data = read_if_present(snapshot_path(directory, offset))
    return None if data is None else ProducerState.from_snapshot(data, offset)


def producers_before(directory: str, base_offset: int) -> ProducerState:
    """Producer state as of the start of a segment. Changes nothing. Raises OSError."""
    bases = segment_bases(directory)
    state = ProducerState(bases[0] if bases else base_offset)
    for offset in reversed(list_snapshots(directory)):
        if not state.end_offset <= offset <= base_offset:
            continue
        try:
            snapshot = read_snapshot(directory, offset)
        except CorruptSnapshotError:
            continue  # an older one and a longer walk give the same state
        if snapshot is not None:
            state = snapshot
            break
    for at, base in enumerate(bases):
        if base >= base_offset:
            break
        if bases[at + 1 : at + 2] and bases[at + 1] <= state.end_offset:
            continue
        fd = os.open(os.path.join(directory, segment_name(base, LOG_SUFFIX)), os.O_RDONLY)
        try:
            scan_segment(fd, base, os.fstat(fd).st_size, verify=False, producers=state)
        finally:
            os.close(fd)
    if state.end_offset < base_offset:
        state.set_end_offset(base_offset)
    return state


def was_compacted(directory: str) -> bool:
    """Whether a cleaner has worked on the partition, according to the checkpoint in its
    directory.
    """
    key = parse_partition_dir(os.path.basename(directory))
    try:
        cleaned = OffsetCheckpoint(os.path.dirname(directory), CLEANER_CHECKPOINT).read()
    except CorruptCheckpointError:
        return False  # ``verify`` reports the damage
    return cleaned is not None and key in cleaned


def index_disagrees(
    entries: list[AbortedTransaction],
    aborted: list[AbortedTransaction],
    *,
    log_start_offset: int,
    has_gaps: bool,
) -> str | None:
    """The reason why a ``.txnindex`` contradicts a walk over its segment; None if it does not.

    Records may be gone, by compaction or below the log's start. Then a transaction may be named
    that the walk did not see, or have begun earlier, or count as open for longer.
    """
    if entries == aborted:
        return None
    known = {(entry.producer_id, entry.last_offset): entry for entry in entries}
    partial = has_gaps or log_start_offset > 0
    for seen in aborted:
        entry = known.pop((seen.producer_id, seen.last_offset), None)
        what = f"the transaction of producer {seen.producer_id} aborted at {seen.last_offset}"
        if entry is None:
            return f"{what} is missing"
        exact = (entry.first_offset, entry.last_stable_offset) == (
            seen.first_offset,
            seen.last_stable_offset,
        )
        within = (
            entry.first_offset <= seen.first_offset
            and entry.last_stable_offset <= seen.last_stable_offset
        )
        if not (exact or (partial and within)):
            return f"{what} is {seen}, the index says {entry}"
    for entry in known.values():
        if not has_gaps and entry.first_offset >= log_start_offset:
            return f"{entry} was not aborted in this segment"
    return None
