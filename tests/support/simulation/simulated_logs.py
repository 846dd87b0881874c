"""Logs of simulated brokers: batches with leader epochs, transactions, and a start that moves."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from kbroker.record.builder import BatchBuilder

NO_PRODUCER = -1


class Record(NamedTuple):
    """before: the uid of the record before it in its log, -1 for the first."""

    uid: int
    offset: int
    before: int


class Batch(NamedTuple):
    """end: behind its last offset. records: none for a marker. producer: of its transaction."""

    base: int
    end: int
    data: bytes
    records: list[Record]
    producer: int = NO_PRODUCER


class Aborted(NamedTuple):
    """first: of its records. marker: its offset."""

    producer: int
    first: int
    marker: int


class Log:
    """Of a leader, in one epoch; the next one has a copy. starts: where epochs begin. start: of
    what is not deleted. open: where transactions begin that have not ended, by producer.
    """

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.starts: list[tuple[int, int]] = [(0, 0)]
        self.start = self.end = 0
        self.last_uid = -1
        self.open: dict[int, int] = {}
        self.aborted: list[Aborted] = []
        self._hidden: dict[int, int] = {}  # producers of records that are not committed, by uid

    def of_next_leader(self, epoch: int, cut: int) -> Log:
        """cut: batches that it lacks, in a log without transactions whose start does not move."""
        made = Log()
        made.batches = self.batches[: len(self.batches) - cut]
        made.end, made.last_uid = self.end, self.last_uid
        if cut:
            made.end = made.batches[-1].end if made.batches else 0
            made.last_uid = made.batches[-1].records[-1].uid if made.batches else -1
        made.start = self.start
        made.starts = [row for row in self.starts if row[1] < made.end or row[0] == 0]
        made.starts.append((epoch, made.end))
        made.open, made.aborted = dict(self.open), list(self.aborted)
        made._hidden = dict(self._hidden)
        return made

    # -- writing

    def append(self, uids: list[int], epoch: int, producer: int = NO_PRODUCER) -> list[Record]:
        """producer: of the transaction that they are in."""
        is_open = producer != NO_PRODUCER
        builder = BatchBuilder(
            base_offset=self.end,
            leader_epoch=epoch,
            transactional=is_open,
            producer_id=producer,
            producer_epoch=0 if is_open else -1,
            base_sequence=0 if is_open else -1,
        )
        records = []
        for offset, uid in enumerate(uids, self.end):
            builder.append(b"%d" % uid)
            records.append(Record(uid, offset, self.last_uid))
            self.last_uid = uid
        if is_open:
            self.open.setdefault(producer, self.end)
            self._hidden.update(dict.fromkeys(uids, producer))
        self._add(builder.build(), records, producer)
        return records

    def _add(self, data: bytes, records: list[Record], producer: int) -> None:
        base, self.end = self.end, self.end + (len(records) or 1)
        self.batches.append(Batch(base, self.end, data, records, producer))

    def end_transaction(self, producer: int, epoch: int, commit: bool) -> None:
        first = self.open.pop(producer)
        if commit:
            self._hidden = {uid: one for uid, one in self._hidden.items() if one != producer}
        else:
            self._hidden = {
                uid: NO_PRODUCER if one == producer else one for uid, one in self._hidden.items()
            }
            self.aborted.append(Aborted(producer, first, self.end))
        builder = BatchBuilder(
            base_offset=self.end,
            leader_epoch=epoch,
            transactional=True,
            control=True,
            producer_id=producer,
            producer_epoch=0,
        )
        builder.append(b"\0\0\0\0\0\0", key=b"\0\0\0\1" if commit else b"\0\0\0\0")
        self._add(builder.build(), [], producer)

    def delete_before(self, offset: int) -> None:
        self.start = offset
        self.batches = [batch for batch in self.batches if batch.end > offset]

    # -- reading

    @property
    def stable(self) -> int:
        """The last stable offset."""
        return min(self.open.values(), default=self.end)

    def is_committed(self, record: Record) -> bool:
        return record.uid not in self._hidden

    def from_offset(self, offset: int) -> Iterator[Batch]:
        """The batch with the offset, and those behind it."""
        first = max(0, bisect_right(self.batches, offset, key=lambda batch: batch.base) - 1)
        for at in range(first, len(self.batches)):
            if self.batches[at].end > offset:
                yield self.batches[at]

    def records(self, committed: bool, first: int = 0, after: int | None = None) -> list[Record]:
        """Those that are not deleted. committed: no others than these, up to the stable offset."""
        limit = self.end if after is None else after
        if committed:
            limit = min(limit, self.stable)
        first = max(first, self.start)
        return [
            record
            for batch in self.from_offset(first)
            for record in batch.records
            if first <= record.offset < limit and not (committed and record.uid in self._hidden)
        ]

    def read(self, offset: int, most: int, committed: bool) -> list[Batch]:
        """At most so many batches, from the one with the offset on."""
        limit = self.stable if committed else self.end
        found = []
        for batch in self.from_offset(offset):
            if batch.base >= limit or len(found) == most:
                break
            found.append(batch)
        return found

    def aborted_in(self, first: int, end: int) -> list[Aborted]:
        """Transactions with records there."""
        return [one for one in self.aborted if one.first < end and one.marker >= first]

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to this one, and its end."""
        known = max((one for one, _ in self.starts if one <= epoch), default=-1)
        if known < 0:
            return -1, -1
        later = [start for one, start in self.starts if one > known]
        return known, min(later, default=self.end)

    def epoch_at(self, offset: int) -> int:
        """The epoch of the record there."""
        return max((epoch for epoch, start in self.starts if start <= offset), default=-1)
