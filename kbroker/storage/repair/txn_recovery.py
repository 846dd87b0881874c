"""Checks the ``.txnindex`` files of a log that is opened, and rebuilds those that are wrong.

An entry has no checksum, and a wrong one makes readers drop committed records or see aborted ones.
So ``txn-index-checkpoint`` has the checksum of every index that is complete. A file that does not
match, or is not named there, is compared with the segment itself.

Runs in the io worker, before the slot goes online and when a segment is sealed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kbroker._ext.base.crc32c import crc32c
from kbroker._ext.log.log_scan import DAMAGED, Scan, scan_segment
from kbroker.errors import may_do_without
from kbroker.storage.damage import DamagedLogError
from kbroker.storage.files import list_directory, read_if_present, remove_if_present, replace_file
from kbroker.storage.formats import (
    LOG_SUFFIX,
    TXN_INDEX_CHECKPOINT,
    TXN_INDEX_SUFFIX,
    base_offset_of,
)
from kbroker.storage.segments import producer_snapshots
from kbroker.storage.segments.segment import Segment
from kbroker.storage.segments.txn_index import (
    ENTRY_BYTES,
    AbortedTransaction,
    CorruptTxnIndexError,
    read_entries,
    write_anew,
)

logger = logging.getLogger(__name__)

VERSION = 0
Sums = dict[int, tuple[int, int]]
"""Base offset -> (bytes, CRC-32C) of the segment's index."""


def write_scanned(segment: Segment, scan: Scan) -> None:
    """Write the results of a walk over a segment to its index. Raises OSError."""
    write_anew(segment.path(TXN_INDEX_SUFFIX), _entries_of(scan))


def check_indexes(directory: str, segments: Sequence[Segment]) -> bool:
    """Check every index and rebuild damaged ones; True if any transaction was aborted.

    Raises OSError, DamagedLogError.
    """
    names = list_directory(directory)
    present = {base_offset_of(name) for name in names if name.endswith(TXN_INDEX_SUFFIX)}
    known = _load_sums(directory) if TXN_INDEX_CHECKPOINT in names else {}
    sums: Sums = {}
    for at, segment in enumerate(segments):
        if segment.base_offset not in present and segment.base_offset not in known:
            continue
        checksum = _sum_of(segment)
        if checksum != known.get(segment.base_offset):
            _compare(directory, segments, at)
            checksum = _sum_of(segment)
        if checksum is not None:
            sums[segment.base_offset] = checksum
    if sums != known:
        with _checksums_may_wait(os.path.join(directory, TXN_INDEX_CHECKPOINT)):
            _save_sums(directory, sums)
    return bool(sums)


def remember(directory: str, segments: Sequence[Segment]) -> str:
    """Note the checksum of the last segment's index, which is complete; the file to sync.

    Raises OSError.
    """
    path = os.path.join(directory, TXN_INDEX_CHECKPOINT)
    with _checksums_may_wait(path):
        sums = _load_sums(directory)
        checksum = _sum_of(segments[-1])
        if checksum is not None and sums.get(segments[-1].base_offset) != checksum:
            bases = {segment.base_offset for segment in segments}
            sums[segments[-1].base_offset] = checksum
            _save_sums(directory, {base: sums[base] for base in sorted(bases & sums.keys())})
    return path


def remember_replaced(directory: str, segments: Sequence[Segment], new: Segment) -> None:
    """A cleaned segment is in the log: its index counts now. Raises OSError."""
    with _checksums_may_wait(os.path.join(directory, TXN_INDEX_CHECKPOINT)):
        sums = _load_sums(directory)
        bases = {segment.base_offset for segment in segments}
        kept = {base: checksum for base, checksum in sums.items() if base in bases}
        checksum = _sum_of(new)
        if checksum is None:
            kept.pop(new.base_offset, None)
        else:
            kept[new.base_offset] = checksum
        if kept != sums:
            _save_sums(directory, {base: kept[base] for base in sorted(kept)})


