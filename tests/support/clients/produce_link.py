"""A producer's pool and send loop at one end of a socket, the test at the other as the broker."""

from __future__ import annotations

import socket
import threading
from typing import Any, NamedTuple

from support.network.frames import framed, read_frame

import kbroker.client  # noqa: F401 - the codecs
from kbroker._ext.client.appender import Appender
from kbroker._ext.client.send_loop import SendLoop
from kbroker._ext.record.record_batch import check_batch
from kbroker.client.errors import BufferExhausted, NoSuchPartition, RecordTooLarge
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey
from kbroker.protocol.header import decode_request_header, encode_response_header
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.record.batch import Record, RecordBatch

NODE = 7
Row = ProduceResponse.PartitionProduceResponse
WAIT_S = 10.0


class Where(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int
    key_size: int
    value_size: int


class Failures:
    """As the producer's, with fixed limits."""

    def too_large(self, size: int) -> RecordTooLarge:
        return RecordTooLarge(size, 1 << 20, "max.request.size")

    def exhausted(self, size: int, buffer_bytes: int, waited_ms: int) -> BufferExhausted:
        return BufferExhausted(size, buffer_bytes, waited_ms)

    def no_partition(self, topic: str, partition: int, partitions: int) -> NoSuchPartition:
        return NoSuchPartition(topic, partition, partitions)


def pool(partitions: int = 1, topic: str = "t", **options: Any) -> Appender:
    """One with a topic; its options are those of a test that waits for nothing."""
    settings = {
        "batch_bytes": 16_384,
        "buffer_bytes": 32 << 20,
        "record_bytes_max": 1 << 20,
        "linger_us": 0,
        "delivery_us": 60_000_000,
        "block_us": 0,
        "in_flight_max": 5,
        **options,
    }
    made = Appender(Failures(), Where, **settings)
    made.set_topic(topic, [NODE] * partitions, [0] * partitions)
    return made


class Received(NamedTuple):
    """A request. batches: (topic, partition) -> the batch."""

    request: Any
    correlation_id: int
    version: int
    batches: dict[tuple[str, int], bytes]

    def records(self, topic: str = "t", partition: int = 0) -> list[Record]:
        return list(RecordBatch(self.batches[topic, partition]).records())


class ProduceLink:
    """``turn`` runs the loop in this thread; ``start`` in another one, as the sender does."""

    def __init__(self, pool: Appender, version: int = 9, **options: Any) -> None:
        self.pool = pool
        self.version = version
        ours, self.theirs = socket.socketpair()
        self.theirs.settimeout(WAIT_S)
        settings = {
            "client_id": "me",
            "acks": -1,
            "timeout_ms": 1000,
            "request_us": 60_000_000,
            "request_bytes_max": 1 << 20,
            "in_flight_max": 5,
            **options,
        }
        self.loop = SendLoop(pool, **settings)
        self.loop.connect(NODE, ours, False, version)
        self.events: list[tuple[Any, ...]] = []
        self._stopping = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ProduceLink:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self.pool.wake()
        if self._thread is not None:
            self._thread.join(WAIT_S)
        self.theirs.close()

    def turn(self, seconds: float = 0.0) -> list[tuple[Any, ...]]:
        return self.loop.run(seconds)

    def start(self) -> ProduceLink:
        def body() -> None:
            while not self._stopping:
                self.events += self.loop.run(1.0)

        self._thread = threading.Thread(target=body, daemon=True)
        self._thread.start()
        return self

    # -- the broker

    def receive(self) -> Received:
        frame = read_frame(self.theirs)
        assert frame is not None, "the loop closed the connection"
        header = decode_request_header(frame, 4)
        assert (header.api_key, header.api_version) == (ApiKey.PRODUCE, self.version)
        assert header.client_id == "me"
        request = codec.decode_exact(ProduceRequest, self.version, frame, header.end_offset)
        batches = {
            (topic.name, row.index): bytes(row.records)
            for topic in request.topic_data
            for row in topic.partition_data
        }
        for batch in batches.values():
            check_batch(batch, 1 << 26)
        return Received(request, header.correlation_id, self.version, batches)

    def respond(self, received: Received, throttle_ms: int = 0, **row: Any) -> None:
        """The same row for every batch."""
        names: dict[str, list[Any]] = {}
        for topic, partition in received.batches:
            names.setdefault(topic, []).append(
                Row(index=partition, **{"error_code": 0, "base_offset": 100, **row})
            )
        topics = [
            ProduceResponse.TopicProduceResponse(name=name, partition_responses=rows)
            for name, rows in names.items()
        ]
        response = ProduceResponse(responses=topics, throttle_time_ms=throttle_ms)
        self.send(received.correlation_id, codec.encode(response, self.version))

    def send(self, correlation_id: int, body: bytes) -> None:
        head = encode_response_header(correlation_id, ApiKey.PRODUCE, self.version)
        self.theirs.sendall(framed(head + body))
