"""Random pipelines, chunks, responses and restarts against a network loop: every request that
expects a response gets one, in order, or its connection is closed; in the end nothing is held.
"""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path

import pytest
from support.network.net_loop_harness import Harness, framed, produce, result

from kbroker._ext.shared.partition_table import LEADER, ONLINE
from kbroker.protocol import codec, header
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.fetch import FetchRequest

pytestmark = pytest.mark.property

STEPS = 400
SETTLE_SECONDS = 30
LOG_BYTES = 1_500_000


class Client:
    """A connection, the bytes it still has to send, and the correlation ids it expects, in
    order.
    """

    def __init__(self, harness: Harness) -> None:
        self.socket = harness.connect()
        self.unsent = b""
        self.unread = b""
        self.owed: list[int] = []
        self.gone = False

    def ask(self, random_: random.Random, number: int) -> None:
        kind = random_.choice(("produce", "produce", "silent", "fetch", "metadata", "unknown"))
        if kind == "fetch":
            frame = fetch(random_, number)
        elif kind == "metadata":
            head = header.encode_request_header(ApiKey.METADATA, 1, number, "me")
            frame = framed(head + b"\0\0\0\0")
        else:
            size = random_.choice((1, 100, 5000, 60_000))
            records = dict.fromkeys(random_.choice(((0,), (1,), (0, 1))), b"r" * size)
            frame = produce(
                random_.choice((3, 9, 13 if kind != "unknown" else 12)),
                correlation_id=number,
                acks=0 if kind == "silent" else 1,
                topic="unknown" if kind == "unknown" else "t",
                records=records,
            )
        if kind != "silent":
            self.owed.append(number)
        self.unsent += frame

    def move(self, random_: random.Random) -> None:
        """Send and receive some bytes; check the responses."""
        limit = random_.choice((1, 50, 4000, 1 << 20))
        try:
            self.unsent = self.unsent[self.socket.send(self.unsent[:limit]) :]
        except BlockingIOError:
            pass
        except OSError:
            self.gone = True
        if random_.random() < 0.7:
            self.read(random_.choice((1, 1000, 1 << 20)))

    def read(self, limit: int) -> None:
        try:
            data = self.socket.recv(limit)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.gone |= data == b""
        self.unread += data
        while len(self.unread) >= 8:
            size, number = struct.unpack_from(">ii", self.unread)
            if len(self.unread) < size + 4:
                return
            self.unread = self.unread[size + 4 :]
            assert self.owed and self.owed.pop(0) == number


def fetch(random_: random.Random, number: int) -> bytes:
    partition = FetchRequest.FetchPartition(
        partition=random_.choice((0, 0, 1)),
        fetch_offset=random_.choice((0, 0, 10, 15)),
        partition_max_bytes=random_.choice((1000, 1 << 20, 1 << 21)),
    )
    topic = FetchRequest.FetchTopic(topic="t", partitions=[partition])
    request = FetchRequest(
        replica_id=-1, max_wait_ms=random_.choice((0, 5, 40)), min_bytes=1, topics=[topic]
    )
    head = header.encode_request_header(ApiKey.FETCH, 4, number, "me")
    return framed(head + codec.encode(request, 4))


def write_log(directory: Path) -> None:
    """15 batches' worth of bytes that only look like a log to a fetch."""
    log = directory / "t-0"
    log.mkdir()
    batch_size = LOG_BYTES // 15
    content = b"".join(
        struct.pack(">qiib", n, batch_size - 12, 0, 2) + bytes(batch_size - 17) for n in range(15)
    )
    (log / f"{0:020d}.log").write_bytes(content)
    (log / f"{0:020d}.index").write_bytes(b"")


def answer_some(harness: Harness, random_: random.Random, waiting: list, chance: float) -> None:
    waiting += harness.descriptors()
    random_.shuffle(waiting)
    for descriptor in [d for d in waiting if random_.random() < chance]:
        waiting.remove(descriptor)
        error = 0 if random_.random() < 0.95 else 10
        harness.answer(result(descriptor, error), sender=harness.cells[0])
    for token, frame in [d for d in harness.dispatched if random_.random() < chance]:
        harness.dispatched.remove((token, frame))
        harness.loop.respond(token, frame[4:8] + b"an answer")


@pytest.mark.parametrize("seed", range(25))
def test_net_loop_random_load_completes_each_request_once_and_holds_nothing(seed, tmp_path):
    print(f"seed {seed}")
    random_ = random.Random(seed)
    write_log(tmp_path)
    harness = Harness(
        arena_bytes=random_.choice((1 << 19, 1 << 22)),
        frame_max=(1 << 18) - 4,
        small_bytes=random_.choice((0, 1 << 16, 1 << 18)),
        log_dirs=[str(tmp_path)],
    )
    harness.loop.set_timeouts(600_000, 600_000, 600_000, 600_000)
    for slot, incarnation in ((0, 7), (1, 8)):
        harness.table.reset(slot, state=ONLINE, role=LEADER, slot_incarnation=incarnation)
    harness.table.publish(0, log_start_offset=0, log_end=(15, 0, LOG_BYTES))
    clients: list[Client] = []
    waiting: list = []
    for number in range(STEPS):
        if len(clients) < 8 and random_.random() < 0.2:
            clients.append(Client(harness))
        for client in list(clients):
            if random_.random() < 0.3:
                client.ask(random_, number)
            client.move(random_)
            if client.gone or random_.random() < 0.01:
                client.socket.close()
                clients.remove(client)
        if random_.random() < 0.02:
            harness.descriptors()
            waiting.clear()
            harness.cells[0] += 1
        harness.turn(random_.choice((0, 1, 2)))
        answer_some(harness, random_, waiting, random_.choice((0, 0.3, 1)))

    # By the clock, not by steps: a parked fetch waits for its timeout, however fast the steps are.
    give_up = time.monotonic() + SETTLE_SECONDS
    step = 0
    while time.monotonic() < give_up and any(client.unsent or client.owed for client in clients):
        step += 1
        if step % 100 == 0:
            harness.loop.sweep()
            harness.loop.relieve(time.monotonic_ns() // 1_000_000)
        for client in list(clients):
            client.move(random_)
            client.read(1 << 20)
            if client.gone:
                clients.remove(client)
        harness.turn(1)
        answer_some(harness, random_, waiting, 1)
    assert [(c.owed[:3], len(c.unsent)) for c in clients if c.owed or c.unsent] == []
    for client in clients:
        client.socket.close()
    for _ in range(50):
        harness.loop.sweep()
        harness.turn(1)
        answer_some(harness, random_, waiting, 1)
    assert harness.loop.connection_count == 0
    assert (harness.arena.allocated, harness.loop.requests_in_flight) == (0, 0)
    assert harness.fetch.counts()["parked"] == 0
    harness.fetch.tidy(1 << 60)
    assert harness.fetch.counts()["open_files"] == 0, "no reply holds a file"
