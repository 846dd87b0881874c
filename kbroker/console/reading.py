"""Records of some partitions in the order of their timestamps, as many as fit into bounds.

A reading ends when it has enough records, has read so many or so many bytes, when its time is up,
or at the ends of the partitions. It says from which offsets the next one continues.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import NamedTuple

from kbroker.batch_errors import CorruptBatchError, DecompressionError
from kbroker.client.admin.transactions import describe_producers
from kbroker.client.batches.fetch import RangeFetch
from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.batches.topic_reader import MarkedRecord, ReadRecord, marked_records_of
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientError, CorruptRecords
from kbroker.console.search import Search

# BOUND: bytes that a reading fetches, and of one fetch; one batch may be larger.
BYTES_MAX = 64 << 20
FETCH_BYTES_MAX = 256 << 10
FETCH_S = 4.0
# BOUND: records that are searched in one go.
TOGETHER = 200

# What became of the transaction of a record. Readers of what is committed never see ABORTED, and do
# not yet see OPEN and WAITING, which is behind an open one.
COMMITTED, ABORTED, OPEN, WAITING = "committed", "aborted", "open", "waiting"


class ReadingBounds(NamedTuple):
    """records: that are found. scanned: that are looked at. deadline: of time.monotonic."""

    records: int
    scanned: int
    deadline: float


class FoundRecord(NamedTuple):
    """transaction: of the words above; None for a record outside of any that all readers see."""

    record: ReadRecord
    transaction: str | None


class PartitionsReading:
    """positions: of the next record of each partition, before and after ``read``. ends: exclusive.
    stable: the last stable offsets. read_committed: without what is aborted; ends are stable then.
    complete: every partition was read to its end. scanned: records looked at.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        stable: Mapping[TopicPartition, int],
        *,
        read_committed: bool = False,
    ) -> None:
        self._cluster = cluster
        self.positions = dict(positions)
        self._ends = ends
        self._stable = stable
        self._open = _open_transactions(cluster, [key for key in ends if stable[key] < ends[key]])
        self._read_committed = read_committed
        self._bytes = 0
        self._last: dict[TopicPartition, int] = {}  # the offsets of what sources have given
        self._at_end: set[TopicPartition] = set()
        self.scanned = 0
        self.complete = False

    def read(self, search: Search, bounds: ReadingBounds) -> list[FoundRecord]:
        """The records that are found. Raises CorruptRecords, OffsetOutOfRange, ..."""
        sources = {key: self._records(key) for key in self.positions}
        merged = self._merged(sources)
        records: list[FoundRecord] = []
        try:
            while len(records) < bounds.records and not self._is_over(bounds):
                most = TOGETHER if search.is_on else bounds.records - len(records)
                rows = self._some(merged, min(most, bounds.scanned - self.scanned), bounds)
                if not rows:
                    break
                self._take(rows, search, bounds, records)
            self._pass_ends()
            self.complete = all(self.positions[key] >= end for key, end in self._ends.items())
            return records
        finally:
            merged.close()
            for source in sources.values():
                source.close()

    def _is_over(self, bounds: ReadingBounds) -> bool:
        return (
            self.scanned >= bounds.scanned
            or self._bytes >= BYTES_MAX
            or time.monotonic() > bounds.deadline
        )

    def _some(
        self, merged: Iterator[FoundRecord], most: int, bounds: ReadingBounds
    ) -> list[FoundRecord]:
        rows = []
        for row in merged:
            rows.append(row)
            if len(rows) == most or self._is_over(bounds):
                break
        return rows

    def _merged(
        self, sources: Mapping[TopicPartition, Generator[FoundRecord]]
    ) -> Generator[FoundRecord]:
        """The records of all partitions in the order of their timestamps."""
        heads: dict[TopicPartition, FoundRecord] = {}
        for key, source in sources.items():
            self._advance(key, source, heads)
        while heads:
            key = min(heads, key=lambda key: (heads[key].record.timestamp, key))
            head = heads.pop(key)
            self._advance(key, sources[key], heads)
            yield head

    def _advance(
        self,
        key: TopicPartition,
        source: Iterator[FoundRecord],
        heads: dict[TopicPartition, FoundRecord],
    ) -> None:
        head = next(source, None)
        if head is not None:
            heads[key] = head
            self._last[key] = head.record.offset
        else:
            self._at_end.add(key)

    def _take(
        self,
        rows: list[FoundRecord],
        search: Search,
        bounds: ReadingBounds,
        records: list[FoundRecord],
    ) -> None:
        """Add those that are found, until there are enough; the next reading begins behind."""
        for row, is_found in zip(rows, search.find([row.record for row in rows]), strict=True):
            record = row.record
            self.scanned += 1
            self.positions[record.topic, record.partition] = record.offset + 1
            if is_found:
                records.append(row)
                if len(records) == bounds.records:
                    break

    def _pass_ends(self) -> None:
        """Control records, and what compaction took, are no records."""
        for key in self._at_end:
            if self.positions[key] > self._last.get(key, -1):
                self.positions[key] = max(self.positions[key], self._ends[key])

    def _records(self, key: TopicPartition) -> Generator[FoundRecord]:
        """Which records were aborted, brokers tell only below the last stable offset."""
        at, stable, end = self.positions[key], self._stable[key], self._ends[key]
        for row in self._range(key, at, min(stable, end), read_committed=True):
            if not (row.aborted and self._read_committed):
                yield FoundRecord(row.record, _stable_state(row))
        for row in self._range(key, max(at, stable), end, read_committed=False):
            yield FoundRecord(row.record, self._unstable_state(key, row))

    def _unstable_state(self, key: TopicPartition, row: MarkedRecord) -> str:
        first = self._open.get((*key, row.producer_id))
        return OPEN if first is not None and row.record.offset >= first else WAITING

    def _range(
        self, key: TopicPartition, at: int, end: int, *, read_committed: bool
    ) -> Iterator[MarkedRecord]:
        if at >= end:
            return
        sets = RangeFetch(
            self._cluster,
            *key,
            at,
            end,
            read_committed=read_committed,
            max_bytes=FETCH_BYTES_MAX,
            max_wait_ms=100,
            deadline=FETCH_S,
        )
        try:
            for record_set in sets:
                self._bytes += len(record_set.records)
                # The buffer of the set is used again, for the one after the next.
                rows = list(marked_records_of(key, record_set))
                for row in rows:
                    if at <= row.record.offset < end:
                        at = row.record.offset
                        yield row
        except (CorruptBatchError, DecompressionError) as error:
            raise CorruptRecords(*key, at, str(error)) from error
        finally:
            sets.close()


def _stable_state(row: MarkedRecord) -> str | None:
    if row.producer_id is None:
        return None
    return ABORTED if row.aborted else COMMITTED


def _open_transactions(
    cluster: Cluster, keys: Iterable[TopicPartition]
) -> dict[tuple[str, int, int | None], int]:
    """The first offset of each, by partition and producer id."""
    try:
        producers = describe_producers(cluster, keys)
    except ClientError:
        return {}  # Kafka before 2.8 does not tell; what is not stable then waits
    return {
        (*key, each.producer_id): each.open_from
        for key, rows in producers.items()
        for each in rows
        if each.open_from is not None
    }