@contextmanager
def _checksums_may_wait(path: str) -> Iterator[None]:
    """An index without its checksum, or with a former one, is compared with its segment."""
    try:
        yield
    except OSError as error:
        if not may_do_without(error):
            raise
        logger.warning("cannot write %s, so the next start reads one more segment: %s", path, error)


def rebuild(directory: str, segments: Sequence[Segment], at: int) -> list[AbortedTransaction]:
    """Rebuild the index of segment ``at``. Raises OSError, DamagedLogError."""
    scan = _scan(directory, segments, at)
    write_scanned(segments[at], scan)
    return _entries_of(scan)


def cut_index(directory: str, segments: Sequence[Segment], end: int) -> None:
    """Before the last segment is cut: forget transactions that ended at or above ``end``.

    Raises OSError, DamagedLogError.
    """
    segment = segments[-1]
    path = segment.path(TXN_INDEX_SUFFIX)
    try:
        entries = read_entries(path, segment.base_offset, segment.next_offset)
    except CorruptTxnIndexError as error:
        logger.warning("%s; rebuilding it from the log", error)
        entries = rebuild(directory, segments, len(segments) - 1)
    kept = [entry for entry in entries if entry.last_offset < end]
    if len(kept) < len(entries):
        write_anew(path, kept)


def _compare(directory: str, segments: Sequence[Segment], at: int) -> None:
    segment = segments[at]
    path = segment.path(TXN_INDEX_SUFFIX)
    expected = _entries_of(scan := _scan(directory, segments, at))
    try:
        if read_entries(path, segment.base_offset, segment.next_offset) == expected:
            if _size_of(path) != len(expected) * ENTRY_BYTES:
                write_scanned(segment, scan)  # readers find no entry that is to be left out
            return
        problem = f"{path} does not match its segment"
    except CorruptTxnIndexError as error:
        problem = str(error)
    logger.warning("%s; rebuilding it from the log", problem)
    write_scanned(segment, scan)


def _size_of(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def _scan(directory: str, segments: Sequence[Segment], at: int) -> Scan:
    """Walk segment ``at`` with the state of producers at its beginning."""
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
                f"{each.path(LOG_SUFFIX)}: {scan.problem} at position {scan.end_position}; cannot "
                "determine which of its transactions were aborted"
            )
    return scan


def _entries_of(scan: Scan) -> list[AbortedTransaction]:
    return [AbortedTransaction(*entry) for entry in scan.aborted]


def _sum_of(segment: Segment) -> tuple[int, int] | None:
    data = read_if_present(segment.path(TXN_INDEX_SUFFIX))
    return (len(data), crc32c(data)) if data else None


def _load_sums(directory: str) -> Sums:
    """The checkpoint's content; empty if it cannot be read: then segments are walked."""
    data = read_if_present(os.path.join(directory, TXN_INDEX_CHECKPOINT)) or b""
    try:
        return parse_sums(data)
    except ValueError:
        return {}  # torn, or of another version


def parse_sums(data: bytes) -> Sums:
    """Parse the bytes of a ``txn-index-checkpoint``. Raises ValueError."""
    version, count, *lines = data.decode("ascii").splitlines()
    rows = [tuple(int(part) for part in line.split(" ")) for line in lines]
    if int(version) != VERSION or int(count) != len(rows):
        raise ValueError(f"version {version}, {count} entries expected, {len(rows)} found")
    return {base: (size, checksum) for base, size, checksum in rows}


def _save_sums(directory: str, sums: Sums) -> None:
    path = os.path.join(directory, TXN_INDEX_CHECKPOINT)
    if not sums:
        remove_if_present(path)
        return
    lines = [f"{base} {size} {checksum}" for base, (size, checksum) in sums.items()]
    text = "\n".join([str(VERSION), str(len(lines)), *lines, ""])
    replace_file(path, text.encode(), sync=False)
