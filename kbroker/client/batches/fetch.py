"""Whole record sets of an offset range, as they are in the log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from kbroker._ext.record.record_cursor import RecordsDamaged, end_offset
from kbroker.client.batches.offsets import EARLIEST, LATEST, list_offsets
from kbroker.client.connections.cluster import NO_TOPIC_ID, Cluster, Topic
from kbroker.client.connections.connection import Connection
from kbroker.client.connections.retry import Retry
from kbroker.client.errors import (
    ClientError,
    ConnectionLost,
    CorruptRecords,
    OffsetOutOfRange,
    RejectedError,
    Timeout,
    TopicChanged,
)
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.wire.stream import RequestInFlight

# BOUND: the size that a fetch may grow to for one batch of a broker that truncates even the first
# one.
_BATCH_BYTES_MAX = 1 << 30
# A range may end in a gap that compaction left at the end of a log. A gap is assumed after so many
# empty fetches in a row, over so many seconds, although the log continues.
_GAP_FETCHES = 3
_GAP_S = 1.0
# The rest of the deadline is too short for another fetch.
_ENDING_S = 0.05
# A topic unknown to all brokers for this long is deleted; before that, news of it may be on the
# way.
_GONE_S = 30.0
_UNKNOWN = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
# From this version on a fetch names topics by id alone.
_FIRST_BY_ID = 13
_FINAL_EPOCH = -1  # no fetch session


class RecordSet(NamedTuple):
    """The records that one fetch returned.

    records: complete batches and possibly part of another; the first may begin below the fetch
        offset, the last may end after the range. A view, overwritten by the fetch after the next.
    aborted: (producer id, first offset) of the aborted transactions in them, for read_committed.
    first_offset: the fetch offset. next_offset: after the last complete batch.
    """

    records: memoryview
    aborted: list[tuple[int, int]]
    first_offset: int
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class RangeFetch:
    """An iterator over the ``RecordSet`` of a partition that contain ``[start, end)``, in order.

    While the caller works on a set, the next one is on its way. When a connection fails or the
    leader moves, reading continues from where it was. ``deadline`` (seconds, the cluster's own when
    None) is for each set. The iterator ends when the range is read.

    Raises

    - OffsetOutOfRange; it never resets to another offset;
    - TopicChanged when the topic is not the one it began with, or not that of ``topic_id``;
    - RejectedError when the topic has not existed for half a minute, or for half the deadline;
    - Timeout when the log does not reach ``end``;
    - CorruptRecords.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        read_committed: bool = False,
        max_bytes: int = 2 << 20,
        max_wait_ms: int = 500,
        topic_id: bytes | None = None,
        deadline: float | None = None,
    ) -> None:
        self.cluster = cluster
        self.topic = topic
        self.partition = partition
        self.next_offset = start
        self.end = end
        self.read_committed = read_committed
        self._max_bytes = max_bytes
        self._max_wait_ms = max_wait_ms
        self._planned_id = topic_id
        self._topic_id = topic_id
        self._deadline = deadline
        self._connection: Connection | None = None
        self._leader: int | None = None
        self._epoch = -1
        self._pending: RequestInFlight | None = None
        self._buffers = [bytearray(), bytearray()]
        self._empty = 0
        self._empty_since = 0.0
        self._unknown_since: float | None = None
        self._began = False

    def __iter__(self) -> Iterator[RecordSet]:
        try:
            while self.next_offset < self.end:
                record_set = self._next_set()
                if record_set is not None:
                    yield record_set
        finally:
            self.close()

    def close(self) -> None:
        """Give the connection back; the iterator must not be used again."""
        connection, self._connection = self._connection, None
        if connection is not None and self._leader is not None:
            if self._pending is not None:
                connection.close()
            self.cluster.give_back(self._leader, connection)
        self._pending = None

    # -- one set

    def _next_set(self) -> RecordSet | None:
        """The next set; None if the rest of the range turned out to be a gap."""
        what = f"records of {self.topic}-{self.partition} from offset {self.next_offset}"
        retry = self.cluster.retry(what, self._deadline)
        while True:
            try:
                record_set = self._receive(retry)
                self._unknown_since = None
                if record_set is not None:
                    self._fetch_ahead(retry)
                    return record_set
                if self.next_offset >= self.end:
                    return None
            except ClientError as error:
                self._drop(error)
                self._raise_gone(error, retry)
                retry.pause(error)

    def _raise_gone(self, error: ClientError, retry: Retry) -> None:
        """Raise the error if brokers have reported it for so long that the topic must have been
        deleted.
        """
        if error.code not in _UNKNOWN:
            self._unknown_since = None
            return
        now = time.monotonic()
        if self._unknown_since is None:
            self._unknown_since = now
        if now - self._unknown_since >= min(_GONE_S, retry.seconds / 2):
            raise error

    def _receive(self, retry: Retry) -> RecordSet | None:
        """One response; None if it had no records."""
        if self._pending is None:
            self._send(retry)
        assert self._connection is not None and self._pending is not None
        pending, self._pending = self._pending, None
        buffer = self._free_buffer()
        step = retry.step(self.cluster.request_timeout + self._max_wait_ms / 1000)
        response = self._connection.receive(pending, step, into=buffer)
        row = self._row_of(response, retry)
        if row.error_code:
            self._rejected(row, retry)
        records = row.records if row.records is not None else memoryview(b"")
        following = self._end_of(records)
        if following == self.next_offset:
            self._nothing(row, records, response.throttle_time_ms, retry)
            return None
        if following > row.high_watermark:
            self._require_written(following, retry)
        first, self.next_offset = self.next_offset, following
        self._began = True
        self._empty = 0
        aborted = [(one.producer_id, one.first_offset) for one in row.aborted_transactions or ()]
        return RecordSet(
            records,
            aborted,
            first,
            following,
            row.high_watermark,
            row.last_stable_offset,
            row.log_start_offset,
        )

    def _fetch_ahead(self, retry: Retry) -> None:
        if self.next_offset >= self.end:
            return
        try:
            self._send(retry)
        except ClientError as error:
            self._drop(error)  # found out again, with a deadline, when the next set is wanted

    def _send(self, retry: Retry) -> None:
        if self._connection is None:
            known, leader = self.cluster.leader(self.topic, self.partition, retry)
            if self._is_another(known):
                # Or the metadata is from before the topic was recreated.
                self.cluster.forget_topic(self.topic)
                known, leader = self.cluster.leader(self.topic, self.partition, retry)
            self._check_topic(known)
            self._epoch = known.partitions[self.partition].leader_epoch
            self._connection = self.cluster.borrow(leader, retry)
            self._leader = leader
        by_name = self._topic_id in (None, NO_TOPIC_ID)
        # The response arrives before the deadline, even if it only has the log end offset.
        wait_ms = min(self._max_wait_ms, int(max(retry.left(), 0) * 500))
        self._pending = self._connection.send(
            self._request(wait_ms),
            retry.step(self.cluster.request_timeout),
            at_most=_FIRST_BY_ID - 1 if by_name else None,
        )

    def _is_another(self, known: Topic) -> bool:
        expected = (self._topic_id if self._began else self._planned_id) or NO_TOPIC_ID
        return NO_TOPIC_ID not in (expected, known.id) and known.id != expected

    def _check_topic(self, known: Topic) -> None:
        if self._is_another(known):
            when = "while it was read" if self._began else "since it was planned"
            raise TopicChanged(self.topic, f"was deleted and recreated {when}")
        if not self._began:
            self._topic_id = known.id

    def _request(self, max_wait_ms: int) -> FetchRequest:
        row = FetchRequest.FetchPartition(
            partition=self.partition,
            current_leader_epoch=self._epoch,
            fetch_offset=self.next_offset,
            partition_max_bytes=self._max_bytes,
        )
        topic = FetchRequest.FetchTopic(
            topic=self.topic, topic_id=self._topic_id or NO_TOPIC_ID, partitions=[row]
        )
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=self._max_bytes,
            isolation_level=int(self.read_committed),
            session_epoch=_FINAL_EPOCH,
            topics=[topic],
        )

    def _free_buffer(self) -> bytearray:
        """The buffer of the record set before the last one, unless a view of it is still in use."""
        self._buffers.reverse()
        try:
            self._buffers[0].append(0)
            self._buffers[0].pop()
        except BufferError:
            self._buffers[0] = bytearray()
        return self._buffers[0]

    # -- what is not records

    def _end_of(self, records: memoryview) -> int:
        try:
            return int(end_offset(records, self.next_offset))
        except RecordsDamaged as error:
            offset, why = error.args
            raise CorruptRecords(self.topic, self.partition, offset, why) from error

    def _require_written(self, end: int, retry: Retry) -> None:
        """Records may have been written since the broker determined the end of the log. Otherwise
        the base offset of a batch is wrong, and the records it hides would look like a gap.
        """
        log_end = self._log_bound(LATEST, retry)
        if end > log_end:
            why = f"a batch claims to end before offset {end}, but the log ends at {log_end}"
            raise CorruptRecords(self.topic, self.partition, self.next_offset, why)

    def _log_bound(self, which: int, retry: Retry) -> int:
        """The current EARLIEST or LATEST offset of the broker."""
        key = self.topic, self.partition
        left = max(retry.left(), 0.1)
        return list_offsets(self.cluster, {key: which}, deadline=left)[key].offset

    def _row_of(self, response: Any, retry: Retry) -> Any:
        what = f"{self.topic}-{self.partition}"
        if response.error_code:
            raise RejectedError(response.error_code, f"fetch of {what}")
        for topic in response.responses:
            for row in topic.partitions:
                if row.partition_index == self.partition:
                    return row
        if response.throttle_time_ms:  # So Kafka answers a client that is above its quota.
            time.sleep(min(response.throttle_time_ms / 1000, max(retry.left(), 0)))
            raise RejectedError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, what)
        raise RejectedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, what)

    def _rejected(self, row: Any, retry: Retry) -> None:
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            start, end = self._log_bound(EARLIEST, retry), self._log_bound(LATEST, retry)
            if not start <= self.next_offset <= end:
                raise OffsetOutOfRange(self.topic, self.partition, self.next_offset, start, end)
            # A replica that was behind, or has just become leader.
            raise RejectedError(ErrorCode.OFFSET_NOT_AVAILABLE, retry.what)
        raise RejectedError(row.error_code, retry.what)

    def _nothing(self, row: Any, records: memoryview, throttled_ms: int, retry: Retry) -> None:
        """No whole batch was returned: wait for one, request more bytes, or find the gap."""
        if len(records):
            claimed = int.from_bytes(records[8:12], "big") + 12
            if len(records) >= 12 and claimed <= len(records):
                why = "a batch with offsets that do not belong there"
                raise CorruptRecords(self.topic, self.partition, self.next_offset, why)
            if self._max_bytes >= _BATCH_BYTES_MAX:
                raise CorruptRecords(
                    self.topic, self.partition, self.next_offset, f"a batch of {claimed} bytes"
                )
            self._max_bytes *= 2
            return
        readable = row.last_stable_offset if self.read_committed else row.high_watermark
        now = time.monotonic()
        if readable >= self.end and not throttled_ms:
            self._empty_since = self._empty_since if self._empty else now
            self._empty += 1
            if self._empty >= _GAP_FETCHES and now - self._empty_since >= _GAP_S:
                self.next_offset = self.end
            elif self._empty > 1:
                time.sleep(_GAP_S / 4)
            return
        self._empty = 0
        if now >= retry.deadline - _ENDING_S:
            kind = "last stable offset" if self.read_committed else "end"
            raise Timeout(
                f"{retry.what} up to {self.end}", retry.seconds, f"the log's {kind} is {readable}"
            )
        if throttled_ms:
            time.sleep(min(throttled_ms / 1000, max(retry.deadline - now, 0)))

    def _drop(self, error: ClientError) -> None:
        """After any error the next attempt looks up the leader again."""
        self.cluster.forget_topic(self.topic)
        if isinstance(error, ConnectionLost | Timeout) and self._connection is not None:
            self._connection.close()
        self.close()
