"""A stream of messages, for one thread: an iterator over chunks that fetchers put into a queue."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, Protocol

from kbroker._ext.client.record_reader import RecordReader
from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.errors import ClientError, DeserializationFailed, UnreadableRecord
from kbroker.legacy.zookeeper_consumer.consumer_errors import ConsumerTimeout
from kbroker.record.batch import DECOMPRESSED_MAX

# Messages that are decoded at once, and their bytes.
_ROWS = 500
_ROW_BYTES = 512 << 10


class MessageAndMetadata(NamedTuple):
    """A message of a stream. A null is None."""

    topic: str
    partition: int
    offset: int
    key: Any
    message: Any


_row: Callable[[Iterable[Any]], MessageAndMetadata] = partial(tuple.__new__, MessageAndMetadata)


class Decoder(Protocol):
    """Makes something of the bytes of a key or a message, which are not null."""

    def from_bytes(self, data: bytes) -> Any: ...


class DefaultDecoder:
    """Bytes."""

    def from_bytes(self, data: bytes) -> bytes:
        return data


class StringDecoder:
    """Text."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.encoding = encoding

    def from_bytes(self, data: bytes) -> str:
        return data.decode(self.encoding)


def deserializer_of(decoder: Any) -> Callable[[str, bytes], Any] | None:
    """``(topic, bytes) -> anything``; None for bytes."""
    if decoder is None or type(decoder) is DefaultDecoder:
        return None
    decode = getattr(decoder, "from_bytes", decoder)
    return lambda topic, data: decode(data)


class PartitionReading:
    """A partition that a stream owns. consumed: the offset of the next message to return, which is
    committed; None until it is known. committed: what ``consumed`` was at the last commit.
    fetch_offset: that of the next message to fetch; None: to be looked up. high_watermark: as of
    the last fetch. active: the partition is owned; cleared under the lock of its stream. stopped:
    nothing is fetched any more, as what follows cannot be read.
    """

    __slots__ = (
        "active",
        "committed",
        "consumed",
        "fetch_offset",
        "high_watermark",
        "key",
        "max_bytes",
        "reader",
        "retry_at",
        "stopped",
        "stream",
    )

    def __init__(self, key: TopicPartition, stream: KafkaStream, max_bytes: int) -> None:
        self.key = key
        self.stream = stream
        self.consumed: int | None = None
        self.committed: int | None = None
        self.fetch_offset: int | None = None
        self.high_watermark: int | None = None
        self.max_bytes = max_bytes
        self.active = True
        self.stopped = False
        self.retry_at = 0.0
        self.reader: RecordReader | None = None


class Chunk(NamedTuple):
    """What one fetch returned of a partition. fault: why what follows cannot be read."""

    part: PartitionReading
    first_offset: int
    records: Any
    next_offset: int
    high_watermark: int
    fault: ClientError | None = None


