"""No connection blocks the others, and nothing is kept for a disconnected client."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.network.net_loop_harness import (
    METADATA,
    Harness,
    fetch,
    framed,
    produce,
    received,
    result,
    serving,
)

from kbroker._ext.shared.partition_table import LEADER, ONLINE
from kbroker.protocol import header
from kbroker.protocol.api import ApiKey

pytestmark = pytest.mark.unit

ANY_TIMEOUT_MS = 600_000
LONGER_THAN_ALL_WORK_S = 30
REQUESTS = 200  # their responses fit into a socket that is not read


@contextmanager
def no_turn_waits(harness: Harness) -> Iterator[None]:
    """Fails if a turn of the block waited for an event: the one that comes is late, and stays."""
    ours, theirs = socket.socketpair()
    late: list[bool] = []
    harness.loop.add_reader(ours.fileno(), lambda: late.append(True))
    timer = threading.Timer(LONGER_THAN_ALL_WORK_S, theirs.send, [b"x"])
    with ours, theirs:
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
    assert not late, "what is left needs no event to go on"


def test_pipelined_requests_of_one_connection_leave_the_turn_to_others():
    harness = Harness()
    serving(harness)
    greedy = harness.connect()

    assert greedy.send(METADATA * REQUESTS) == REQUESTS * len(METADATA)
    harness.turn(1)
    done = len(harness.dispatched)
    assert 0 < done <= 20
    with no_turn_waits(harness):
        while len(harness.dispatched) < REQUESTS:
            harness.loop.turn(ANY_TIMEOUT_MS)
            harness.loop.end_turn()


def starved_harness(clients: int):
    """A harness with a full arena, and the descriptors and clients of accepted requests."""
    harness = Harness(arena_bytes=1 << 17, frame_max=(1 << 16) - 4)
    harness.loop.set_timeouts(600_000, 30_000, 60_000, 60_000)
    sockets = [harness.connect() for _ in range(clients)]
    for client in sockets:
        client.send(produce(9, records={0: b"x" * 50_000}))
    harness.turn(5)
    return harness, sockets


def test_full_arena_continues_at_once_when_a_response_frees_it():
    harness, _clients = starved_harness(4)
    taken = harness.descriptors()
    assert len(taken) < 4

    harness.answer(*[result(d) for d in taken])
    harness.turn(1)
    with no_turn_waits(harness):
        harness.loop.turn(ANY_TIMEOUT_MS)
        harness.loop.end_turn()

    assert harness.descriptors(), "those that waited for memory were read"


def test_connection_that_waits_for_memory_waits_once():
    harness, clients = starved_harness(4)
    before = harness.loop.starved_total

    for _ in range(50):
        for client in clients:
            client.send(b"more")
        harness.turn(1)
    harness.turn(1)
    retried = harness.loop.starved_total
    harness.turn(10)

    assert retried > before
    assert harness.loop.starved_total == retried, "no retry while nothing was freed"
    assert harness.loop.starved_count == len(clients), "each once"


def test_parked_fetch_of_a_client_that_left_is_given_up():
    harness = Harness()
    harness.table.reset(0, state=ONLINE, role=LEADER, slot_incarnation=7)
    early, late = harness.connect(), harness.connect()
    early.send(fetch(2**31 - 1))
    harness.turn()
    assert harness.fetch.counts()["parked"] == 1

    late.send(fetch(2**31 - 1))
    late.close()
    early.close()
    harness.turn()

    assert harness.closed == [None, None]
    assert harness.fetch.counts()["parked"] == 0
    assert harness.loop.requests_in_flight == 0


def test_event_of_a_closed_connection_is_not_taken_for_that_of_the_next_with_its_descriptor():
    harness = Harness()
    harness.table.reset(0, state=ONLINE, role=LEADER, slot_incarnation=7)
    busy, left = harness.connect(), harness.connect()
    victim = harness.connection
    found = []

    def dispatch(connection, token, frame):
        harness.loop.close(victim, None)
        found.append(harness.connect())

    harness.on_dispatch = dispatch
    harness.turn()
    busy.send(METADATA)
    left.close()  # its event comes behind that of the request
    harness.turn(1)
    assert harness.connection.fd == victim.fd and harness.closed == [None]

    found[0].send(fetch(max_wait_ms=60_000))
    harness.turn()
    assert harness.closed == [None], "the new one waits for records"
    assert harness.fetch.counts()["parked"] == 1


def test_request_of_many_partitions_leaves_no_buffers_behind():
    harness = Harness(arena_bytes=1 << 23, frame_max=(1 << 20) - 4)
    client = harness.connect()
    client.send(produce(9, records=dict.fromkeys(range(2, 3000), b"x")))
    for _ in range(20):
        harness.turn(1)
        if received(client):
            break
    harness.turn()

    assert harness.loop.requests_in_flight == 0
    assert harness.requests.buffer_bytes < 65536


def test_topics_of_a_request_leave_no_buffers_behind():
    harness = Harness(arena_bytes=1 << 23, frame_max=(1 << 20) - 4)
    client = harness.connect()
    head = header.encode_request_header(ApiKey.PRODUCE, 3, 1, "me")
    topics = struct.pack(">h", 1) + b"t" + struct.pack(">i", 0)
    body = struct.pack(">hhii", -1, 1, 1000, 2000) + topics * 2000
    client.send(framed(head + body))
    for _ in range(20):
        harness.turn(1)
        received(client)

    assert harness.loop.requests_in_flight == 0
    assert harness.requests.buffer_bytes < 65536
