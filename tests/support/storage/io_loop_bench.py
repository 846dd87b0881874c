"""The loop of an io worker over a real log, with two network processes played by the test."""

from __future__ import annotations

import mmap
import socket
import struct
from pathlib import Path
from typing import Any

from support.network.net_loop_harness import DESCRIPTOR, ENVELOPE, IO_WORKER, NETWORK, RESULT
from support.storage.log_store import LogStore

from kbroker._ext.io.io_loop import IoLoop
from kbroker._ext.shared.lane import Lane

MSG_PRODUCE, MSG_PRODUCE_RESULT, MSG_WAKE = 3, 4, 5
NETWORKS = 2


class Bench:
    """The loop of an io worker over a real log, with two network processes played by the test."""

    def __init__(self, path: Path, **config: Any) -> None:
        self.store = LogStore(path)
        self.log = self.store.open(**config)
        self.cells = memoryview(mmap.mmap(-1, 4096)).cast("q")
        self.arenas = [mmap.mmap(-1, 1 << 20) for _ in range(NETWORKS)]
        self.used = [0] * NETWORKS
        self.ends = []
        self.lanes = []
        for index in range(NETWORKS):
            ours, network = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            network.setblocking(False)
            self.ends.append((ours, network))
            self.cells[index] = 3
            self.lanes.append(Lane(ours.fileno(), (IO_WORKER, 0, 5), index, self.cells, index))
        self.loop = IoLoop(self.store.table, self.arenas, self.lanes, self.on_failure)
        self.loop.put(self.log.appender)
        self.asked: list[tuple[int, int, int, str, int, int]] = []
        self.loop.verification.set_verifier(lambda *question: self.asked.append(question))

    def on_failure(self, slot: int) -> None:
        """Called when a write or sync of the log in this slot has failed."""

    def produce(
        self,
        number: int,
        data: bytes,
        *,
        network: int = 0,
        version: int = 11,
        timeout_ms: int = 1000,
        transactional_id: bytes = b"tx",
        incarnation: int = 1,
        acks: int = -1,
        slot: int = 0,
    ) -> None:
        """Send one descriptor and let the loop take it."""
        at = self.used[network]
        text = transactional_id + b"..."
        self.arenas[network][at : at + len(text) + len(data)] = text + data
        self.used[network] += len(text) + len(data)
        row = DESCRIPTOR.pack(
            number, 0, slot, incarnation, timeout_ms, at + len(text), len(data), acks, version,
            len(text) if transactional_id else 0, len(transactional_id),
        )  # fmt: skip
        header = ENVELOPE.pack(MSG_PRODUCE, NETWORK, network, self.cells[network], 5, 1)
        self.ends[network][1].send(header + row)
        self.loop.read_lane(self.lanes[network])

    def produce_together(
        self,
        batches: list[bytes],
        *,
        network: int = 0,
        version: int = 11,
        quota: tuple[int, float] = (0, 0.0),
    ) -> None:
        """Send the batches, numbered from 0, in one message of a lane. quota: key and rate of their
        client's for the time of requests.
        """
        rows = b""
        for number, data in enumerate(batches):
            at = self.used[network]
            self.arenas[network][at : at + len(data)] = data
            self.used[network] += len(data)
            row = DESCRIPTOR.pack(number, 0, 0, 1, 1000, at, len(data), -1, version, 0, 0)
            of_quota = struct.pack("=Qd", *quota)
            rows += row[: -len(of_quota)] + of_quota
        header = ENVELOPE.pack(MSG_PRODUCE, NETWORK, network, self.cells[network], 5, len(batches))
        self.ends[network][1].send(header + rows)
        self.loop.read_lane(self.lanes[network])

    def results(self, network: int = 0) -> list[tuple[int, int, int]]:
        """(number, error code, base offset) of the results so far."""
        self.loop.end_turn()
        found = []
        while True:
            try:
                data = self.ends[network][1].recv(1 << 20)
            except BlockingIOError:
                return found
            kind, *_, count = ENVELOPE.unpack_from(data)
            for i in range(count if kind == MSG_PRODUCE_RESULT else 0):
                row = RESULT.unpack_from(data, ENVELOPE.size + i * RESULT.size)
                found.append((row[0], row[2], row[4]))

    def wakes(self, network: int = 0) -> list[int]:
        """The slots of the wake-ups so far; drops other messages."""
        found: list[int] = []
        while True:
            try:
                data = self.ends[network][1].recv(1 << 20)
            except BlockingIOError:
                return found
            kind, *_, count = ENVELOPE.unpack_from(data)
            if kind == MSG_WAKE:
                found += struct.unpack_from(f"={count}i", data, ENVELOPE.size)

    def answer(self, code: int = 0, number: int = -1) -> None:
        self.loop.verified(self.asked[number][5], code)
