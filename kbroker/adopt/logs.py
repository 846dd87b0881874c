"""Reads the files of one partition: bounds, size, newest producer id, and whether one is missing.

Read only: indexes are looked at, never repaired (the broker does that when it starts).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from kbroker._ext.log.log_scan import DAMAGED, END, Scan, scan_segment
from kbroker._ext.log.offset_index import LOOK_ONLY, CorruptIndexError, OffsetIndex, TimeIndex
from kbroker._ext.log.producer_state import CorruptSnapshotError, ProducerState
from kbroker.adopt.errors import Refusal
from kbroker.storage.checkpoint import CorruptCheckpointError, parse_epochs
from kbroker.storage.files import read_if_present
from kbroker.storage.formats import (
    CLEANER_CHECKPOINT,
    INDEX_SUFFIX,
    LARGEST,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    base_offset_of,
    segment_name,
)
from kbroker.storage.segments.producer_snapshots import list_snapshots, snapshot_path

_SUFFIXES: dict[type, str] = {OffsetIndex: INDEX_SUFFIX, TimeIndex: TIME_INDEX_SUFFIX}
Index = TypeVar("Index", OffsetIndex, TimeIndex)
Entry = tuple[int, int]
COPY_AGAIN = "copy the directory again while the broker is stopped"


class FoundLog(NamedTuple):
    """A partition on disk. leader_epoch, producer_id: the largest in it, None if there is none."""

    path: str
    size: int
    start_offset: int
    end_offset: int
    leader_epoch: int | None
    producer_id: int | None


def look_at(
    path: str, recovery_point: int, log_start: int, *, gaps_allowed: bool, was_clean: bool
) -> FoundLog:
    """Look at a partition's directory.

    recovery_point, log_start: as the checkpoints say, 0 without a line. gaps_allowed: the log is
    or was compacted. was_clean: the broker was stopped cleanly, so that nothing is cut short.
    Raises Refusal for files that are missing or cut short, OSError.
    """
    names = set(os.listdir(path))
    bases = sorted(
        base
        for name in names
        if (base := base_offset_of(name)) is not None and name == segment_name(base, LOG_SUFFIX)
    )
    # An interrupted cleaning: the files match only after the broker has finished it.
    in_between = any(name.endswith(SWAP_SUFFIX) for name in names)
    if not bases and recovery_point > 0 and not in_between:
        raise Refusal(
            f"{path}: no {LOG_SUFFIX} file is left, although the log was synced up to offset "
            f"{recovery_point}; {COPY_AGAIN}"
        )
    if was_clean and not in_between:
        _check_no_log_is_missing(path, names)
    if not bases:
        return FoundLog(path, 0, log_start, log_start, _newest_epoch(path), None)
    size = 0
    end = bases[0]
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        file = os.path.join(path, segment_name(base, LOG_SUFFIX))
        length = os.stat(file).st_size
        size += length
        scan = _walk_end(path, base, length)
        end = max(base, scan.next_offset)
        if following is None or in_between or end == following:
            continue
        if end > following:
            raise Refusal(
                f"{file} holds offsets up to {end}, but the next file begins at {following}; "
                f"{COPY_AGAIN}"
            )
        if not gaps_allowed:
            raise Refusal(
                f"{file} ends at offset {end}, but the next file begins at {following}; a file is "
                f"missing or truncated: {COPY_AGAIN}"
            )
        if scan.stop != END and (was_clean or following <= recovery_point):
            raise Refusal(
                f"{file}: {scan.problem or 'nothing but zeros'} at position {scan.end_position}"
                f" although segments follow it; {COPY_AGAIN}"
            )
        if was_clean:
            _check_time_index(path, base, end, following)
    if end < recovery_point and not in_between:
        last = os.path.join(path, segment_name(bases[-1], LOG_SUFFIX))
        raise Refusal(
            f"{last} ends at offset {end}, but was synced up to {recovery_point}; {COPY_AGAIN}"
        )
    if was_clean and not in_between:
        _check_tail(path, bases[-1])
    if not (was_clean or gaps_allowed or in_between):
        _check_no_gaps(path, bases, recovery_point)
    return FoundLog(
        path,
        size,
        max(bases[0], log_start),
        end,
        _newest_epoch(path),
        _newest_producer(path, bases),
    )


def _check_time_index(path: str, base: int, end: int, following: int) -> None:
    """Raise Refusal if the time index of a sealed segment has entries after its end."""
    known = _ask_index(TimeIndex, path, base, following, lambda times: times.last_entry)
    timestamp, offset = known or (-1, -1)
    if timestamp >= 0 and offset >= end:
        file = os.path.join(path, segment_name(base, LOG_SUFFIX))
        index = os.path.join(path, segment_name(base, TIME_INDEX_SUFFIX))
        raise Refusal(
            f"{file} ends at offset {end}, but {index} has an entry for {offset}; {COPY_AGAIN}"
        )


def _check_no_gaps(path: str, bases: Sequence[int], recovery_point: int) -> None:
    """Raise Refusal if offsets are missing in the part that a recovery will read.

    It would take that for damage and cut the log there: only compaction leaves such gaps, and
    nothing says that there was one.
    """
    first = max((at for at, base in enumerate(bases) if base <= recovery_point), default=0)
    for base in bases[first:]:
        file = os.path.join(path, segment_name(base, LOG_SUFFIX))
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            length = os.fstat(fd).st_size
            strict = scan_segment(fd, base, length, verify=False, contiguous=True)
            if strict.stop != DAMAGED:
                continue
            loose = scan_segment(
                fd, base, length, position=strict.end_position, next_offset=strict.next_offset,
                verify=False,
            )  # fmt: skip
        finally:
            os.close(fd)
        if loose.end_position > strict.end_position:
            raise Refusal(
                f"{file}: {strict.problem} at position {strict.end_position}, as if the log had "
                f"been compacted, but no {CLEANER_CHECKPOINT} says so, and the broker was not "
                "stopped cleanly: a start would truncate the log there. Copy that file as well, "
                "or give the topic's settings with --zookeeper"
            )


def _check_no_log_is_missing(path: str, names: set[str]) -> None:
    """Raise Refusal if an index has no log file, which only a crash of a broker leaves."""
    for name in sorted(names):
        base = base_offset_of(name)
        if base is None or not name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)):
            continue
        log = segment_name(base, LOG_SUFFIX)
        if log not in names:
            raise Refusal(f"{path}/{name}: its {log} is missing; {COPY_AGAIN}")


def _check_tail(path: str, base: int) -> None:
    """Raise Refusal unless the last segment ends as a clean shutdown of a broker leaves it."""
    file = os.path.join(path, segment_name(base, LOG_SUFFIX))
    scan = _walk_end(path, base, os.stat(file).st_size)
    if scan.stop == DAMAGED:
        raise Refusal(
            f"{file}: {scan.problem} at position {scan.end_position}, although the broker was"
            f" stopped cleanly; {COPY_AGAIN}"
        )
    end = max(base, scan.next_offset)
    check_producer_snapshots(path, end, f"{file}: it", COPY_AGAIN)


def check_producer_snapshots(directory: str, end: int, log: str, advice: str) -> None:
    """Raise Refusal when a log that was closed in order ends before its last producer snapshot.

    Brokers write one where the log ends when they are stopped; none lies after the end. log,
    advice: how the message begins and ends.
    """
    newest = max(list_snapshots(directory), default=0)
    if newest > end:
        raise Refusal(
            f"{log} ends at offset {end}, but {snapshot_path(directory, newest)} was written at"
            f" {newest}; {advice}"
        )


def _walk_end(path: str, base: int, length: int) -> Scan:
    """Walk the headers after the last index entry of a segment."""
    entry = _ask_index(OffsetIndex, path, base, length, lambda offsets: offsets.lookup(LARGEST))
    position = 0 if entry is None else entry[1]
    fd = os.open(os.path.join(path, segment_name(base, LOG_SUFFIX)), os.O_RDONLY | os.O_CLOEXEC)
    try:
        scan = scan_segment(fd, base, length, position=position, verify=False)
        if scan.stop == DAMAGED and scan.end_position == position > 0:
            # The index pointed to a position without a batch.
            scan = scan_segment(fd, base, length, verify=False)
        return scan
    finally:
        os.close(fd)


def _ask_index(
    kind: type[Index], path: str, base: int, limit: int, question: Callable[[Index], Entry]
) -> Entry | None:
    """A segment's index. None if it is missing or invalid: the broker rebuilds it.

    limit: as for the index's ``verify``.
    """
    name = segment_name(base, _SUFFIXES[kind])
    try:
        index = kind(os.path.join(path, name), base, LOOK_ONLY)
    except (FileNotFoundError, ValueError):
        return None
    try:
        index.verify(limit)
        return question(index)
    except CorruptIndexError:
        return None
    finally:
        index.close()


def _newest_epoch(path: str) -> int | None:
    file = os.path.join(path, LEADER_EPOCH_CHECKPOINT)
    try:
        epochs = parse_epochs(read_if_present(file) or b"", file)
    except CorruptCheckpointError as error:
        raise Refusal(f"{error}; copy the file again, or remove it") from error
    return max((epoch for epoch, _ in epochs), default=None)


def _newest_producer(path: str, bases: Sequence[int]) -> int | None:
    """The largest producer id that a broker would know after loading this log."""
    state = ProducerState(bases[0])
    for offset in reversed(list_snapshots(path)):
        try:
            state = ProducerState.from_snapshot(
                read_if_present(snapshot_path(path, offset)) or b"", offset
            )
        except CorruptSnapshotError:
            continue  # the broker replays more of the log then, and so do we
        break
    for base, following in zip(bases, [*bases[1:], LARGEST], strict=True):
        if following <= state.end_offset:
            continue
        file = os.path.join(path, segment_name(base, LOG_SUFFIX))
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            scan_segment(fd, base, os.fstat(fd).st_size, verify=False, producers=state)
        finally:
            os.close(fd)
    return max(state.entries, default=None)
