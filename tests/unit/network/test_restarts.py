"""Restarts of either end of a lane: requests to one incarnation mean nothing to the next."""

from __future__ import annotations

import mmap
import socket

import pytest
from support.network.net_loop_harness import (
    DESCRIPTOR,
    ENVELOPE,
    IO_WORKER,
    NETWORK,
    RESULT,
    Harness,
    framed,
)

from kbroker._ext.io.io_loop import IoLoop
from kbroker._ext.shared.lane import Lane
from kbroker._ext.shared.partition_table import LEADER, ONLINE, PartitionTable, region_size
from kbroker.protocol import codec, header
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.fetch import FetchRequest

pytestmark = pytest.mark.unit

MSG_PRODUCE, MSG_PRODUCE_RESULT = 3, 4


def test_wake_up_that_died_with_its_worker_is_made_up_for():
    harness = Harness()
    harness.table.reset(0, state=ONLINE, role=LEADER, slot_incarnation=7)
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topic = FetchRequest.FetchTopic(topic="t", partitions=[partition])
    request = FetchRequest(replica_id=-1, max_wait_ms=60_000, min_bytes=1, topics=[topic])
    head = header.encode_request_header(ApiKey.FETCH, 4, 1, "me")
    client = harness.connect()
    client.send(framed(head + codec.encode(request, 4)))
    harness.turn()
    assert harness.fetch.counts()["parked"] == 1

    harness.table.waiters(0)  # the owner took the bits, and died
    harness.cells[0] = 6
    harness.turn()

    assert harness.fetch.counts()["parked"] == 1
    assert harness.table.waiters(0) == 1, "the next advance wakes it"


def test_responses_held_back_do_not_reach_the_next_network_process():
    ours, network = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    network.setblocking(False)
    cells = memoryview(mmap.mmap(-1, 4096)).cast("q")
    cells[0] = 3
    lane = Lane(ours.fileno(), (IO_WORKER, 0, 5), 0, cells, 0)
    table = PartitionTable(mmap.mmap(-1, region_size(4)), 4)
    loop = IoLoop(table, [mmap.mmap(-1, 4096)], [lane], lambda slot: None)

    descriptors = b"".join(DESCRIPTOR.pack(n, 0, 0, 1, 1000, 0, 8, 1, 9, 0, 0) for n in range(500))
    held_back = False
    while not held_back:  # until the lane is full
        network.send(ENVELOPE.pack(MSG_PRODUCE, NETWORK, 0, 3, 5, 500) + descriptors)
        loop.read_lane(lane)
        held_back = loop.end_turn()
    cells[0] = 4
    targets = set()
    for _ in range(3):
        loop.end_turn()
        while True:
            try:
                data = network.recv(1 << 20)
            except BlockingIOError:
                break
            targets.add(ENVELOPE.unpack_from(data)[4])
    assert targets == {3}, "what is sent to the new one answers nothing it asked"

    network.send(ENVELOPE.pack(MSG_PRODUCE, NETWORK, 0, 4, 5, 1) + descriptors[: DESCRIPTOR.size])
    loop.read_lane(lane)
    loop.end_turn()
    kind, _, _, _, target, count = ENVELOPE.unpack_from(data := network.recv(1 << 20))
    assert (kind, target, count) == (MSG_PRODUCE_RESULT, 4, 1)
    assert RESULT.unpack_from(data, ENVELOPE.size)[0] == 0
