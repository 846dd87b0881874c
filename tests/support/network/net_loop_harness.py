"""A NetLoop on socket pairs: the test is the client on one side and the io worker on the other.

Beside it, the requests that tests send and the responses that they get.
"""

from __future__ import annotations

import mmap
import socket
import struct
from typing import Any

from support.network.frames import framed

from kbroker._ext.fetch.fetch_engine import FetchEngine
from kbroker._ext.network.connection import SERVING
from kbroker._ext.network.net_loop import NetLoop
from kbroker._ext.network.produce_path import ProducePath
from kbroker._ext.shared.arena import Arena
from kbroker._ext.shared.lane import Lane
from kbroker._ext.shared.partition_table import PartitionTable, region_size
from kbroker._ext.shared.quota_table import QuotaTable
from kbroker._ext.sockets.requests import RequestTable
from kbroker.protocol import codec, header
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.security.access import AccessTable
from kbroker.security.authorizer import AllowAll
from kbroker.security.principal import ANONYMOUS, KafkaPrincipal

ENVELOPE = struct.Struct("=BBHIII")
DESCRIPTOR = struct.Struct("=QIiIiQIhhII16x")  # without OF_QUOTA
OF_QUOTA = struct.Struct("=Qd")  # its last fields
RESULT = struct.Struct("=QIhHqqqiIqq")
MSG_PRODUCE_RESULT = 4

NETWORK, IO_WORKER = 2, 3
TOPIC_ID = bytes(range(16))
NOT_LEADER = 6
# The network process does not parse batches, but fewer than 61 bytes cannot be one.
SMALLEST_BATCH = b"a batch header is never smaller".ljust(61)


class Harness:
    """A network loop with one io worker's lane and topic ``t`` in slots 0 and 1.

    The arena has ``small_bytes`` more than ``arena_bytes``.
    """

    def __init__(
        self,
        arena_bytes: int = 1 << 20,
        frame_max: int = (1 << 20) - 4,
        log_dirs: list[str] | None = None,
        small_bytes: int = 0,
        open_files: int = 1000,
        quotas: QuotaTable | None = None,
    ) -> None:
        self.dispatched: list[tuple[int, bytes]] = []
        self.quotas_sent: list[tuple[int, float]] = []  # with descriptors: key and rate
        self.on_dispatch = lambda connection, token, frame: self.dispatched.append((token, frame))
        self.closed: list[str | None] = []
        self.accesses = AccessTable(AllowAll())
        self.region = mmap.mmap(-1, arena_bytes + small_bytes)
        self.arena = Arena(self.region, frame_max + 4, small_bytes)
        self.requests = requests = RequestTable()
        self.table = PartitionTable(mmap.mmap(-1, region_size(4)), 4)
        self.fetch = FetchEngine(self.table, 0, log_dirs or [], max_open_files=open_files)
        self.fetch.put_topic("t", TOPIC_ID, [0, 1], [7, 8])
        self.loop = NetLoop(
            self.arena,
            requests,
            frame_max,
            lambda connection, reason: self.closed.append(reason),
            ProducePath(self.arena, self.fetch.registry, requests, 1),
            self.fetch,
            lambda connection, token, frame: self.on_dispatch(connection, token, frame),
            quotas,
        )
        self.ours, self.worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.setblocking(False)
        self.worker.setblocking(False)
        self.cells = memoryview(mmap.mmap(-1, 4096)).cast("q")
        self.cells[0] = 5  # the io worker's incarnation
        self.loop.add_lane(Lane(self.ours.fileno(), (NETWORK, 0, 3), 0, self.cells, 0))

    def connect(self, phase: int = SERVING, principal: KafkaPrincipal = ANONYMOUS) -> socket.socket:
        """The client's end of a new connection."""
        ours, client = socket.socketpair()
        ours.setblocking(False)
        client.setblocking(False)
        access = self.accesses.of(principal, "test")
        self.connection = self.loop.add_connection(ours.detach(), 0, "test", 1, access, phase)
        return client

    def turn(self, count: int = 3) -> None:
        for _ in range(count):
            self.loop.turn(0)
            self.loop.end_turn()

    def descriptors(self) -> list[tuple[Any, ...]]:
        """The unpacked descriptors that the io worker got."""
        found: list[tuple[Any, ...]] = []
        while True:
            try:
                data = self.worker.recv(1 << 20)
            except BlockingIOError:
                return found
            kind, _, _, sender, target, count = ENVELOPE.unpack_from(data)
            assert (kind, sender, target) == (3, 3, self.cells[0])
            body = memoryview(data)[ENVELOPE.size :]
            assert len(body) == count * DESCRIPTOR.size
            found += [DESCRIPTOR.unpack_from(body, i * DESCRIPTOR.size) for i in range(count)]
            ends = ((i + 1) * DESCRIPTOR.size - OF_QUOTA.size for i in range(count))
            self.quotas_sent += [OF_QUOTA.unpack_from(body, end) for end in ends]

    def descriptors_in_a_turn(self) -> list[tuple[Any, ...]]:
        """The same, after one more turn."""
        self.turn(1)
        return self.descriptors()

    def batch_of(self, descriptor: tuple[Any, ...]) -> bytes:
        """The bytes in the arena that a descriptor refers to."""
        offset, size = descriptor[5], descriptor[6]
        return self.region[offset : offset + size]

    def answer(
        self, *results: tuple[Any, ...], texts: bytes = b"", sender: int = 5, target: int = 3
    ) -> None:
        """Send results as the io worker."""
        body = b"".join(RESULT.pack(*result) for result in results) + texts
        envelope = ENVELOPE.pack(MSG_PRODUCE_RESULT, IO_WORKER, 0, sender, target, len(results))
        self.worker.send(envelope + body)


