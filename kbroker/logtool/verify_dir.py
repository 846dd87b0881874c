"""Checks partitions and log directories: the segments, and the small files that describe them."""

from __future__ import annotations

import os
from itertools import pairwise

from kbroker._ext.log.producer_state import CorruptSnapshotError
from kbroker.logtool import targets, walk
from kbroker.logtool.output import DAMAGE, NOTE, OK, Output
from kbroker.logtool.targets import UsageError
from kbroker.logtool.verify import SegmentCheck
from kbroker.storage.checkpoint import (
    CorruptCheckpointError,
    OffsetCheckpoint,
    TopicPartition,
    parse_epochs,
)
from kbroker.storage.dirs.partition_metadata import CorruptMetadataError, read_partition_metadata
from kbroker.storage.files import read_if_present
from kbroker.storage.formats import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    QUARANTINE_MARKER,
    RECOVERY_POINT_CHECKPOINT,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    TXN_INDEX_CHECKPOINT,
    base_offset_of,
    parse_partition_dir,
    segment_name,
)
from kbroker.storage.repair.txn_recovery import parse_sums
from kbroker.storage.segments.producer_snapshots import list_snapshots, snapshot_path
from kbroker.types import Offset
from kbroker.wording import counted

Epochs = list[tuple[int, Offset]]
_MIB = 1 << 20


def verify(paths: list[str], out: Output, *, compacted: bool, verbose: bool = False) -> None:
    """Check the files and directories in ``paths``. compacted: offsets may be missing. verbose:
    also report empty partitions of a log directory. Raises UsageError.
    """
    kinds = [targets.kind_of(path) for path in paths]
    for path in paths:
        if path.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)):
            raise UsageError(
                f"{path} is being added or removed; give a segment in use, or dump this file"
            )
    out.progress.start(targets.log_bytes(paths))
    for path, kind in zip(paths, kinds, strict=True):
        try:
            if kind == targets.LOG_DIR:
                verify_log_dir(path, out, compacted=compacted, verbose=verbose)
            elif kind == targets.PARTITION:
                PartitionCheck(path, out, compacted=compacted).run()
            else:
                _verify_file(path, kind, out, compacted=compacted)
        except OSError as error:
            out.finding(error.filename or path, DAMAGE, f"cannot be read: {error.strerror}")


def _verify_file(path: str, kind: str, out: Output, *, compacted: bool) -> None:
    before = out.damage_count
    directory, name = os.path.split(path)
    check = PartitionCheck(directory, out, compacted=compacted)
    if kind == "checkpoint":
        _read_checkpoint(directory, name, out)
    elif kind == "epochs":
        check.read_epochs()
    elif kind == "txnsums":
        check.check_sums()
    elif kind == "metadata":
        check.check_metadata()
    elif kind == "snapshot":
        check.check_snapshot(base_offset_of(name) or 0, None)
    elif os.path.exists(targets.segment_path(path, LOG_SUFFIX)):
        check.run_segment(base_offset_of(name) or 0)
    else:
        out.finding(path, DAMAGE, "its log file is missing, so there is nothing to compare it with")
    if out.damage_count == before:
        out.finding(path, OK, "no damage found")


def verify_log_dir(path: str, out: Output, *, compacted: bool, verbose: bool) -> None:
    """Check every partition of a log directory, then its checkpoints. Raises OSError."""
    ends: dict[TopicPartition, int | None] = {}
    total = _Total()
    before = out.damage_count
    for directory in targets.partition_dirs(path):
        check = PartitionCheck(directory, out, compacted=compacted)
        damage_count = out.damage_count
        try:
            check.run(tell_empty=verbose)
        except OSError as error:
            name = error.filename or directory
            out.finding(name, DAMAGE, f"cannot be read: {error.strerror}")
        key = parse_partition_dir(os.path.basename(directory))
        if key is not None:
            ends[key] = check.end_offset
        total.add(check, is_damaged=out.damage_count > damage_count)
    for name in targets.OFFSET_CHECKPOINTS:
        _check_offsets(path, name, ends, out)
    out.finding(path, OK if out.damage_count == before else NOTE, total.text())


