"""A partition's log as its owner would write it, and a fetch engine that reads it.

``OwnedLog`` keeps every batch in a list beside the files, so a test can say which bytes a fetch
must bring without asking the code under test.
"""

from __future__ import annotations

import os
import struct
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from kbroker._ext.fetch import fetch_engine
from kbroker._ext.shared import partition_table
from kbroker.protocol import codec
from kbroker.protocol.header import decode_response_header
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.record.batch import RecordBatch
from kbroker.record.builder import BatchBuilder
from kbroker.record.control import parse_marker

FETCH_KEY = 1
Place = tuple[int, int, int]  # offset, segment base offset, position


class Batch(NamedTuple):
    base_offset: int
    last_offset: int
    segment: int
    position: int
    data: bytes


def batch_bytes(base_offset: int, records: int, size: int, epoch: int = 0) -> bytes:
    """A format 2 batch of ``size`` bytes (61 at least) that claims ``records`` records.

    The reader of a log looks at no byte after the header, so the records are filler.
    """
    body = (base_offset % 251).to_bytes(1, "big") * (size - 61)
    head = struct.pack(">qiib", base_offset, size - 12, epoch, 2)
    return head + struct.pack(">IhiqqqhiI", 0, 0, records - 1, 0, 0, -1, -1, -1, records) + body


class OwnedLog:
    """Writes segment files and publishes their ends in a slot, as an io worker does."""

    def __init__(
        self,
        table: partition_table.PartitionTable,
        slot: int,
        log_dir: Path,
        topic: str,
        partition: int,
        *,
        index_interval: int = 4096,
        leader_epoch: int = 0,
        start: int = 0,
    ) -> None:
        self.table = table
        self.slot = slot
        self.directory = log_dir / f"{topic}-{partition}"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.index_interval = index_interval
        self.leader_epoch = leader_epoch
        self.batches: list[Batch] = []
        self.sizes = {start: 0}  # segment base offset -> bytes
        self.log_start = start
        self.end: Place = (start, start, 0)
        self.high_watermark: Place | None = None
        self.last_stable: Place | None = None
        self._unindexed = 0
        self.path(start).touch()
        table.reset(
            slot,
            state=partition_table.ONLINE,
            role=partition_table.LEADER,
            slot_incarnation=1,
            leader_epoch=leader_epoch,
        )
        self.publish(segments_changed=True)

    def path(self, base: int, suffix: str = ".log") -> Path:
        return self.directory / f"{base:020d}{suffix}"

    def publish(self, *, segments_changed: bool = False) -> None:
        self.table.publish(
            self.slot,
            log_start_offset=self.log_start,
            log_end=self.end,
            high_watermark=self.high_watermark or self.end,
            last_stable=self.last_stable or self.high_watermark or self.end,
            leader_epoch=self.leader_epoch,
            segments_changed=segments_changed,
        )

    def append(self, records: int = 1, size: int = 100, *, gap: int = 0) -> Batch:
        """Write one batch; ``gap`` offsets before it are left out, as compaction does."""
        offset = self.end[0] + gap
        return self.append_bytes(batch_bytes(offset, records, size, self.leader_epoch), records)

    def append_built(self, builder: BatchBuilder) -> Batch:
        """Write a batch with real records."""
        builder.base_offset = self.end[0]
        data = builder.build()
        return self.append_bytes(data, struct.unpack_from(">i", data, 23)[0] + 1)

    def append_bytes(self, data: bytes, records: int) -> Batch:
        """Write a batch at its own base offset."""
        offset, size = struct.unpack_from(">q", data)[0], len(data)
        _, base, position = self.end
        with self.path(base).open("ab") as log:
            log.write(data)
        if self._unindexed > self.index_interval:
            self.add_index_entry(base, offset + records - 1 - base, position)
            self._unindexed = 0
        self._unindexed += size
        batch = Batch(offset, offset + records - 1, base, position, data)
        self.batches.append(batch)
        self.sizes[base] = position + size
        self.end = (offset + records, base, position + size)
        self.publish()
        return batch

    def append_many(self, count: int, *, records: int = 1, size: int = 100) -> None:
        for _ in range(count):
            self.append(records, size)

    def add_index_entry(self, base: int, relative_offset: int, position: int) -> None:
        with self.path(base, ".index").open("ab") as index:
            index.write(struct.pack(">ii", relative_offset, position))

    def roll(self) -> None:
        offset = self.end[0]
        self.path(offset).touch()
        self.sizes[offset] = 0
        self.end = (offset, offset, 0)
        self._unindexed = 0
        self.publish(segments_changed=True)

    def place(self, offset: int) -> Place:
        """The position of the batch at ``offset``, or the end."""
        for batch in self.batches:
            if batch.base_offset == offset:
                return (offset, batch.segment, batch.position)
        assert offset == self.end[0], offset
        return self.end

    def hold_back(self, high_watermark: int, last_stable: int | None = None) -> None:
        """Publish these offsets instead of the log end."""
        self.high_watermark = self.place(high_watermark)
        self.last_stable = self.place(high_watermark if last_stable is None else last_stable)
        self.publish()

    def release(self) -> None:
        """High watermark and last stable offset follow the log end again."""
        self.high_watermark = self.last_stable = None
        self.publish()

    def start_at(self, offset: int) -> None:
        """Raise the log start offset as DeleteRecords does: no file changes."""
        self.log_start = offset
        self.publish()

    def drop_segment(self) -> int:
        """Delete the oldest segment as retention does; returns its base offset."""
        oldest, following = sorted(self.sizes)[:2]
        self.log_start = max(self.log_start, following)
        self.publish()
        for suffix in (".log", ".index"):
            path = self.path(oldest, suffix)
            if path.exists():
                path.rename(f"{path}.deleted")
                os.unlink(f"{path}.deleted")
        del self.sizes[oldest]
        self.batches = [batch for batch in self.batches if batch.segment != oldest]
        self.publish(segments_changed=True)
        return oldest

    def expected(self, offset: int, end: Place, limit: int, *, first: bool) -> bytes:
        """The records that a fetch of ``offset`` must return within these limits."""
        wanted = [b for b in self.batches if b.last_offset >= offset and b.base_offset < end[0]]
        if offset >= end[0] or not wanted:
            return b""
        wanted = [batch for batch in wanted if batch.segment == wanted[0].segment]
        data = b"".join(batch.data for batch in wanted)
        if len(data) <= limit:
            return data
        if len(wanted[0].data) > limit:
            return wanted[0].data if first else b""
        return data[:limit]