def result(
    descriptor: tuple[Any, ...],
    error: int = 0,
    base_offset: int = 0,
    text: bytes = b"",
    bad_record: int = -1,
    more: int = 0,
    taken_ns: int = 0,
    waits_ns: int = 0,
) -> tuple[Any, ...]:
    """A ProduceResult for a descriptor."""
    outcome = (error, len(text), base_offset, -1, 0, bad_record, more, taken_ns, waits_ns)
    return (descriptor[0], descriptor[1], *outcome)


def produce(
    version: int,
    correlation_id: int = 1,
    acks: int = 1,
    topic: str = "t",
    topic_id: bytes = TOPIC_ID,
    records: dict[int, bytes] | None = None,
    timeout_ms: int = 1000,
    client_id: str | None = "me",
) -> bytes:
    """A whole Produce frame."""
    topic_data = ProduceRequest.TopicProduceData
    partitions = [
        ProduceRequest.PartitionProduceData(index=index, records=data)
        for index, data in (records or {0: SMALLEST_BATCH}).items()
    ]
    if version >= 13:
        data = topic_data(topic_id=topic_id, partition_data=partitions)
    else:
        data = topic_data(name=topic, partition_data=partitions)
    request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[data])
    head = header.encode_request_header(ApiKey.PRODUCE, version, correlation_id, client_id)
    return framed(head + codec.encode(request, version))


def answers(data: bytes, version: int) -> list[tuple[int, ProduceResponse]]:
    """(correlation id, response) of each frame in ``data``."""
    found = []
    while data:
        (size,) = struct.unpack_from(">i", data)
        frame, data = data[4 : 4 + size], data[4 + size :]
        number, position = header.decode_response_header(frame, ApiKey.PRODUCE, version)
        found.append((number, codec.decode_exact(ProduceResponse, version, frame[position:])))
    return found


def received(client) -> bytes:
    try:
        return client.recv(1 << 20)
    except BlockingIOError:
        return b""


def partitions_of(response: ProduceResponse) -> list:
    return [p for topic in response.responses for p in topic.partition_responses]


METADATA = framed(header.encode_request_header(ApiKey.METADATA, 1, 2, "me") + b"\0\0\0\0")


def fetch(max_wait_ms: int, correlation_id: int = 1) -> bytes:
    """A Fetch of partition 0 from its start."""
    partition = FetchRequest.FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=1 << 20
    )
    topic = FetchRequest.FetchTopic(topic="t", partitions=[partition])
    request = FetchRequest(replica_id=-1, max_wait_ms=max_wait_ms, min_bytes=1, topics=[topic])
    head = header.encode_request_header(ApiKey.FETCH, 4, correlation_id, "me")
    return framed(head + codec.encode(request, 4))


def serving(harness: Harness) -> None:
    """Respond to requests where they are dispatched, as most handlers do."""

    def dispatch(connection, token, frame):
        harness.dispatched.append((token, frame))
        harness.loop.respond(token, b"\0\0\0\2")

    harness.on_dispatch = dispatch
