"""Records of some partitions in the order of their timestamps, as many as fit into bounds.

A reading ends when it has enough records, has read so many or so many bytes, when its time is up,
or at the ends of the partitions. It says from which offsets the next one continues.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from kbroker.batch_errors import CorruptBatchError, DecompressionError
from kbroker.client.batches.fetch import RangeFetch
from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.batches.topic_reader import ReadRecord, records_of
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import CorruptRecords
from kbroker.console.record_json import Search

# BOUND: bytes that a reading fetches, and of one fetch; one batch may be larger.
BYTES_MAX = 64 << 20
FETCH_BYTES_MAX = 256 << 10
FETCH_S = 4.0


class Bounds(NamedTuple):
    """records: that are found. scanned: that are looked at. deadline: of time.monotonic."""

    records: int
    scanned: int
    deadline: float


class Reading:
    """positions: of the next record of each partition, before and after ``read``. ends: exclusive.
    complete: every partition was read to its end. scanned: records looked at.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        *,
        read_committed: bool,
    ) -> None:
        self._cluster = cluster
        self.positions = dict(positions)
        self._ends = ends
        self._read_committed = read_committed
        self._bytes = 0
        self.scanned = 0
        self.complete = False

    def read(self, search: Search, bounds: Bounds) -> list[ReadRecord]:
        """The records that are found. Raises CorruptRecords, OffsetOutOfRange, ..."""
        sources = {key: self._records(key) for key in self.positions}
        heads: dict[TopicPartition, ReadRecord] = {}
        found: list[ReadRecord] = []
        try:
            for key in list(sources):
                self._advance(key, sources, heads)
            while heads and len(found) < bounds.records:
                if self.scanned >= bounds.scanned or self._bytes >= BYTES_MAX:
                    return found
                if time.monotonic() > bounds.deadline:
                    return found
                key = min(heads, key=lambda key: (heads[key].timestamp, key))
                record = heads.pop(key)
                self.scanned += 1
                self.positions[key] = record.offset + 1
                if search.finds(record):
                    found.append(record)
                self._advance(key, sources, heads)
            self.complete = not heads
            return found
        finally:
            for source in sources.values():
                with suppress(ValueError):
                    source.close()  # type: ignore[attr-defined]

    def _advance(
        self,
        key: TopicPartition,
        sources: Mapping[TopicPartition, Iterator[ReadRecord]],
        heads: dict[TopicPartition, ReadRecord],
    ) -> None:
        record = next(sources[key], None)
        if record is not None:
            heads[key] = record
        else:
            # Control records, and what compaction took, are no records.
            self.positions[key] = max(self.positions[key], self._ends[key])

    def _records(self, key: TopicPartition) -> Iterator[ReadRecord]:
        at, end = self.positions[key], self._ends[key]
        if at >= end:
            return
        sets = RangeFetch(
            self._cluster,
            *key,
            at,
            end,
            read_committed=self._read_committed,
            max_bytes=FETCH_BYTES_MAX,
            max_wait_ms=100,
            deadline=FETCH_S,
        )
        try:
            for found in sets:
                self._bytes += len(found.records)
                # The buffer of the set is used again, for the one after the next.
                rows = list(records_of(key, found))
                for record in rows:
                    if at <= record.offset < end:
                        at = record.offset
                        yield record
        except (CorruptBatchError, DecompressionError) as error:
            raise CorruptRecords(*key, at, str(error)) from error
        finally:
            sets.close()
