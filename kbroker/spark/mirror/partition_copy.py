"""Copies one partition to a target cluster, in transactions that contain the offsets.

Each transaction writes batches to the target and, in the same step, the source's next offset as
an offset of the group ``kbroker-mirror.NAME`` on the target. The transactional id belongs to the
source partition, so a second copier fences the first, and what a dead one left open is aborted:
wherever it is killed, the next one reads the group's offset and continues with the record after the
last committed one (``places`` describes what is kept there).

Batches travel as they are, compressed and unread; only their header's producer and checksum change,
and the checksum they came with is verified before that: damage must not get a new one.
Batches that no broker accepts from a producer are rebuilt from their records: batches with gaps
(compacted), of the old formats, with append times, or cut by the end of the range.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kbroker._ext.base.crc32c import crc32c
from kbroker.batch_summary import (
    CONTROL,
    CRC_AT,
    CRC_FROM,
    DELETE_HORIZON,
    HEADER,
    LENGTH_AT,
    LENGTH_END,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
)
from kbroker.client.batches.fetch import RangeFetch, RecordSet
from kbroker.client.batches.offsets import EARLIEST, LATEST, committed, list_offsets
from kbroker.client.batches.produce import BatchProducer
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import CorruptRecords, RejectedError
from kbroker.errors import ErrorCode
from kbroker.spark.load.commits import LoadError
from kbroker.spark.load.positions import DataLossError
from kbroker.spark.load.source import id_text
from kbroker.spark.mirror.places import KeptOffset, kept, metadata_of, place_of, transactional_id_of
from kbroker.spark.plan import OffsetRange
from kbroker.spark.pool import borrowed

if TYPE_CHECKING:
    from kbroker.client.batches.arrow import ArrowProducer
    from kbroker.spark.direct import Result

# BOUND: records of the source in one transaction, and the time for which it accepts more: buffered
# records must arrive before the transaction's timeout, which is a minute.
TRANSACTION_BYTES = 64 << 20
TRANSACTION_S = 15.0
# A target's error for one partition's records; a retry would get the same.
_NOT_TAKEN = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)
_ODD = LOG_APPEND_TIME | DELETE_HORIZON
_COLUMNS = ("key", "value", "timestamp", "headers")


class CopiedBatch(NamedTuple):
    """A whole batch of a record set, as described by its header. next_offset: after it."""

    data: memoryview
    base_offset: int
    next_offset: int
    magic: int
    attributes: int
    producer_id: int
    records: int

    @property
    def as_it_is(self) -> bool:
        """Whether a broker takes the batch from a producer."""
        return (
            self.magic == 2
            and not self.attributes & _ODD
            and self.records == self.next_offset - self.base_offset
        )

    @property
    def is_sound(self) -> bool:
        """Whether the checksum of a batch of format 2 is right."""
        said = int.from_bytes(self.data[CRC_AT:CRC_FROM], "big")
        return crc32c(self.data[CRC_FROM:]) == said


def batches_of(records: memoryview) -> Iterator[CopiedBatch]:
    """The whole batches of a record set; a part of another at its end is left out."""
    position = 0
    while position + LENGTH_END <= len(records):
        base = int.from_bytes(records[position : position + 8], "big")
        size = LENGTH_END + int.from_bytes(
            records[position + LENGTH_AT : position + LENGTH_END], "big"
        )
        if position + size > len(records):
            return
        data = records[position : position + size]
        magic = data[16]
        if magic == 2:
            header = HEADER.unpack_from(data)
            yield CopiedBatch(data, base, base + header[6] + 1, 2, header[5], header[9], header[12])
        else:
            # A message of the old formats: its offset is that of its last (or only) record.
            yield CopiedBatch(data, base, base + 1, magic, 0, -1, 0)
        position += size


def committed_batches(records: RecordSet) -> Iterator[CopiedBatch]:
    """The batches without markers and without aborted transactions."""
    pending = sorted(records.aborted, key=lambda one: one[1])
    aborted: set[int] = set()
    for batch in batches_of(records.records):
        while pending and pending[0][1] < batch.next_offset:
            aborted.add(pending.pop(0)[0])
        if batch.attributes & CONTROL:
            aborted.discard(batch.producer_id)
            continue
        if batch.attributes & TRANSACTIONAL and batch.producer_id in aborted:
            continue
        yield batch


@dataclass(frozen=True, slots=True)
class MirrorWork:
    """The work of a task on its partitions; see ``kbroker.spark.direct.Work``.

    name: of the mirror, in its group and transactional ids. Settings are the clients'.
    """

    name: str
    source: str
    source_settings: dict[str, str]
    target: str
    target_settings: dict[str, str]
    allow_loss: bool = False
    transaction_bytes: int = TRANSACTION_BYTES

    def __call__(self, ranges: Sequence[OffsetRange], attempt: str) -> list[Result]:
        with (
            borrowed(self.source, self.source_settings) as source,
            borrowed(self.target, self.target_settings) as target,
        ):
            return [self._copied(source, target, one) for one in ranges]

    def _copied(self, source: Cluster, target: Cluster, one: OffsetRange) -> Result:
        """Copy a partition. A failure is returned as a result, so that the others are still
        copied.
        """
        try:
            return PartitionCopy(self, source, target, one).run()
        except (LoadError, CorruptRecords) as err:
            why = str(err)
        except RejectedError as err:
            # A fenced copier must not report a result.
            if err.code not in _NOT_TAKEN:
                raise
            why = str(err)
        return {"topic": one.topic, "partition": one.partition, "failed": why}


class PartitionCopy:
    """Copies one partition up to the end of a range; the target knows its beginning."""

    def __init__(
        self, work: MirrorWork, source: Cluster, target: Cluster, one: OffsetRange
    ) -> None:
        self._work = work
        self._source = source
        self._target = target
        self._range = one
        counts = self._target_count()
        # The current one: earlier metadata may belong to an older topic with this name.
        now = source.topics([one.topic]).get(one.topic) or source.topic(one.topic)
        self._topic = now
        self._same_partition = len(now.partitions) == counts
        key = (one.topic, one.partition)
        self._group, self._place = place_of(work.name, key, counts)
        # The target may have had fewer partitions when this one was copied last.
        self._before = place_of(work.name, key, 0)
        self._producer: BatchProducer
        self._arrow: ArrowProducer
        self._is_open = False  # a transaction
        self._open_bytes = 0
        self._open_until = 0.0
        self.records = self.unchanged = self.anew = 0

    def _target_count(self) -> int:
        """The partitions at the target. Raises LoadError if nothing creates the topic there."""
        one = self._range
        try:
            return len(self._target.topic_to_write(one.topic).partitions)
        except RejectedError as err:
            if err.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            raise LoadError(
                f"there is no topic {one.topic} at {self._work.target}: create it there first"
            ) from err

    def run(self) -> Result:
        """Everything between the target's offset and the end of the range."""
        from kbroker.client.batches.arrow import ArrowProducer

        one = self._range
        self._producer = BatchProducer(
            self._target,
            transactional_id=transactional_id_of(self._work.name, (one.topic, one.partition)),
        )
        self._arrow = ArrowProducer(self._target, topic=one.topic, producer=self._producer)
        try:
            # Fences any other copier of this partition and aborts its open transaction; only then
            # is the group's offset the one to continue from.
            _ = self._producer.identity
            start = self._start()
            position = start
            if start < one.end:
                for records in RangeFetch(
                    self._source,
                    one.topic,
                    one.partition,
                    start,
                    one.end,
                    read_committed=True,
                    topic_id=self._topic.id,
                ):
                    position = min(max(position, records.next_offset), one.end)
                    self._copy_set(records, start)
                    self._open_bytes += len(records.records)
                    if self._is_due():
                        self._commit(position)
            # Even if nothing was new, because the offset would expire.
            self._commit(max(start, one.end))
        finally:
            self._producer.close()
        return {
            "topic": one.topic,
            "partition": one.partition,
            "start": start,
            "end": max(start, one.end),
            "records": self.records,
            "unchanged": self.unchanged,
            "anew": self.anew,
        }

    def _start(self) -> int:
        one = self._range
        key = (one.topic, one.partition)
        place = self._kept()
        first = list_offsets(self._source, {key: EARLIEST})[key].offset
        if place is None:
            return max(first, one.start)
        last = list_offsets(self._source, {key: LATEST})[key].offset
        now = id_text(self._topic)
        is_anew = bool(place.topic_id and now) and place.topic_id != now
        if first <= place.offset <= last and not is_anew:
            return place.offset
        if not self._work.allow_loss:
            whose = "a topic that was recreated" if is_anew else "the source"
            raise DataLossError(
                f"{one.topic} partition {one.partition}: mirrored up to offset {place.offset}, "
                f"{whose} has {first} to {last}. With --allow-data-loss, the mirror continues "
                "with that"
            )
        return first

    def _kept(self) -> KeptOffset | None:
        for group, place in dict.fromkeys([(self._group, self._place), self._before]):
            offset = committed(self._target, group, [place]).get(place)
            if offset is not None:
                return kept(offset)
        return None

    def _begin(self) -> None:
        if not self._is_open:
            self._producer.begin()
            self._is_open = True
            self._open_until = time.monotonic() + TRANSACTION_S

    def _is_due(self) -> bool:
        """Whether it is time to commit; skipped bytes count as well."""
        late = self._is_open and time.monotonic() >= self._open_until
        return late or self._open_bytes >= self._work.transaction_bytes

    def _commit(self, position: int) -> None:
        """Commit everything written and the offset, both or neither."""
        self._begin()
        self._producer.flush()
        about = metadata_of(self._work.source, id_text(self._topic))
        self._producer.commit_offsets(self._group, {self._place: (position, about)})
        self._producer.end(commit=True)
        self._is_open = False
        self._open_bytes = 0

    def _copy_set(self, records: RecordSet, start: int) -> None:
        one = self._range
        span: tuple[int, int] | None = None
        handled = max(start, records.first_offset)
        for batch in committed_batches(records):
            if batch.next_offset <= start or batch.base_offset >= one.end:
                continue
            self._begin()
            whole = start <= batch.base_offset and batch.next_offset <= one.end
            if whole and batch.as_it_is and self._same_partition:
                self._copy_span(span)
                span = None
                if not batch.is_sound:
                    raise CorruptRecords(one.topic, one.partition, batch.base_offset, "a checksum")
                # COPY: the source's buffer is reused while the batch waits for its response.
                data = bytearray(batch.data)
                self._producer.send(one.topic, one.partition, data, batch.records)
                self.records += batch.records
                self.unchanged += 1
            else:
                # A message of the old formats may contain others, which begin below its own offset.
                begins = handled if batch.magic < 2 else max(batch.base_offset, handled)
                low = span[0] if span else begins
                span = (low, min(batch.next_offset, one.end))
            handled = batch.next_offset
        self._copy_span(span)

    def _copy_span(self, span: tuple[int, int] | None) -> None:
        """Records of a range that is rebuilt into new batches."""
        if span is None:
            return
        from kbroker.client.batches.arrow import read_arrow

        one = self._range
        for rows in read_arrow(
            self._source,
            one.topic,
            one.partition,
            *span,
            columns=_COLUMNS,
            read_committed=True,
            topic_id=self._topic.id,
        ):
            placed = rows
            if self._same_partition:
                import pyarrow as pa

                column = pa.array([one.partition] * rows.num_rows, pa.int32())
                placed = rows.append_column("partition", column)
            self._arrow.write(placed)
            self.records += rows.num_rows
        self._arrow.flush()
        self.anew += 1