class FetchBench:
    """A partition table, an engine and logs in one directory, with fetches as plain calls."""

    def __init__(self, log_dir: Path, *, slots: int = 64, **options: Any) -> None:
        self.log_dir = log_dir
        self.region = bytearray(partition_table.region_size(slots))
        self.table = partition_table.PartitionTable(self.region, slots)
        self.engine = fetch_engine.FetchEngine(self.table, 1, [str(log_dir)], **options)
        self.ids: dict[str, bytes] = {}
        self.slots: dict[str, list[int]] = {}
        self.next_slot = 0
        self.now_ms = 1_000_000
        self.token = 0

    def topic(self, name: str = "t", partitions: int = 1, **options: int) -> list[OwnedLog]:
        """Create a topic with this many logs."""
        slots = list(range(self.next_slot, self.next_slot + partitions))
        self.next_slot += partitions
        logs = [
            OwnedLog(self.table, slot, self.log_dir, name, index, **options)
            for index, slot in enumerate(slots)
        ]
        self.ids[name] = uuid.uuid4().bytes
        self.slots[name] = slots
        self.engine.put_topic(name, self.ids[name], slots)
        return logs

    def log(self, name: str = "t", **options: int) -> OwnedLog:
        """Create a topic of one partition."""
        return self.topic(name, 1, **options)[0]

    def request(
        self,
        wanted: dict[tuple[str, int], int] | list[tuple[tuple[str, int], int]],
        version: int = 12,
        *,
        partition_max_bytes: int = 1 << 20,
        leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
        log_start_offset: int = -1,
        forget: list[tuple[str, int]] | None = None,
        **fields: object,
    ) -> bytes:
        """The body of a request for (topic, partition) -> offset."""
        message = FetchRequest(
            max_wait_ms=fields.pop("max_wait_ms", 0),
            min_bytes=fields.pop("min_bytes", 1),
            max_bytes=fields.pop("max_bytes", 50 << 20),
        )
        for name, value in fields.items():
            setattr(message, name, value)
        pairs = wanted.items() if isinstance(wanted, dict) else wanted
        for (name, index), offset in pairs:
            if not message.topics or message.topics[-1].topic != name:
                message.topics.append(self._named(FetchRequest.FetchTopic(topic=name), version))
            message.topics[-1].partitions.append(
                FetchRequest.FetchPartition(
                    partition=index,
                    fetch_offset=offset,
                    partition_max_bytes=partition_max_bytes,
                    current_leader_epoch=leader_epoch,
                    last_fetched_epoch=last_fetched_epoch,
                    log_start_offset=log_start_offset,
                )
            )
        for name, index in forget or []:
            topic = self._named(FetchRequest.ForgottenTopic(topic=name), version)
            topic.partitions.append(index)
            message.forgotten_topics_data.append(topic)
        return codec.encode(message, version)

    def _named(self, topic: object, version: int) -> object:
        if version >= 13:
            topic.topic_id = self.ids.get(topic.topic, bytes(16))  # type: ignore[attr-defined]
        return topic

    def start(self, wanted: object, version: int = 12, **fields: object) -> FetchResponse | None:
        """Send a request; None if it is parked, under ``self.token``."""
        self.token += 1
        body = self.request(wanted, version, **fields)  # type: ignore[arg-type]
        reply = self.engine.handle_bytes(body, version, 7000 + version, self.token, self.now_ms)
        return None if reply is None else self.response(reply, version)

    def fetch(self, wanted: object, version: int = 12, **fields: object) -> FetchResponse:
        """Send a request that gets its response at once."""
        response = self.start(wanted, version, **fields)
        assert response is not None, "parked"
        return response

    def completed(self, version: int = 12) -> dict[int, FetchResponse]:
        """Replies to parked requests by token."""
        return {
            token: self.response(reply, version) for token, reply in self.engine.take_completed()
        }

    def response(self, reply: bytes, version: int) -> FetchResponse:
        """Decode a reply with the general codec, header and length included."""
        assert struct.unpack(">i", reply[:4])[0] == len(reply) - 4
        correlation_id, position = decode_response_header(reply, FETCH_KEY, version, 4)
        assert correlation_id == 7000 + version
        return codec.decode_exact(FetchResponse, version, reply, position)

    def partitions(self, response: FetchResponse) -> dict[tuple[str, int], object]:
        """The partitions of a response by (topic, index), in order."""
        names = {topic_id: name for name, topic_id in self.ids.items()}
        found = {}
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "?")
            for partition in topic.partitions:
                assert (name, partition.partition_index) not in found
                found[name, partition.partition_index] = partition
        return found

    def only(self, response: FetchResponse) -> object:
        """The only partition of a response."""
        (partition,) = self.partitions(response).values()
        return partition