class KafkaStream:
    """``for row in stream``: messages with their metadata, in order within each partition.

    Waits for the next one; raises ConsumerTimeout after ``consumer.timeout.ms``, UnreadableRecord
    and DeserializationFailed with topic, partition and offset, RebalanceFailed, and what a broker
    refuses. After any of these it can be read on. Ends with the connector's ``shutdown``.

    A message counts as consumed, and is committed, once it has been returned.
    """

    def __init__(
        self,
        name: str,
        *,
        chunks_max: int,
        timeout_s: float | None,
        key_decoder: Any = None,
        value_decoder: Any = None,
        client_id: str = "",
    ) -> None:
        self.name = name
        self.client_id = client_id
        self._chunks_max = chunks_max
        self._timeout_s = timeout_s
        self._key = deserializer_of(key_decoder)
        self._value = deserializer_of(value_decoder)
        # BOUND: chunks_max chunks, of fetch.message.max.bytes or one batch.
        self._chunks: deque[Chunk] = deque()
        self._faults: dict[TopicPartition | None, tuple[ClientError, bool]] = {}
        self._rows: Iterator[MessageAndMetadata] = iter(())
        self._open: Chunk | None = None
        self._ended = False
        self._changed = threading.Condition(threading.Lock())

    def __repr__(self) -> str:
        return f"KafkaStream({self.name})"

    def __iter__(self) -> KafkaStream:
        return self

    def __next__(self) -> MessageAndMetadata:
        with self._changed:
            deadline: float | None = None
            while True:
                for row in self._rows:
                    assert self._open is not None
                    self._open.part.consumed = row[2] + 1
                    return row
                if self._read_on():
                    continue
                if deadline is None and self._timeout_s is not None:
                    deadline = time.monotonic() + self._timeout_s
                self._wait(deadline)

    # -- reading; the lock is held

    def _wait(self, deadline: float | None) -> None:
        for key, (fault, stays) in self._faults.items():
            if not stays:
                del self._faults[key]
            raise fault
        if self._ended:
            raise StopIteration
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            assert self._timeout_s is not None
            raise ConsumerTimeout(f"a message of stream {self.name}", self._timeout_s)
        self._changed.wait(left)

    def _read_on(self) -> bool:
        """Decode some more; False if there is nothing. Raises what cannot be decoded."""
        chunk = self._open
        if chunk is None:
            if not self._chunks:
                return False
            chunk = self._open = self._chunks.popleft()
            self._changed.notify_all()  # there is room
            part = chunk.part
            part.consumed = chunk.first_offset
            if part.reader is None or part.reader.position != part.consumed:
                part.reader = RecordReader(
                    *part.key,
                    part.consumed,
                    key_deserializer=self._key,
                    value_deserializer=self._value,
                    decompressed_max=DECOMPRESSED_MAX,
                )
            part.reader.load(chunk.records)
        part = chunk.part
        reader = part.reader
        assert reader is not None
        columns = reader.read_columns(_ROWS, True, _ROW_BYTES)
        if columns is not None:
            topic, partition = part.key
            self._rows = map(
                _row,
                zip(
                    repeat(topic),
                    repeat(partition),
                    columns.offsets,
                    columns.keys,
                    columns.values,
                    strict=False,
                ),
            )
        elif reader.error is not None:
            raise self._unreadable(chunk, reader.error)
        else:
            reader.unload()
            self._open = None
            part.consumed = max(part.consumed or 0, chunk.next_offset)
            if chunk.fault is not None:
                self._stop(part, chunk.fault)
        return True

    def _unreadable(
        self, chunk: Chunk, error: tuple[int, int, str, Exception | None]
    ) -> UnreadableRecord:
        offset, after, why, cause = error
        part = chunk.part
        if cause is not None:
            failed = DeserializationFailed(*part.key, offset, after, why)
            failed.__cause__ = cause
            return failed
        after = max(offset + 1, min(after, chunk.high_watermark))
        damaged = UnreadableRecord(*part.key, offset, after, why)
        self._open = None
        part.reader = None
        self._chunks = deque(one for one in self._chunks if one.part is not part)
        self._stop(part, damaged)
        return damaged

    def _stop(self, part: PartitionReading, fault: ClientError) -> None:
        part.stopped = True
        self._faults[part.key] = fault, True
        self._changed.notify_all()

    # -- for fetchers and the connector; any thread

    def put(self, chunk: Chunk) -> None:
        """Queue it, when there is room; it is dropped if its partition is not owned any more."""
        with self._changed:
            part = chunk.part
            while part.active and not self._ended and len(self._chunks) >= self._chunks_max:
                self._changed.wait()
            _, is_stopped = self._faults.get(part.key, (None, False))
            if part.active and not is_stopped and not self._ended:
                self._chunks.append(chunk)
                self._changed.notify_all()

    def fail(
        self, part: PartitionReading | None, fault: ClientError, *, stop: bool = False
    ) -> None:
        """Raise it, after the messages that are there. stop: again and again, and the partition is
        not read any more.
        """
        with self._changed:
            if part is None:
                self._faults[None] = fault, False
            elif not part.active:
                return
            elif stop:
                self._stop(part, fault)
            elif not part.stopped:
                self._faults[part.key] = fault, False
            self._changed.notify_all()

    def give_up(self, parts: Iterable[PartitionReading]) -> None:
        """These are not owned any more: drop what is queued, nothing of them is returned."""
        with self._changed:
            for part in parts:
                part.active = False
                part.reader = None
            self._chunks.clear()
            self._rows = iter(())
            self._open = None
            self._faults.clear()
            self._changed.notify_all()

    def end(self) -> None:
        """Nothing more is returned."""
        with self._changed:
            self._chunks.clear()
            self._rows = iter(())
            self._open = None
            self._ended = True
            self._changed.notify_all()
