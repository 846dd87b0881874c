"""A NetLoop on socket pairs: the test is the client on one side and the io worker on the other."""

from __future__ import annotations

import mmap
import socket
import struct
from typing import Any

from kbroker._ext.arena import Arena
from kbroker._ext.fetch_engine import FetchEngine
from kbroker._ext.lane import Lane
from kbroker._ext.net_loop import NetLoop
from kbroker._ext.partition_table import PartitionTable, region_size
from kbroker._ext.produce_path import ProducePath
from kbroker._ext.requests import RequestTable
from kbroker._ext.topic_registry import TopicRegistry

ENVELOPE = struct.Struct("=BBHIII")
DESCRIPTOR = struct.Struct("=QIiIiQIhhII")
RESULT = struct.Struct("=QIhHqqqiI")
MSG_PRODUCE_RESULT = 4

NETWORK, IO_WORKER = 2, 3
TOPIC_ID = bytes(range(16))


class Harness:
    """One network loop with one io worker's lane and topic ``t`` in slots 0 and 1.

    The arena has ``small_bytes`` more than ``arena_bytes``.
    """

    def __init__(
        self,
        arena_bytes: int = 1 << 20,
        frame_max: int = (1 << 20) - 4,
        log_dirs: list[str] | None = None,
        small_bytes: int = 0,
        open_files: int = 1000,
    ) -> None:
        self.dispatched: list[tuple[int, bytes]] = []
        self.on_dispatch = lambda connection, token, frame: self.dispatched.append((token, frame))
        self.closed: list[str | None] = []
        self.region = mmap.mmap(-1, arena_bytes + small_bytes)
        self.arena = Arena(self.region, frame_max + 4, small_bytes)
        self.requests = requests = RequestTable()
        self.topics = topics = TopicRegistry()
        topics.put(b"t", TOPIC_ID, [0, 1], [7, 8])
        self.table = PartitionTable(mmap.mmap(-1, region_size(4)), 4)
        self.fetch = FetchEngine(self.table, 0, log_dirs or [], max_open_files=open_files)
        self.fetch.put_topic("t", TOPIC_ID, [0, 1], [7, 8])
        self.loop = NetLoop(
            self.arena,
            requests,
            frame_max,
            lambda connection, reason: self.closed.append(reason),
            ProducePath(self.arena, topics, requests, 1),
            self.fetch,
            lambda connection, token, frame: self.on_dispatch(connection, token, frame),
        )
        self._ours, self.worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self.worker.setblocking(False)
        self.cells = memoryview(mmap.mmap(-1, 4096)).cast("q")
        self.cells[0] = 5  # the io worker's incarnation
        self.loop.add_lane(Lane(self._ours.fileno(), (NETWORK, 0, 3), 0, self.cells, 0))

    def connect(self) -> socket.socket:
        """The client's end of a new connection."""
        ours, client = socket.socketpair()
        ours.setblocking(False)
        client.setblocking(False)
        self.loop.add_connection(ours.detach(), 0, "test", 1)
        return client

    def turn(self, count: int = 3) -> None:
        for _ in range(count):
            self.loop.turn(0)
            self.loop.end_turn()

    def descriptors(self) -> list[tuple[Any, ...]]:
        """What the io worker was sent: unpacked descriptors."""
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

    def batch_of(self, descriptor: tuple[Any, ...]) -> bytes:
        """The bytes a descriptor names in the arena."""
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
) -> tuple[Any, ...]:
    """A ProduceResult for a descriptor."""
    return (descriptor[0], descriptor[1], error, len(text), base_offset, -1, 0, bad_record, 0)
