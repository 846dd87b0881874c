"""Records of partitions, one by one and without a group: for tools. Whole batches and Arrow are for
everything that has to be fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kbroker.batch_errors import BatchStatus, CorruptBatchError, DecompressionError
from kbroker.batch_summary import MAGIC_AT
from kbroker.client.batches.fetch import RangeFetch, RecordSet
from kbroker.client.batches.offsets import LATEST, TopicPartition, list_offsets
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import CorruptRecords
from kbroker.record.batch import DECOMPRESSED_MAX, RecordBatch
from kbroker.record.control import ABORT
from kbroker.record.legacy import MAGIC_MAX, read_message

Headers = tuple[tuple[bytes, bytes | None], ...]


class ReadRecord(NamedTuple):
    """timestamp: in milliseconds since 1970, -1 for none. A null is None."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class MarkedRecord(NamedTuple):
    """producer_id: of its transaction, None of a record outside of any. aborted: whether that one
    was.
    """

    record: ReadRecord
    producer_id: int | None
    aborted: bool


class TopicReader:
    """Reads partitions from their positions on.

    positions: (topic, partition) -> the offset of the next record, updated with each record that is
    returned. read_committed: leave out aborted transactions, and wait for open ones.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, int],
        *,
        read_committed: bool = False,
    ) -> None:
        self.cluster = cluster
        self.positions = dict(positions)
        self.read_committed = read_committed

    def ends(self) -> dict[TopicPartition, int]:
        """Where each partition ends now, exclusive."""
        offsets = list_offsets(
            self.cluster,
            dict.fromkeys(self.positions, LATEST),
            read_committed=self.read_committed,
        )
        return {key: row.offset for key, row in offsets.items()}

    def read(self, ends: Mapping[TopicPartition, int]) -> Iterator[ReadRecord]:
        """The records up to these ends, partition by partition.

        Raises OffsetOutOfRange, CorruptRecords, TopicChanged, Timeout, ...; the position is then
        that of the record that could not be read.
        """
        for key, end in ends.items():
            if self.positions[key] < end:
                yield from self._read_partition(key, end)

    def _read_partition(self, key: TopicPartition, end: int) -> Iterator[ReadRecord]:
        topic, partition = key
        sets = RangeFetch(
            self.cluster,
            topic,
            partition,
            self.positions[key],
            end,
            read_committed=self.read_committed,
        )
        try:
            for record_set in sets:
                for record in self._records(key, record_set):
                    if self.positions[key] <= record.offset < end:
                        self.positions[key] = record.offset + 1
                        yield record
                # Control records and gaps of compaction have no record here.
                self.positions[key] = max(self.positions[key], min(record_set.next_offset, end))
            self.positions[key] = max(self.positions[key], end)
        finally:
            sets.close()

    def _records(self, key: TopicPartition, record_set: RecordSet) -> Iterator[ReadRecord]:
        at = self.positions[key]
        try:
            for record in records_of(key, record_set):
                at = record.offset
                yield record
        except (CorruptBatchError, DecompressionError) as error:
            raise CorruptRecords(*key, at, str(error)) from error


def records_of(key: TopicPartition, record_set: RecordSet) -> Iterator[ReadRecord]:
    """The records in what a fetch returned, of any format, without those of aborted transactions.

    Raises CorruptBatchError, DecompressionError.
    """
    return (row.record for row in marked_records_of(key, record_set) if not row.aborted)


def marked_records_of(key: TopicPartition, record_set: RecordSet) -> Iterator[MarkedRecord]:
    """All of them, with their transactions. Which ones were aborted, only a fetch as read_committed
    returns. Raises CorruptBatchError, DecompressionError.
    """
    data = record_set.records
    aborted = sorted(record_set.aborted, key=lambda row: row[1], reverse=True)
    active: set[int] = set()
    position = 0
    while position + MAGIC_AT < len(data):
        size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
        if position + size > len(data):
            return  # the last batch is cut (KIP-74)
        piece = data[position : position + size]
        position += size
        if piece[MAGIC_AT] <= MAGIC_MAX:
            for old in _old_records(key, bytes(piece)):
                yield MarkedRecord(old, None, False)
            continue
        batch = RecordBatch(piece)
        batch.check()
        while aborted and aborted[-1][1] <= batch.last_offset:
            active.add(aborted.pop()[0])
        if batch.is_control:
            if _is_abort(batch):
                active.discard(batch.header.producer_id)
        else:
            producer_id = batch.header.producer_id if batch.is_transactional else None
            for row in batch.records():
                yield MarkedRecord(
                    ReadRecord(*key, row.offset, row.timestamp, row.key, row.value, row.headers),
                    producer_id,
                    producer_id in active,
                )


def _is_abort(batch: RecordBatch) -> bool:
    return any(row.key is not None and row.key[2:4] == ABORT.to_bytes(2, "big") for row in batch)


def _old_records(key: TopicPartition, data: bytes) -> Iterator[ReadRecord]:
    wrapper = read_message(data)
    if not wrapper.valid:
        raise CorruptBatchError(BatchStatus.BAD_CRC)
    for message in wrapper.messages(DECOMPRESSED_MAX):
        yield ReadRecord(*key, message.offset, message.timestamp, message.key, message.value, ())
