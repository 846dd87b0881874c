"""A blocking connection to a broker with kbroker's own codec and a timeout on everything: a hanging
request is a finding, not a stuck test.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, TypeVar

from support.network.frames import read_frame
from support.running.sanitizer import TIME_FACTOR

from kbroker.errors import ErrorCode
from kbroker.protocol import codec
from kbroker.protocol.message import Message
from kbroker.protocol.messages.create_topics import CreateTopicsRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.init_producer_id import InitProducerIdRequest
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.record.batch import Record, RecordBatch, iterate_batches
from kbroker.record.builder import BatchBuilder
from kbroker.testing import wait_until
from kbroker.wire.blocking import Wakes, receive
from kbroker.wire.stream import Malformed, Stream

TIMEOUT_S = 30.0 * TIME_FACTOR
# BOUND: no response the tests ask for is larger.
RESPONSE_BYTES_MAX = 64 << 20
EARLIEST, LATEST = -2, -1
NOT_OPEN = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)

M = TypeVar("M", bound=Message)


class WireClient:
    """Requests on one connection. Any trouble with it is an OSError, TimeoutError among them."""

    def __init__(
        self,
        address: tuple[str, int],
        timeout: float = TIMEOUT_S,
        client_id: str = "fault",
        from_host: str = "",
    ) -> None:
        self.socket = socket.create_connection(address, timeout, (from_host, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.timeout = timeout
        self._stream = Stream(client_id, RESPONSE_BYTES_MAX)

    def __enter__(self) -> WireClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # -- frames

    def send(self, request: Message, version: int) -> int:
        """Send a request whose response, if any, ``receive`` takes; returns its correlation id."""
        assert request.API_KEY is not None
        body = codec.encode(request, version)
        pending, parts = self._stream.request(
            request.API_KEY, version, [body], expects_response=False
        )
        self.socket.sendall(b"".join(parts))
        return pending.correlation_id

    def receive(self) -> bytes:
        """The next frame, without its length, whatever it responds to."""
        frame = read_frame(self.socket)
        if frame is None:
            raise ConnectionError("the broker closed the connection")
        return frame[4:]

    def call(self, request: Message, version: int) -> Any:
        """Send a request and decode its response, which must be the next one."""
        sent, frame = self._stream.message(request, version)
        self.socket.sendall(frame)
        deadline = time.monotonic() + self.timeout
        try:
            pending, body = receive(self.socket, self._stream, deadline, Wakes(None))
        except Malformed as error:
            raise ConnectionError(str(error)) from error
        if pending is not sent:
            raise ConnectionError(f"the response to request {pending.correlation_id} came late")
        return pending.decoded(bytes(body))

    def is_closed(self, timeout: float) -> bool:
        """Whether the broker closes the connection within ``timeout``; responses are skipped."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                if not self.socket.recv(65536):
                    return True
            except TimeoutError:
                return False
            except OSError:
                return True
        return False

    # -- requests

    def create_topic(self, name: str, partitions: int = 1, **configs: object) -> None:
        """Create a topic; configs with underscores for dots. Raises AssertionError."""
        cls = CreateTopicsRequest
        settings = [
            cls.CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
            for key, value in configs.items()
        ]
        topic = cls.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, configs=settings
        )
        (response,) = self.call(cls(topics=[topic], timeout_ms=30_000), 5).topics
        assert response.error_code == 0, f"{name}: {response.error_code} {response.error_message}"

    def metadata(self, *names: str) -> Any:
        """Metadata 9 without auto-creation."""
        cls = MetadataRequest
        topics = [cls.MetadataRequestTopic(name=name) for name in names]
        return self.call(cls(topics=topics, allow_auto_topic_creation=False), 9)

    def init_producer_id(self) -> tuple[int, int]:
        """A producer id and its epoch."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        response = self.call(request, 2)
        assert response.error_code == 0, response
        return response.producer_id, response.producer_epoch

    def produce(self, topic: str, batches: dict[int, bytes], acks: int = 1) -> dict[int, Any]:
        """One batch for each partition with Produce 8; returns the partitions' responses. The
        broker may take half of this client's timeout.
        """
        request = produce_request(topic, batches, acks, timeout_ms=int(self.timeout * 500))
        response = self.call(request, 8)
        return {part.index: part for part in response.responses[0].partition_responses}

    def offset(self, topic: str, partition: int, timestamp: int) -> int:
        """ListOffsets 4, EARLIEST or LATEST; waits until the log is open. Raises AssertionError."""
        response = self.await_open(topic, [partition], timestamp)[partition]
        assert response.error_code == 0, f"{topic}-{partition}: error {response.error_code}"
        return int(response.offset)

    def await_open(
        self, topic: str, partitions: Iterable[int], timestamp: int = LATEST
    ) -> dict[int, Any]:
        """Wait for these logs, which a broker opens after it has begun to respond; the partitions'
        ListOffsets 4 responses. One that cannot be opened is not waited for.
        """
        cls = ListOffsetsRequest
        asked = [
            cls.ListOffsetsPartition(partition_index=number, timestamp=timestamp)
            for number in partitions
        ]
        request = cls(replica_id=-1, topics=[cls.ListOffsetsTopic(name=topic, partitions=asked)])

        def answers() -> dict[int, Any]:
            parts = self.call(request, 4).topics[0].partitions
            loading = [part.partition_index for part in parts if part.error_code == NOT_OPEN]
            assert not loading, f"{topic}: partitions {loading} answer with error {NOT_OPEN}"
            return {part.partition_index: part for part in parts}

        return wait_until(answers, self.timeout, "the logs are open")

    def fetch(self, topic: str, partition: int, offset: int, max_wait_ms: int = 0) -> Any:
        """The partition's Fetch 11 response."""
        cls = FetchRequest
        part = cls.FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=4 << 20
        )
        request = cls(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=8 << 20,
            topics=[cls.FetchTopic(topic=topic, partitions=[part])],
        )
        return self.call(request, 11).responses[0].partitions[0]

    def read_all(self, topic: str, partition: int) -> list[Record]:
        """Every record from the log's start to its end, each batch checked.

        Raises AssertionError for an error code, CorruptBatchError for bytes nobody may be served.
        """
        start = self.offset(topic, partition, EARLIEST)
        batches = self.read_batches(topic, partition, start)
        return [record for batch in batches for record in batch.records() if record.offset >= start]

    def read_batches(self, topic: str, partition: int, start: int = 0) -> list[RecordBatch]:
        """Every batch, markers of transactions too; raises as ``read_all``."""
        found: list[RecordBatch] = []
        offset = start
        end = self.offset(topic, partition, LATEST)
        while offset < end:
            response = self.fetch(topic, partition, offset)
            assert response.error_code == 0, (
                f"{topic}-{partition} at {offset}: {response.error_code}"
            )
            before = offset
            for batch in iterate_batches(bytes(response.records or b""), partial_tail=True):
                batch.check()
                found.append(batch)
                offset = batch.next_offset
            assert offset > before, f"{topic}-{partition}: nothing at {offset}, the end is {end}"
        return found

    def committed(
        self, group: str, topic: str, partitions: int, *, stable: bool = False
    ) -> dict[int, int]:
        """Committed offsets with OffsetFetch 7; empty if the coordinator is not available now.

        stable: without those that a transaction is about to change.
        """
        cls = OffsetFetchRequest
        asked = cls.OffsetFetchRequestTopic(name=topic, partition_indexes=list(range(partitions)))
        response = self.call(cls(group_id=group, topics=[asked], require_stable=stable), 7)
        if response.error_code:
            return {}
        return {
            part.partition_index: part.committed_offset
            for part in response.topics[0].partitions
            if not part.error_code and part.committed_offset >= 0
        }


def produce_request(
    topic: str, batches: dict[int, bytes], acks: int = 1, timeout_ms: int = 15_000
) -> ProduceRequest:
    """A Produce request with one batch for each partition."""
    cls = ProduceRequest
    parts = [cls.PartitionProduceData(index=index, records=data) for index, data in batches.items()]
    return cls(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[cls.TopicProduceData(name=topic, partition_data=parts)],
    )


def batch_of(values: list[bytes], **options: Any) -> bytes:
    """A record batch; options are those of ``BatchBuilder``."""
    builder = BatchBuilder(**options)
    now = int(time.time() * 1000)
    for value in values:
        builder.append(value, timestamp=now)
    return builder.build()
