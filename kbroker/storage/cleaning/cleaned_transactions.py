"""The transactions in a pass of compaction. Pure; one object for each pass over a log.

The records of an aborted transaction are removed at once. A marker may be removed when nothing of
its transaction was met before it; the batch cleaner then gives it its delete horizon. An entry
of a ``.txnindex`` stays for as long as a batch of its transaction was met, because a crash may
leave that batch in place while the segment with the marker is cleaned already.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.record.control import ABORT, COMMIT
from kbroker.storage.segments.txn_index import AbortedTransaction
from kbroker.types import Offset

NO_RECORD = -1


class CleanedTransactions:
    """Tracks which transactions in a log are aborted while the log is cleaned.

    It must be given the transactional and control batches in the order of the log.
    """

    __slots__ = ("_committed", "_next", "_open", "_waiting", "kept_aborts")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """aborted: every aborted transaction with records or a marker in the cleaned segments."""
        self._waiting = sorted(aborted, key=lambda entry: entry.first_offset)
        self._next = 0
        # Aborted transactions by producer, and whether one of their batches was found.
        self._open: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._committed: set[int] = set()
        # Entries for the index of the segment that is being written; the caller clears it.
        self.kept_aborts: list[AbortedTransaction] = []

    def on_batch(self, producer_id: int, last_offset: Offset) -> bool:
        """Whether this transactional batch belongs to an aborted transaction."""
        self._advance(last_offset)
        transaction = self._open.get(producer_id)
        # A transaction that ended before the start of the pass is irrelevant to this batch.
        if transaction is None or transaction[0].last_offset < last_offset:
            self._committed.add(producer_id)
            return False
        if not transaction[1]:
            self._open[producer_id] = (transaction[0], True)
        return True

    def on_marker(self, producer_id: int, last_offset: Offset, kind: int) -> bool:
        """Whether no remaining record before this control batch needs it."""
        self._advance(last_offset)
        if kind == ABORT:
            entry, has_batches = self._open.pop(producer_id, (None, False))
            if entry is None or not has_batches:
                return True
            self.kept_aborts.append(entry)
            return False
        if kind == COMMIT:
            if producer_id not in self._committed:
                return True
            self._committed.remove(producer_id)
            return False
        # An emptied batch is not a marker any more; other types must not be dropped.
        return kind == NO_RECORD

    def _advance(self, offset: Offset) -> None:
        while self._next < len(self._waiting):
            entry = self._waiting[self._next]
            if entry.first_offset > offset:
                return
            before = self._open.get(entry.producer_id)
            if before is None or before[0].last_offset < entry.first_offset:
                self._open[entry.producer_id] = (entry, False)
            self._next += 1