class _Total:
    """Totals over the partitions of a log directory."""

    __slots__ = ("_batches", "_damaged", "_empty", "_partitions", "_size")

    def __init__(self) -> None:
        self._partitions = self._empty = self._damaged = self._batches = self._size = 0

    def add(self, check: PartitionCheck, *, is_damaged: bool) -> None:
        self._partitions += 1
        self._damaged += is_damaged
        self._empty += not is_damaged and not check.batches
        self._batches += check.batches
        self._size += check.size

    def text(self) -> str:
        return (
            f"{counted(self._partitions, 'partition')}"
            + (f", {self._damaged:,} damaged" if self._damaged else "")
            + (f", {self._empty:,} empty" if self._empty else "")
            + f"; {counted(self._batches, 'batch', 'es')}, {self._size / _MIB:.1f} MiB"
        )


def _read_checkpoint(directory: str, name: str, out: Output) -> dict[TopicPartition, Offset]:
    try:
        return OffsetCheckpoint(directory, name).read() or {}
    except CorruptCheckpointError as error:
        path = os.path.join(directory, name)
        out.finding(path, DAMAGE, str(error).removeprefix(f"{path}: "))
        return {}


def _check_offsets(
    directory: str, name: str, ends: dict[TopicPartition, int | None], out: Output
) -> None:
    """Compare a checkpoint with the ends of the logs; None: unknown, because the log is damaged."""
    path = os.path.join(directory, name)
    for key, offset in _read_checkpoint(directory, name, out).items():
        partition = f"{key[0]}-{key[1]}"
        if key not in ends:
            if name == RECOVERY_POINT_CHECKPOINT:
                out.finding(path, NOTE, f"{partition} has no directory here")
            continue
        end = ends[key]
        if end is None or offset <= end:
            continue
        text = f"{partition} is at {offset}, but its log ends at {end}"
        lost = name in (RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT)
        if lost or name == HIGH_WATERMARK_CHECKPOINT:
            out.finding(path, DAMAGE if lost else NOTE, text)


