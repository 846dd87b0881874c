"""Checks the ``.txnindex`` files of a log that is opened, and makes those anew that are wrong.

An entry has no checksum, and a wrong one makes readers drop committed records or see aborted ones.
So each is compared with the log: its marker, the first batch of its transaction, and that no search
which ends at it misses a later entry. What does not agree is rebuilt from the segment.

Runs in the io worker before the slot goes online. BOUND: two lookups for each aborted transaction
the log still has.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from kbroker._ext.log_scan import DAMAGED, Scan, find_batch, scan_segment
from kbroker._ext.record_batch import decode_records, read_header
from kbroker.record.control import parse_marker
from kbroker.storage import producer_snapshots
from kbroker.storage.damage import DamagedLogError
from kbroker.storage.formats import (
    BATCH_HEADER_BYTES,
    CONTROL_BIT,
    LOG_SUFFIX,
    TRANSACTIONAL_BIT,
    TXN_INDEX_SUFFIX,
    base_offset_of,
)
from kbroker.storage.segment import Segment
from kbroker.storage.txn_index import (
    AbortedTransaction,
    CorruptTxnIndexError,
    read_entries,
    write_anew,
)

log = logging.getLogger(__name__)

NO_LIMIT = (1 << 63) - 1


def write_scanned(segment: Segment, scan: Scan) -> None:
    """Have the index of a segment hold what a walk over it found. Raises OSError."""
    write_anew(
        segment.path(TXN_INDEX_SUFFIX), [AbortedTransaction(*entry) for entry in scan.aborted]
    )


def check_indexes(
    directory: str,
    segments: Sequence[Segment],
    first_open: int | None,
    *,
    log_start_offset: int,
    gaps_allowed: bool,
) -> bool:
    """Check every index, rebuilding what is wrong; whether any transaction was aborted.

    first_open: first offset of the oldest transaction that is open at the log's end. gaps_allowed:
    the log was compacted, so batches that an entry speaks of may be gone. Raises OSError,
    DamagedLogError.
    """
    present = {
        base_offset_of(name) for name in os.listdir(directory) if name.endswith(TXN_INDEX_SUFFIX)
    }
    if not present:
        return False
    found = False
    # From the last to the first: an entry must not end a search that a later one belongs to.
    later_first = NO_LIMIT if first_open is None else first_open
    for at in range(len(segments) - 1, -1, -1):
        segment = segments[at]
        if segment.base_offset not in present:
            continue
        path = segment.path(TXN_INDEX_SUFFIX)
        try:
            entries = read_entries(path, segment.base_offset, segment.next_offset)
            _check_order(path, entries, later_first)
            _check_against_log(path, entries, segments[: at + 1], log_start_offset, gaps_allowed)
        except CorruptTxnIndexError as error:
            log.warning("%s; rebuilding it from the log", error)
            entries = rebuild(directory, segments, at)
        later_first = min([later_first, *(entry.first_offset for entry in entries)])
        found = found or bool(entries)
    return found


def rebuild(directory: str, segments: Sequence[Segment], at: int) -> list[AbortedTransaction]:
    """Write the index of segment ``at`` anew. Raises OSError, DamagedLogError."""
    segment = segments[at]
    producers = producer_snapshots.load_newest(
        directory, segment.base_offset, segments[0].base_offset
    )
    scan = Scan()
    for each in segments[: at + 1]:
        if each is not segment and each.next_offset <= producers.end_offset:
            continue
        fd = each.open_log()
        try:
            scan = scan_segment(
                fd, each.base_offset, each.size, verify=each is segment, producers=producers
            )
        finally:
            os.close(fd)
        if scan.stop == DAMAGED:
            raise DamagedLogError(
                f"{each.path(LOG_SUFFIX)}: {scan.problem} at position {scan.end_position}; "
                "which of its transactions were aborted cannot be told"
            )
    write_scanned(segment, scan)
    return [AbortedTransaction(*entry) for entry in scan.aborted]


def cut_index(directory: str, segments: Sequence[Segment], end: int) -> None:
    """Before the last segment is cut: forget transactions that ended at or above ``end``.

    Raises OSError, DamagedLogError.
    """
    segment = segments[-1]
    path = segment.path(TXN_INDEX_SUFFIX)
    try:
        entries = read_entries(path, segment.base_offset, segment.next_offset)
    except CorruptTxnIndexError as error:
        log.warning("%s; rebuilding it from the log", error)
        entries = rebuild(directory, segments, len(segments) - 1)
    kept = [entry for entry in entries if entry.last_offset < end]
    if len(kept) < len(entries):
        write_anew(path, kept)


def _check_order(path: str, entries: Sequence[AbortedTransaction], later_first: int) -> None:
    """A search up to offset n ends at the first entry whose last stable offset is n or more."""
    for entry in reversed(entries):
        if entry.last_stable_offset > later_first:
            raise CorruptTxnIndexError(
                f"{path}: {entry}, but a transaction from {later_first} on ended after it"
            )
        later_first = min(later_first, entry.first_offset)


def _check_against_log(
    path: str,
    entries: Sequence[AbortedTransaction],
    segments: Sequence[Segment],
    log_start_offset: int,
    gaps_allowed: bool,
) -> None:
    """``segments``: those up to and with the one whose index this is."""
    for entry in entries:
        marker = _batch_at(segments, entry.last_offset)
        if not _is_abort(marker, entry):
            raise CorruptTxnIndexError(f"{path}: {entry}, but no such marker is in the log")
        if entry.first_offset < max(log_start_offset, segments[0].base_offset):
            continue  # deleted by now
        first = _batch_at(segments, entry.first_offset)
        if _begins(first, entry) or (gaps_allowed and _is_gone(first, entry)):
            continue
        raise CorruptTxnIndexError(f"{path}: {entry}, but it does not begin there")


def _batch_at(segments: Sequence[Segment], offset: int) -> bytes | None:
    """The batch that ends at or after ``offset`` in the segment of that offset."""
    low, high = 0, len(segments)
    while high - low > 1:
        middle = (low + high) // 2
        if segments[middle].base_offset <= offset:
            low = middle
        else:
            high = middle
    segment = segments[low]
    try:
        position = segment.start_position(offset)
        fd = segment.open_log()
        try:
            found = find_batch(fd, position, segment.size, offset=offset)
            return None if found is None else os.pread(fd, found[1], found[0])
        finally:
            os.close(fd)
    except ValueError as error:
        raise DamagedLogError(f"{segment.path(LOG_SUFFIX)}: {error}") from error


def _is_abort(batch: bytes | None, entry: AbortedTransaction) -> bool:
    if batch is None:
        return False
    header = read_header(batch)
    if (
        not header.attributes & CONTROL_BIT
        or header.producer_id != entry.producer_id
        or header.base_offset + header.last_offset_delta != entry.last_offset
    ):
        return False
    records = decode_records(
        batch[BATCH_HEADER_BYTES:],
        header.record_count,
        header.last_offset_delta,
        header.first_timestamp,
    )
    for _delta, _timestamp, key, value, _headers in records:
        marker = parse_marker(key, value)
        return marker is not None and not marker.commit
    return False


def _begins(batch: bytes | None, entry: AbortedTransaction) -> bool:
    if batch is None:
        return False
    header = read_header(batch)
    return bool(
        header.base_offset == entry.first_offset
        and header.producer_id == entry.producer_id
        and header.attributes & TRANSACTIONAL_BIT
        and not header.attributes & CONTROL_BIT
    )


def _is_gone(batch: bytes | None, entry: AbortedTransaction) -> bool:
    return batch is None or read_header(batch).base_offset > entry.first_offset
