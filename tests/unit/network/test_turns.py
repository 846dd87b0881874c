"""Turns that run without Python code in between, and what ends them."""

from __future__ import annotations

import mmap
import os
import select
import socket
import time

import pytest
from support.network.net_loop_harness import (
    DESCRIPTOR,
    ENVELOPE,
    IO_WORKER,
    NETWORK,
    RESULT,
    Harness,
    framed,
    received,
)

from kbroker._ext.io.io_loop import IoLoop
from kbroker._ext.shared.lane import Lane
from kbroker._ext.shared.partition_table import (
    FREE,
    LEADER,
    LOADING,
    ONLINE,
    PartitionTable,
    region_size,
)
from kbroker.ipc.lane_calls import MSG_REQUEST
from kbroker.protocol import codec, header
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.fetch import FetchRequest

pytestmark = pytest.mark.unit

MSG_PRODUCE, MSG_PRODUCE_RESULT = 3, 4
UNKNOWN_TOPIC, NOT_LEADER = 3, 6
LONG_MS = 60_000


def fetch_waiting(wait_ms: int) -> bytes:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topic = FetchRequest.FetchTopic(topic="t", partitions=[partition])
    request = FetchRequest(replica_id=-1, max_wait_ms=wait_ms, min_bytes=1, topics=[topic])
    head = header.encode_request_header(ApiKey.FETCH, 4, 1, "me")
    return framed(head + codec.encode(request, 4))


def test_network_turns_complete_a_parked_fetch_on_its_way():
    harness = Harness()
    harness.table.reset(0, state=ONLINE, role=LEADER, slot_incarnation=7)
    client = harness.connect()
    client.send(fetch_waiting(30))

    response = b""
    for _ in range(10):  # where the machine stands still, its time is up before the fetch's is
        began = time.monotonic()
        held_back = harness.loop.turns(150)
        assert not held_back
        took = time.monotonic() - began
        assert took >= 0.14, "nothing needed the process before its time was up"
        if response := received(client):
            break
    assert response


def test_network_turns_end_when_a_request_is_dispatched():
    harness = Harness()
    client = harness.connect()
    client.send(framed(header.encode_request_header(ApiKey.API_VERSIONS, 0, 1, "me")))
    began = time.monotonic()
    harness.loop.turns(LONG_MS)
    assert len(harness.dispatched) == 1
    assert time.monotonic() - began < LONG_MS / 2000


def test_network_turns_end_when_a_connection_is_closed():
    harness = Harness()
    client = harness.connect()
    client.send(b"GET / HTTP/1.1\r\n\r\n")
    harness.loop.turns(LONG_MS)
    assert len(harness.closed) == 1


def test_network_turns_end_when_a_reader_was_called():
    harness = Harness()
    ours, theirs = os.pipe()
    seen: list[bytes] = []
    harness.loop.add_reader(ours, lambda: seen.append(os.read(ours, 10)))
    os.write(theirs, b"x")
    harness.loop.turns(LONG_MS)
    assert seen == [b"x"]


@pytest.fixture
def io_table():
    return PartitionTable(mmap.mmap(-1, region_size(4)), 4)


@pytest.fixture
def io_side(io_table):
    """(loop, epoll, the network process's end): the loop of an io worker with one lane."""
    ours, network = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    network.setblocking(False)
    cells = memoryview(mmap.mmap(-1, 4096)).cast("q")
    cells[0] = 3
    lane = Lane(ours.fileno(), (IO_WORKER, 0, 5), 0, cells, 0)
    epoll = select.epoll()
    epoll.register(ours.fileno(), select.EPOLLIN)
    with ours, network, epoll:
        yield (
            IoLoop(io_table, [mmap.mmap(-1, 4096)], [lane], lambda slot: None),
            epoll,
            network,
        )


def test_io_turns_serve_a_lane_and_wait_for_the_rest_of_their_time(io_side):
    loop, epoll, network = io_side
    descriptor = DESCRIPTOR.pack(9, 0, 0, 1, 1000, 0, 8, 1, 9, 0, 0)
    network.send(ENVELOPE.pack(MSG_PRODUCE, NETWORK, 0, 3, 5, 1) + descriptor)

    began = time.monotonic()
    others = loop.turns(epoll.fileno(), 50)

    assert others == []
    assert time.monotonic() - began >= 0.04
    response = network.recv(1 << 16)
    assert ENVELOPE.unpack_from(response)[0] == MSG_PRODUCE_RESULT
    assert RESULT.unpack_from(response, ENVELOPE.size)[0] == 9


@pytest.mark.parametrize(
    ("slot_incarnation", "state", "code"),
    [
        (0, FREE, NOT_LEADER),  # a broker that has just been started, and the log not opened yet
        (1, LOADING, NOT_LEADER),
        (1, FREE, UNKNOWN_TOPIC),  # the topic was deleted
        (2, ONLINE, UNKNOWN_TOPIC),  # and its slot given to another
    ],
)
def test_io_rejects_a_slot_that_is_not_this_replicas_yet_or_no_longer(
    io_side, io_table, slot_incarnation, state, code
):
    loop, epoll, network = io_side
    io_table.reset(0, state=state, slot_incarnation=slot_incarnation)
    descriptor = DESCRIPTOR.pack(9, 0, 0, 1, 1000, 0, 8, 1, 9, 0, 0)
    network.send(ENVELOPE.pack(MSG_PRODUCE, NETWORK, 0, 3, 5, 1) + descriptor)

    loop.turns(epoll.fileno(), 50)

    assert RESULT.unpack_from(network.recv(1 << 16), ENVELOPE.size)[2] == code


def test_io_turns_end_with_a_descriptor_that_is_no_lane(io_side):
    loop, epoll, _ = io_side
    ours, theirs = os.pipe()
    epoll.register(ours, select.EPOLLIN)
    os.write(theirs, b"x")
    assert loop.turns(epoll.fileno(), LONG_MS) == [ours]


def test_io_turns_end_with_a_request_that_python_serves(io_side):
    """A call or a deadline scheduled by the coordinator must not wait for the next tick."""
    loop, epoll, network = io_side
    asked = []
    loop.on_request = lambda index, message: asked.append((index, message))
    network.send(ENVELOPE.pack(MSG_REQUEST, NETWORK, 0, 3, 5, 1) + b"damaged")

    began = time.monotonic()
    others = loop.turns(epoll.fileno(), LONG_MS)

    assert time.monotonic() - began < LONG_MS / 2000
    assert (others, asked) == ([], [(0, b"damaged")])


def test_io_turns_of_no_time_serve_what_is_there(io_side):
    loop, epoll, network = io_side
    descriptor = DESCRIPTOR.pack(9, 0, 0, 1, 1000, 0, 8, 1, 9, 0, 0)
    network.send(ENVELOPE.pack(MSG_PRODUCE, NETWORK, 0, 3, 5, 1) + descriptor)
    assert loop.turns(epoll.fileno(), 0) == []
    assert network.recv(1 << 16)
