"""Rebuilds the indexes of segments from their logs, while no broker uses the directory.

An index is written under another name, synced and renamed, so that a crash leaves either the old
one or the new one. A segment whose log is damaged keeps its indexes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from kbroker._ext.log.log_scan import DAMAGED, IndexCheck, Scan, scan_segment
from kbroker._ext.log.offset_index import OffsetIndex, TimeIndex
from kbroker._ext.log.producer_state import ProducerState
from kbroker.logtool import targets, walk
from kbroker.logtool.output import DAMAGE, OK, Output
from kbroker.logtool.targets import UsageError
from kbroker.storage.files import remove_if_present, sync_directory, sync_file
from kbroker.storage.formats import (
    INDEX_SUFFIX,
    LOCK_NAME,
    LOG_SUFFIX,
    META_NAME,
    SEGMENT_SUFFIXES,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    base_offset_of,
    segment_name,
)
from kbroker.storage.owner import give_to_owner
from kbroker.storage.segments.segment import INDEX_BYTES_ANY
from kbroker.storage.segments.txn_index import (
    AbortedTransaction,
    CorruptTxnIndexError,
    read_entries,
    write_anew,
)
from kbroker.supervisor.data_dirs import try_lock
from kbroker.wording import counted

_OFFSET_ENTRY_BYTES, _TIME_ENTRY_BYTES = 8, 12
# The smallest entry of a log: a message of format 0 without key and value.
_BATCH_BYTES_MIN = 26


def rebuild(paths: list[str], out: Output, *, index_interval_bytes: int) -> None:
    """Rebuild the indexes in ``paths``. Raises UsageError if nothing was changed."""
    kinds = [targets.kind_of(path) for path in paths]
    for path, kind in zip(paths, kinds, strict=True):
        if kind in (targets.LOG_DIR, targets.PARTITION):
            continue
        if not path.endswith(SEGMENT_SUFFIXES):
            raise UsageError(f"{path}: rebuild only makes the indexes of segments")
        if not os.path.exists(targets.segment_path(path, LOG_SUFFIX)):
            raise UsageError(f"{path}: its log file is missing")
    out.progress.start(targets.log_bytes(paths))
    with locked([targets.log_dir_of(path) for path in paths]):
        for path, kind in zip(paths, kinds, strict=True):
            directories = targets.partition_dirs(path) if kind == targets.LOG_DIR else [path]
            for directory in directories:
                _rebuild_one(directory, kind, out, index_interval_bytes)


def _rebuild_one(path: str, kind: str, out: Output, interval: int) -> None:
    try:
        if kind in (targets.LOG_DIR, targets.PARTITION):
            rebuild_segments(path, targets.segment_bases(path), out, interval)
            return
        base_offset = base_offset_of(os.path.basename(path))
        assert base_offset is not None, path
        rebuild_segments(os.path.dirname(path), [base_offset], out, interval)
    except OSError as error:
        text = f"not rebuilt; the old indexes are kept: {error.strerror}"
        out.finding(error.filename or path, DAMAGE, text)


@contextmanager
def locked(log_dirs: Sequence[str]) -> Iterator[None]:
    """Hold the lock of each log directory, so that no broker starts on it.

    A directory that is none (a partition was copied elsewhere) has no lock to take. Raises
    UsageError when a broker has it.
    """
    with ExitStack() as stack:
        for log_dir in sorted(set(map(os.path.realpath, log_dirs))):
            path = os.path.join(log_dir, LOCK_NAME)
            create = os.O_CREAT if os.path.exists(os.path.join(log_dir, META_NAME)) else 0
            try:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | create, 0o644)
            except FileNotFoundError:
                continue  # no broker has ever used this directory
            except OSError as error:
                raise UsageError(f"{path}: {error.strerror}") from error
            stack.callback(os.close, fd)
            if create:
                give_to_owner(path)
            if not try_lock(fd):
                raise UsageError(f"a broker is using {log_dir}; stop it first")
        yield


def in_use(log_dir: str) -> bool:
    """Whether a kbroker uses the directory; the check does not keep one from starting."""
    with suppress(OSError):  # no lock file: no kbroker has ever used it
        fd = os.open(os.path.join(log_dir, LOCK_NAME), os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
    return False


def rebuild_segments(directory: str, bases: list[int], out: Output, interval: int) -> None:
    """Rebuild consecutive segments. Raises OSError."""
    if not bases:
        return
    log_start_offset = targets.segment_bases(directory)[0]
    producers = walk.producers_before(directory, bases[0])
    rebuilt, damaged = 0, False
    for base in bases:
        if damaged or producers.end_offset > base:
            producers = walk.producers_before(directory, base)
        path = os.path.join(directory, segment_name(base, LOG_SUFFIX))
        scan = _rebuild_segment(directory, base, producers, log_start_offset, out, interval)
        damaged = scan.stop == DAMAGED
        if damaged:
            out.finding(
                path,
                DAMAGE,
                f"{scan.problem} at position {scan.end_position}; the old indexes are kept",
            )
        else:
            rebuilt += 1
    sync_directory(directory)
    if rebuilt:
        out.finding(directory, OK, f"indexes of {counted(rebuilt, 'segment')} rebuilt")


def _rebuild_segment(
    directory: str,
    base: int,
    producers: ProducerState,
    log_start_offset: int,
    out: Output,
    interval: int,
) -> Scan:
    def path(suffix: str) -> str:
        return os.path.join(directory, segment_name(base, suffix))

    made = [path(suffix) + TEMPORARY_SUFFIX for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
    fd = os.open(path(LOG_SUFFIX), os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        _allocate(made[0], size, interval, _OFFSET_ENTRY_BYTES)
        _allocate(made[1], size, interval, _TIME_ENTRY_BYTES)
        offsets = OffsetIndex(made[0], base, INDEX_BYTES_ANY)
        times = TimeIndex(made[1], base, INDEX_BYTES_ANY)
        check = IndexCheck()
        scan = scan_segment(
            fd,
            base,
            size,
            offset_index=offsets,
            time_index=times,
            index_interval_bytes=interval,
            producers=producers,
            progress=out.progress.walker(path(LOG_SUFFIX), size),
            check=check,
        )
        if scan.stop != DAMAGED:
            if scan.max_timestamp >= 0:
                times.append_entry(scan.max_timestamp, scan.max_timestamp_offset, final=True)
            offsets.seal(sync=True)
            times.seal(sync=True)
            for temporary in made:
                give_to_owner(temporary)
            os.rename(made[0], path(INDEX_SUFFIX))
            os.rename(made[1], path(TIME_INDEX_SUFFIX))
            _rebuild_txn_index(path(TXN_INDEX_SUFFIX), base, scan, check, log_start_offset)
    finally:
        os.close(fd)
        for temporary in made:
            remove_if_present(temporary)
    out.progress.finished(path(LOG_SUFFIX), size)
    return scan


def _allocate(path: str, log_size: int, interval: int, entry_bytes: int) -> None:
    """Create a file with room for all possible entries; on a full disk, entries would be left out.

    Raises OSError.
    """
    entries = log_size // max(interval + 1, _BATCH_BYTES_MIN) + 2
    size = min(entries * entry_bytes, INDEX_BYTES_ANY // entry_bytes * entry_bytes)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(fd, 0, size)
    finally:
        os.close(fd)


def _rebuild_txn_index(
    path: str, base: int, scan: Scan, check: IndexCheck, log_start_offset: int
) -> None:
    """Keep an index that matches the log: it may list transactions whose records are removed."""
    aborted = [AbortedTransaction(*entry) for entry in scan.aborted]
    try:
        entries = read_entries(path, base, scan.next_offset)
        has_gaps = check.gap_count > 0 or walk.was_compacted(os.path.dirname(path))
        if not walk.index_disagrees(
            entries, aborted, log_start_offset=log_start_offset, has_gaps=has_gaps
        ):
            return
    except CorruptTxnIndexError:
        pass  # it is replaced
    write_anew(path, aborted)
    give_to_owner(path)
    sync_file(path)
