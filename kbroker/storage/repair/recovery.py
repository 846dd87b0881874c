"""Brings a partition's directory into a state that can be appended to, after any kind of stop.

Runs in the io worker, before the slot goes online. After a clean shutdown only the tail of the
active segment is looked at. After any other stop, every segment from the recovery point on is
walked: each checksum is checked, indexes and producer state are rebuilt, and the log is cut at the
first bad byte, because those bytes were never synced.

Damage *below* the recovery point was synced once and is never cut: ``DamagedLogError`` is raised,
every byte stays where it is, and the partition is held offline (docs/formats/log-directory.md,
"Damage").
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from itertools import pairwise

from kbroker._ext.log.log_scan import DAMAGED, END, Scan, find_batch, scan_segment
from kbroker._ext.log.offset_index import CorruptIndexError, OffsetIndex, TimeIndex
from kbroker._ext.log.producer_state import ProducerState
from kbroker.storage.damage import DamagedLogError
from kbroker.storage.files import list_directory, remove_if_present
from kbroker.storage.formats import (
    INDEX_SUFFIX,
    LARGEST,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    base_offset_of,
    segment_name,
)
from kbroker.storage.repair import swap, txn_recovery
from kbroker.storage.segments import producer_snapshots
from kbroker.storage.segments.index_lookup import leads_to
from kbroker.storage.segments.leader_epochs import LeaderEpochs
from kbroker.storage.segments.segment import Segment
from kbroker.types import FIRST_OFFSET, NO_OFFSET, Offset

logger = logging.getLogger(__name__)


class LoadOptions:
    """Options for loading a log. recovery_point: None if its checkpoint is unreadable."""

    __slots__ = (
        "clean",
        "gaps_allowed",
        "index_bytes_max",
        "index_interval_bytes",
        "log_start_is_known",
        "log_start_offset",
        "progress",
        "recovery_point",
    )

    def __init__(
        self,
        *,
        clean: bool,
        recovery_point: Offset | None,
        log_start_offset: Offset = FIRST_OFFSET,
        log_start_is_known: bool = False,
        index_bytes_max: int = 10 << 20,
        index_interval_bytes: int = 4096,
        gaps_allowed: bool = False,
        progress: Callable[[], None] | None = None,
    ) -> None:
        """log_start_is_known: a checkpoint has it. gaps_allowed: the log is or was compacted, so
        offsets may be missing between segments.
        """
        self.clean = clean
        self.recovery_point = recovery_point
        self.log_start_offset = log_start_offset
        self.log_start_is_known = log_start_is_known
        self.index_bytes_max = index_bytes_max
        self.index_interval_bytes = index_interval_bytes
        self.gaps_allowed = gaps_allowed
        self.progress = progress


class LoadedLog:
    """The initial state of ``PartitionLog``. The last of ``segments`` is the active one; its
    indexes are not open.
    """

    __slots__ = (
        "bytes_since_index",
        "checked_from",
        "cut_bytes",
        "first_timestamp",
        "gapless",
        "has_aborted",
        "log_start_offset",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "producers",
        "recovered",
        "recovery_point",
        "scanned_epochs",
        "segments",
    )

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.next_offset = FIRST_OFFSET
        self.log_start_offset = FIRST_OFFSET
        self.recovery_point = FIRST_OFFSET
        self.max_timestamp = -1
        self.max_timestamp_offset = NO_OFFSET
        self.first_timestamp = -1
        self.bytes_since_index = 0
        self.producers = ProducerState(0)
        self.recovered = False
        # (segment base offset, position): what lies before it was not checked.
        self.checked_from = (FIRST_OFFSET, 0)
        # Whether each segment must end where the next one begins.
        self.gapless = False
        # Whether any .txnindex has an entry.
        self.has_aborted = False
        self.cut_bytes = 0
        self.scanned_epochs: list[tuple[int, Offset]] = []


def load_log(directory: str, options: LoadOptions) -> LoadedLog:
    """Load the log in ``directory``, which exists. Raises DamagedLogError, OSError."""
    swap.finish_interrupted_work(directory)
    segments = _list_segments(directory)
    loaded = LoadedLog()
    loaded.segments = segments
    loaded.gapless = not options.gaps_allowed
    if not segments:
        if options.recovery_point:
            raise DamagedLogError(
                f"{directory}: the log is gone, although it was synced up to "
                f"{options.recovery_point}",
                FIRST_OFFSET,
            )
        return _start_anew(loaded, directory, options.log_start_offset)
    if not (options.clean and _load_clean_tail(loaded, options)):
        _recover(loaded, directory, options)
    loaded.segments[-1].next_offset = loaded.next_offset
    recovery_point = options.recovery_point
    if recovery_point is None:
        recovery_point = loaded.segments[-1].base_offset
    if loaded.next_offset < recovery_point:
        raise DamagedLogError(
            f"{directory}: the log ends at offset {loaded.next_offset}, but was synced up to "
            f"{recovery_point}",
            loaded.next_offset,
        )
    loaded.recovery_point = loaded.next_offset if not loaded.recovered else recovery_point
    log_start_offset = options.log_start_offset
    if loaded.next_offset < log_start_offset:
        # Either the checkpoint, which has no checksum, is damaged, or unsynced records were lost up
        # to the deleted ones. Nothing is removed for that reason.
        log_start_offset = loaded.segments[0].base_offset
        logger.error(
            "%s: the log ends at offset %d, but %s says that it starts at %d; using %d, the "
            "start of its first segment",
            directory,
            loaded.next_offset,
            LOG_START_CHECKPOINT,
            options.log_start_offset,
            log_start_offset,
        )
    _say_missing_start(loaded, directory, options)
    loaded.log_start_offset = max(log_start_offset, loaded.segments[0].base_offset)
    if not loaded.recovered:
        loaded.producers = producer_snapshots.load_newest(
            directory, loaded.next_offset, loaded.segments[0].base_offset
        )
        _replay(loaded, loaded.producers, loaded.next_offset, options)
    loaded.has_aborted = txn_recovery.check_indexes(directory, loaded.segments)
    producer_snapshots.remove_above(directory, loaded.next_offset)
    producer_snapshots.remove_unneeded(directory, {s.base_offset for s in loaded.segments})
    return loaded


def _say_missing_start(loaded: LoadedLog, directory: str, options: LoadOptions) -> None:
    """A clean shutdown leaves the log start offset in the checkpoint. After any other, retention
    may have been ahead of it.
    """
    first = loaded.segments[0].base_offset
    if not loaded.recovered and options.log_start_is_known and options.log_start_offset < first:
        logger.error(
            "%s: the log starts at offset %d, but no segment has offsets below %d; records are"
            " missing, and readers begin there",
            directory,
            options.log_start_offset,
            first,
        )


def load_epochs(directory: str, loaded: LoadedLog, leader_epoch: int | None) -> LeaderEpochs:
    """The leader epochs of a loaded log, with those the walk saw and the file does not know, as
    ``LeaderEpochs.settle``. Raises OSError.
    """
    epochs = LeaderEpochs(directory)
    epochs.settle(leader_epoch, loaded.log_start_offset, loaded.next_offset, loaded.scanned_epochs)
    return epochs


def _start_anew(loaded: LoadedLog, directory: str, offset: Offset) -> LoadedLog:
    """Start the log with an empty segment, because there is none."""
    producer_snapshots.remove_above(directory, NO_OFFSET)
    loaded.segments = [Segment(directory, offset, 0, offset)]
    loaded.next_offset = loaded.log_start_offset = loaded.recovery_point = offset
    loaded.producers = ProducerState(offset)
    return loaded


def _list_segments(directory: str) -> list[Segment]:
    names = list_directory(directory)
    bases = sorted(
        base
        for name in names
        if (base := base_offset_of(name)) is not None and name == segment_name(base, LOG_SUFFIX)
    )
    known = set(bases)
    for name in names:
        base = base_offset_of(name)
        if (
            base is not None
            and base not in known
            and name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX))
        ):
            logger.warning("the log file of %s/%s is missing; removing it", directory, name)
            remove_if_present(os.path.join(directory, name))
    segments = []
    for at, base in enumerate(bases):
        size = os.stat(os.path.join(directory, segment_name(base, LOG_SUFFIX))).st_size
        following = bases[at + 1] if at + 1 < len(bases) else base
        segments.append(Segment(directory, base, size, following))
    return segments


# ---- after a clean shutdown ----


def _load_clean_tail(loaded: LoadedLog, options: LoadOptions) -> bool:
    """Find the log end by walking from the last index entry; False if anything is not as a clean
    shutdown leaves it.
    """
    active = loaded.segments[-1]
    if active.size > 0 and not os.path.exists(active.path(INDEX_SUFFIX)):
        return False
    fd = active.open_log()
    try:
        offsets = OffsetIndex(
            active.path(INDEX_SUFFIX), active.base_offset, options.index_bytes_max
        )
        times = TimeIndex(
            active.path(TIME_INDEX_SUFFIX), active.base_offset, options.index_bytes_max
        )
        offsets.verify(active.size)
        entry_offset, position = offsets.lookup(1 << 62)
        if position:
            batch = find_batch(fd, position, active.size)
            if batch is None or not leads_to(batch, entry_offset):
                return False
        tail = scan_segment(fd, active.base_offset, active.size, position=position, verify=False)
        if tail.stop != END:
            return False
        first = find_batch(fd, 0, active.size) if active.size else None
        times.verify(tail.next_offset)
    except (CorruptIndexError, ValueError) as error:
        logger.warning("%s: %s", active.directory, error, extra={"event": "recovery.failed"})
        return False
    finally:
        os.close(fd)
    loaded.next_offset = tail.next_offset
    loaded.bytes_since_index = tail.bytes_since_index
    loaded.max_timestamp, loaded.max_timestamp_offset = times.last_entry
    if tail.max_timestamp > loaded.max_timestamp:
        loaded.max_timestamp, loaded.max_timestamp_offset = (
            tail.max_timestamp,
            tail.max_timestamp_offset,
        )
    loaded.first_timestamp = first.max_timestamp if first is not None else -1
    loaded.scanned_epochs = tail.leader_epochs
    loaded.checked_from = (active.base_offset, active.size)
    offsets.close()
    times.close()
    return True


# ---- after any other stop ----


def _recover(loaded: LoadedLog, directory: str, options: LoadOptions) -> None:
    segments = loaded.segments
    recovery_point = options.recovery_point
    if recovery_point is None:
        recovery_point = segments[-1].base_offset
    first = max((i for i, s in enumerate(segments) if s.base_offset <= recovery_point), default=0)
    _check_sealed(segments[: first + 1], options)
    loaded.recovered = True
    start = segments[first].base_offset
    loaded.checked_from = (start, 0)
    loaded.producers = producer_snapshots.load_newest(directory, start, segments[0].base_offset)
    _replay(loaded, loaded.producers, start, options)
    if loaded.producers.end_offset < start:
        loaded.producers.set_end_offset(start)
    expected = start
    for at, segment in enumerate(segments[first:], first):
        scan = _check_segment(segment, loaded, max(expected, segment.base_offset), options)
        expected = scan.next_offset
        following = segments[at + 1].base_offset if at + 1 < len(segments) else None
        problem = _problem(segment, scan, following, options)
        if expected < recovery_point and (problem or scan.end_position < segment.size):
            raise DamagedLogError(
                f"{segment.path(LOG_SUFFIX)}: {problem or 'it ends in zeros'}; offsets from "
                f"{expected} up to {recovery_point} were synced but cannot be read",
                expected,
            )
        if scan.forgets_epochs:
            loaded.scanned_epochs.clear()
        loaded.scanned_epochs.extend(scan.leader_epochs)
        _remember_active(loaded, scan)
        if scan.end_position < segment.size:
            loaded.cut_bytes += _cut(segment, scan)
        if problem and following is not None:
            _drop_behind(loaded, at)
            break
    loaded.next_offset = expected
    for segment, successor in pairwise(segments):
        segment.next_offset = successor.base_offset


def _remember_active(loaded: LoadedLog, scan: Scan) -> None:
    loaded.max_timestamp = scan.max_timestamp
    loaded.max_timestamp_offset = scan.max_timestamp_offset
    loaded.first_timestamp = scan.first_timestamp
    loaded.bytes_since_index = scan.bytes_since_index


def _check_sealed(segments: list[Segment], options: LoadOptions) -> None:
    """Everything below the first segment that is walked must be there, up to the next segment's
    start.
    """
    for segment, following in pairwise(segments):
        scan = sealed_end(segment)
        if scan.next_offset == following.base_offset:
            if scan.end_position < segment.size:
                _cut(segment, scan)
            continue
        if scan.stop == DAMAGED:
            raise DamagedLogError(
                f"{segment.path(LOG_SUFFIX)}: {scan.problem} at position {scan.end_position}; "
                f"offsets from {scan.next_offset} up to {following.base_offset} were synced but "
                "cannot be read",
                scan.next_offset,
            )
        if scan.next_offset > following.base_offset or (
            scan.next_offset < following.base_offset and not options.gaps_allowed
        ):
            raise DamagedLogError(
                f"{segment.path(LOG_SUFFIX)} ends at offset {scan.next_offset}, but the next "
                f"segment begins at {following.base_offset}",
                min(scan.next_offset, following.base_offset),
            )


def sealed_end(segment: Segment) -> Scan:
    """Walk the headers after the last index entry of a sealed segment."""
    position = segment.start_position(LARGEST)
    fd = segment.open_log()
    try:
        return scan_segment(fd, segment.base_offset, segment.size, position=position, verify=False)
    finally:
        os.close(fd)


def _check_segment(
    segment: Segment, loaded: LoadedLog, expected: Offset, options: LoadOptions
) -> Scan:
    """Check every batch of one segment, rebuilding its indexes and the producer state up to the
    first bad byte.
    """
    scan = segment.rebuild_indexes(
        index_bytes_max=options.index_bytes_max,
        index_interval_bytes=options.index_interval_bytes,
        verify=True,
        contiguous=not options.gaps_allowed,
        first_offset=expected,
        producers=loaded.producers,
        progress=options.progress,
    )
    txn_recovery.write_scanned(segment, scan)
    return scan


def _problem(
    segment: Segment, scan: Scan, following: int | None, options: LoadOptions
) -> str | None:
    """The reason why the log cannot continue after this segment; None if it can. Zeros at the very
    end of the log are no problem, nor is anything after a last batch that the next segment
    continues: it cannot contain records of the log.
    """
    if scan.next_offset == following:
        return None
    if scan.stop == DAMAGED:
        return f"{scan.problem} at position {scan.end_position}"
    if scan.end_position < segment.size and following is not None:
        return f"nothing but zeros from position {scan.end_position}"
    if following is not None and scan.next_offset != following and not options.gaps_allowed:
        return (
            f"the segment ends at offset {scan.next_offset}, but the next one begins at {following}"
        )
    return None


def _cut(segment: Segment, scan: Scan) -> int:
    lost = segment.size - scan.end_position
    if scan.stop == DAMAGED:
        logger.warning(
            "%s: %s at position %d; truncating %d bytes that were not synced, continuing at "
            "offset %d",
            segment.path(LOG_SUFFIX),
            scan.problem,
            scan.end_position,
            lost,
            scan.next_offset,
        )
    os.truncate(segment.path(LOG_SUFFIX), scan.end_position)
    segment.size = scan.end_position
    return lost


def _drop_behind(loaded: LoadedLog, last: int) -> None:
    """Remove segments after the truncation: they were not synced either."""
    for segment in loaded.segments[last + 1 :]:
        logger.warning(
            "%s is after the truncation; removing its %d bytes",
            segment.path(LOG_SUFFIX),
            segment.size,
        )
        loaded.cut_bytes += segment.size
        segment.mark_deleted()
    del loaded.segments[last + 1 :]


def _replay(loaded: LoadedLog, producers: ProducerState, end: int, options: LoadOptions) -> None:
    """Feed ``producers`` with the headers between its end offset and ``end``, which is a segment
    boundary.
    """
    for at, segment in enumerate(loaded.segments):
        is_last = at + 1 == len(loaded.segments)
        if segment.base_offset >= end or (
            not is_last and segment.next_offset <= producers.end_offset
        ):
            continue
        if is_last and loaded.next_offset <= producers.end_offset and not loaded.recovered:
            continue
        position = segment.start_position(producers.end_offset)
        replay_segment(segment, producers, position, options.progress)


def replay_segment(
    segment: Segment,
    producers: ProducerState,
    position: int,
    progress: Callable[[], None] | None = None,
) -> None:
    """Feed ``producers`` with one segment's headers from ``position`` on. Raises OSError."""
    fd = segment.open_log()
    try:
        scan_segment(
            fd,
            segment.base_offset,
            segment.size,
            position=position,
            verify=False,
            producers=producers,
            progress=progress,
        )
    finally:
        os.close(fd)