class PartitionCheck:
    """Checks a partition's directory. ``end_offset`` is None until it is known, and if the log is
    damaged.
    """

    __slots__ = ("_compacted", "_directory", "_out", "batches", "end_offset", "size")

    def __init__(self, directory: str, out: Output, *, compacted: bool) -> None:
        self._directory = directory
        self._out = out
        self._compacted = compacted or walk.was_compacted(directory)
        self.end_offset: int | None = None
        self.batches = self.size = 0

    def run(self, *, tell_empty: bool = True) -> None:
        """Check everything in the directory. tell_empty: report it even if it is empty. Raises
        OSError.
        """
        out = self._out
        before = out.damage_count
        bases = targets.segment_bases(self._directory)
        if bases:
            scanned, self.size, self.batches = self._check_segments(bases)
            self._check_epochs(scanned)
        else:
            self.read_epochs()
        for offset in list_snapshots(self._directory):
            self.check_snapshot(offset, self.end_offset)
        self.check_sums()
        self.check_metadata()
        self._note_leftovers(bases)
        if out.damage_count == before and (self.batches or tell_empty):
            first = bases[0] if bases else 0
            text = (
                f"{counted(len(bases), 'segment')}, {counted(self.batches, 'batch', 'es')}, "
                f"{self.size / _MIB:.1f} MiB, offsets {first} up to {self.end_offset}"
                if bases
                else "no segments yet"
            )
            out.finding(self._directory, OK, text)

    def run_segment(self, base_offset: int) -> None:
        """Check the files of one segment alone. Raises OSError."""
        bases = targets.segment_bases(self._directory)
        behind = [base for base in bases if base > base_offset]
        self._segment(base_offset, behind[0] if behind else None, bases[0]).run(
            walk.producers_before(self._directory, base_offset)
        )

    def _segment(self, base_offset: int, following: int | None, start: int) -> SegmentCheck:
        return SegmentCheck(
            self._directory,
            base_offset,
            self._out,
            following=following,
            log_start_offset=start,
            compacted=self._compacted,
        )

    def _check_segments(self, bases: list[int]) -> tuple[Epochs, int, int]:
        """(leader epochs seen, bytes, batches)."""
        epochs: Epochs = []
        size = batches = 0
        intact = True
        producers = walk.producers_before(self._directory, bases[0])
        for base, following in pairwise([*bases, None]):
            assert base is not None
            check = self._segment(base, following, bases[0])
            scan = check.run(producers)
            epochs += scan.leader_epochs
            size += check.size
            batches += scan.batch_count
            intact = intact and scan.problem is None
            self.end_offset = scan.next_offset if intact else None
            if following is not None and (scan.problem or scan.next_offset > following):
                # Errors of this segment have been reported; the next segment is checked on its own.
                producers = walk.producers_before(self._directory, following)
        return epochs, size, batches

    # ---- the small files ----

    def read_epochs(self) -> Epochs:
        """The content of leader-epoch-checkpoint; findings if it is invalid. Raises OSError."""
        path = os.path.join(self._directory, LEADER_EPOCH_CHECKPOINT)
        try:
            epochs = parse_epochs(read_if_present(path) or b"", path)
        except CorruptCheckpointError as error:
            self._out.finding(path, DAMAGE, str(error).removeprefix(f"{path}: "))
            return []
        if any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(epochs)):
            self._out.finding(path, DAMAGE, "epochs or offsets are not increasing")
            return []
        return epochs

    def _check_epochs(self, scanned: Epochs) -> None:
        path = os.path.join(self._directory, LEADER_EPOCH_CHECKPOINT)
        epochs = self.read_epochs()
        if not epochs:
            return
        for epoch, offset in scanned:
            known = [e for e, start in epochs if start <= offset]
            if not known or known[-1] == epoch:
                continue
            # A crash may lose the file's latest epochs; the next start takes them from the log.
            level = NOTE if epoch > epochs[-1][0] else DAMAGE
            text = f"offset {offset} has epoch {epoch}, not {known[-1]}"
            self._out.finding(path, level, text)
            break
        end = self.end_offset
        if end is not None and epochs[-1][1] > end:
            text = f"epoch {epochs[-1][0]} begins at {epochs[-1][1]}, but the log ends at {end}"
            self._out.finding(path, DAMAGE, text)

    def check_snapshot(self, offset: int, end_offset: int | None) -> None:
        """Check one producer snapshot. Raises OSError."""
        path = snapshot_path(self._directory, offset)
        try:
            state = walk.read_snapshot(self._directory, offset)
        except CorruptSnapshotError as error:
            self._out.finding(path, DAMAGE, str(error))
            return
        if state is None:
            return
        if end_offset is not None and offset > end_offset:
            self._out.finding(path, DAMAGE, f"the log ends at {end_offset}, below it")
        for entry in state.entries.values():
            newest = max((batch[3] for batch in entry.recent_batches), default=-1)
            if max(newest, entry.current_txn_first_offset) >= offset:
                text = f"producer {entry.producer_id} has written at or after that offset"
                self._out.finding(path, DAMAGE, text)

    def check_sums(self) -> None:
        """Check that txn-index-checkpoint can be read. Raises OSError."""
        path = os.path.join(self._directory, TXN_INDEX_CHECKPOINT)
        data = read_if_present(path)
        if data is None:
            return
        try:
            parse_sums(data)
        except ValueError as error:
            self._out.finding(path, DAMAGE, f"invalid: {error}")

    def check_metadata(self) -> None:
        """Check partition.metadata. Raises OSError."""
        try:
            read_partition_metadata(self._directory)
        except CorruptMetadataError as error:
            self._out.finding(self._directory, DAMAGE, str(error))

    def _note_leftovers(self, bases: list[int]) -> None:
        known = set(bases)
        passing = 0
        for name in sorted(os.listdir(self._directory)):
            path = os.path.join(self._directory, name)
            base = base_offset_of(name)
            if name == QUARANTINE_MARKER:
                self._out.finding(path, NOTE, "the broker keeps this partition offline")
            elif base is None:
                continue
            elif name.count(".") > 1:
                passing += 1
            elif base not in known and any(name == segment_name(base, s) for s in SEGMENT_SUFFIXES):
                text = "its log file is missing; the next start removes it"
                self._out.finding(path, NOTE, text)
        if passing:
            suffixes = ", ".join((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, TEMPORARY_SUFFIX))
            text = (
                f"{counted(passing, 'file')} left over ({suffixes}); the next start removes or "
                "completes them"
            )
            self._out.finding(self._directory, NOTE, text)
