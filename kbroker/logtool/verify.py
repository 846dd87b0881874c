"""Checks the files of a partition against each other: every checksum, every index entry.

The log is read once, through the compiled scanner; indexes are mapped. Nothing is changed. Faults
that a broker would repair by itself at its next start are reported as well.
"""

from __future__ import annotations

import os

from kbroker._ext.log.log_scan import DAMAGED, ZEROS, IndexCheck, Scan, scan_segment
from kbroker._ext.log.offset_index import LOOK_ONLY, CorruptIndexError, OffsetIndex, TimeIndex
from kbroker._ext.log.producer_state import ProducerState
from kbroker.logtool import walk
from kbroker.logtool.output import DAMAGE, NOTE, Output
from kbroker.storage.formats import (
    INDEX_SUFFIX,
    LARGEST,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_name,
)
from kbroker.storage.segments.txn_index import (
    AbortedTransaction,
    CorruptTxnIndexError,
    read_entries,
)


class SegmentCheck:
    """One segment: ``run`` walks it and reports to ``out``."""

    __slots__ = (
        "_directory",
        "_log_start_offset",
        "_offsets",
        "_out",
        "_times",
        "base_offset",
        "compacted",
        "following",
        "size",
    )

    def __init__(
        self,
        directory: str,
        base_offset: int,
        out: Output,
        *,
        following: int | None,
        log_start_offset: int,
        compacted: bool,
    ) -> None:
        """following: base offset of the next segment, None for the last. compacted: offsets may
        be missing. log_start_offset: where the oldest segment begins.
        """
        self._directory = directory
        self._out = out
        self._log_start_offset = log_start_offset
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self.base_offset = base_offset
        self.following = following
        self.compacted = compacted
        self.size = 0

    def path(self, suffix: str) -> str:
        return os.path.join(self._directory, segment_name(self.base_offset, suffix))

    def run(self, producers: ProducerState) -> Scan:
        """producers: as of the segment's start, fed with the segment. Raises OSError."""
        path = self.path(LOG_SUFFIX)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size = os.fstat(fd).st_size
            self._open_indexes()
            check = IndexCheck(self._offsets, self._times)
            scan = scan_segment(
                fd,
                self.base_offset,
                self.size,
                producers=producers,
                progress=self._out.progress.walker(path, self.size),
                check=check,
            )
        finally:
            os.close(fd)
        check.finish(scan.stop != DAMAGED)
        self._report_log(scan, check)
        self._report_indexes(scan, check)
        if scan.stop != DAMAGED:
            self._check_txn_index(scan, check)
        self._close_indexes()
        self._out.progress.finished(path, self.size)
        return scan

    def _damage(self, suffix: str, text: str) -> None:
        path = self.path(suffix)
        self._out.finding(path, DAMAGE, text.removeprefix(f"{path}: "))

    # ---- the log ----

    def _report_log(self, scan: Scan, check: IndexCheck) -> None:
        if scan.stop == DAMAGED:
            self._damage(
                LOG_SUFFIX,
                f"{scan.problem} at position {scan.end_position} of {self.size}; offsets from "
                f"{scan.next_offset} cannot be read",
            )
        elif scan.stop == ZEROS:
            text = f"nothing but zeros from position {scan.end_position} of {self.size}"
            self._out.finding(self.path(LOG_SUFFIX), NOTE, text)
        if check.gap_count and not self.compacted:
            self._damage(
                LOG_SUFFIX,
                f"offsets are missing in {check.gap_count} places, the first after "
                f"{check.first_gap - 1}, and nothing says that this log is compacted",
            )
        following = self.following
        if following is None or scan.next_offset == following or scan.stop == DAMAGED:
            return
        if scan.next_offset > following or not self.compacted:
            self._damage(
                LOG_SUFFIX,
                f"ends with offset {scan.next_offset - 1}, but the next segment begins with "
                f"{following}",
            )

    # ---- .index and .timeindex ----

    def _open_indexes(self) -> None:
        try:
            self._offsets = OffsetIndex(self.path(INDEX_SUFFIX), self.base_offset, LOOK_ONLY)
            self._offsets.verify(self.size)
        except FileNotFoundError:
            self._missing(INDEX_SUFFIX)
        except CorruptIndexError as error:
            self._offsets = None
            self._damage(INDEX_SUFFIX, str(error))
        try:
            self._times = TimeIndex(self.path(TIME_INDEX_SUFFIX), self.base_offset, LOOK_ONLY)
            self._times.verify(LARGEST)
        except FileNotFoundError:
            self._missing(TIME_INDEX_SUFFIX)
        except CorruptIndexError as error:
            self._times = None
            self._damage(TIME_INDEX_SUFFIX, str(error))

    def _close_indexes(self) -> None:
        for index in (self._offsets, self._times):
            if index is not None:
                index.close()
        self._offsets = self._times = None

    def _missing(self, suffix: str) -> None:
        if self.size:
            self._damage(suffix, "missing; `kbroker-log rebuild` makes it from the log")

    def _report_indexes(self, scan: Scan, check: IndexCheck) -> None:
        for suffix, problems, count in (
            (INDEX_SUFFIX, check.offset_problems, check.offset_problem_count),
            (TIME_INDEX_SUFFIX, check.time_problems, check.time_problem_count),
        ):
            for problem in problems:
                self._damage(suffix, problem)
            if count > len(problems):
                self._damage(suffix, f"and {count - len(problems)} more wrong entries")
        if check.grouped_count:
            text = (
                f"{check.grouped_count} entries each stand for several batches, which is how "
                "Kafka writes them"
            )
            self._out.finding(self.path(INDEX_SUFFIX), NOTE, text)
        is_sealed = self.following is not None and scan.stop != DAMAGED
        # An entry of timestamp 0 at the first offset is all zeros, which is no entry.
        if self._times is None or not is_sealed or scan.max_timestamp <= 0:
            return
        newest = self._times.last_entry[0]
        if newest < scan.max_timestamp:
            self._damage(
                TIME_INDEX_SUFFIX,
                f"its last timestamp is {newest}, but the segment's largest is "
                f"{scan.max_timestamp}",
            )

    # ---- .txnindex ----

    def _check_txn_index(self, scan: Scan, check: IndexCheck) -> None:
        path = self.path(TXN_INDEX_SUFFIX)
        try:
            entries = read_entries(path, self.base_offset, scan.next_offset)
        except CorruptTxnIndexError as error:
            self._damage(TXN_INDEX_SUFFIX, str(error))
            return
        problem = walk.index_disagrees(
            entries,
            [AbortedTransaction(*entry) for entry in scan.aborted],
            log_start_offset=self._log_start_offset,
            has_gaps=self.compacted or check.gap_count > 0,
        )
        if problem is not None:
            self._damage(TXN_INDEX_SUFFIX, problem)