def follower_fields(replica_id: int, version: int) -> dict[str, object]:
    """The fields of a Fetch that identify a follower."""
    if version >= 15:
        state = FetchRequest.ReplicaState(replica_id=replica_id, replica_epoch=7)
        return {"replica_state": state}
    return {"replica_id": replica_id}


def visible(partition: FetchResponse.PartitionData, at: int) -> tuple[list[int], int]:
    """A response as a client sees it: offsets of records, and the next fetch offset.

    As clients do it: a producer is aborting from the first offset of an aborted transaction up to
    its abort marker.
    """
    pending = sorted((t.first_offset, t.producer_id) for t in partition.aborted_transactions)
    aborting: set[int] = set()
    shown: list[int] = []
    data = bytes(partition.records or b"")
    while len(data) >= 12 and len(data) >= 12 + int.from_bytes(data[8:12], "big"):
        read = RecordBatch(data)
        data = data[read.header.size :]
        last = read.header.last_offset
        while pending and pending[0][0] <= last:
            aborting.add(pending.pop(0)[1])
        records = list(read.records())
        if read.is_control and not records:
            pass  # compaction has emptied it
        elif read.is_control:
            marker = parse_marker(records[0].key, records[0].value)
            assert marker is not None
            if not marker.commit:
                aborting.discard(read.header.producer_id)
        elif not (read.is_transactional and read.header.producer_id in aborting):
            shown += [record.offset for record in records if record.offset >= at]
        at = max(at, last + 1)
    return shown, at
