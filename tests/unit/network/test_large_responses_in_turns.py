"""A large response yields to others: it is sent in pieces, including the bytes of files."""

from __future__ import annotations

import os
import socket
import struct
import time

import pytest
from support.network.net_loop_harness import METADATA, Harness, fetch, serving

from kbroker._ext.shared.partition_table import LEADER, ONLINE
from kbroker.security.principal import ANONYMOUS
from kbroker.testing import wait_until

pytestmark = pytest.mark.unit

BATCH_BYTES = 1_000_000
PIECE_BYTES = 300_000
"""A piece, its header and other responses."""
SHARED_PIECE_BYTES = 70_000
"""The same while short responses are expected: shared by all long ones."""
SHORT_RESPONSES_S = 0.025


@pytest.fixture
def harness(tmp_path) -> Harness:
    """Partition 0 holds one batch of a megabyte."""
    made = Harness(log_dirs=[str(tmp_path)])
    (tmp_path / "t-0").mkdir()
    content = struct.pack(">qiib", 0, BATCH_BYTES - 12, 0, 2) + os.urandom(BATCH_BYTES - 17)
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(content)
    (tmp_path / "t-0" / f"{0:020d}.index").write_bytes(b"")
    made.table.reset(0, state=ONLINE, role=LEADER, slot_incarnation=7)
    made.table.publish(0, log_start_offset=0, log_end=(1, 0, BATCH_BYTES))
    return made


def connect(harness: Harness) -> socket.socket:
    """The client's end of a connection that receives the whole response at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        client = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    ours.setblocking(False)
    client.setblocking(False)
    access = harness.accesses.of(ANONYMOUS, "test")
    harness.loop.add_connection(ours.detach(), 0, "test", 1, access)
    return client


def turn(harness: Harness) -> int:
    """The bytes that one turn sends."""
    before = harness.loop.bytes_sent
    harness.loop.turn(0)
    harness.loop.end_turn()
    return harness.loop.bytes_sent - before


def drain(client: socket.socket) -> int:
    size = 0
    while True:
        try:
            size += len(client.recv(1 << 20))
        except BlockingIOError:
            return size


def test_large_response_goes_out_in_pieces(harness):
    client = connect(harness)
    client.send(fetch(0))

    sent, received = [], 0
    while received < BATCH_BYTES:
        sent.append(turn(harness))
        received += drain(client)

    assert max(sent) <= PIECE_BYTES
    assert sum(sent) == received


def test_small_request_is_served_between_the_pieces(harness):
    serving(harness)
    large, small = connect(harness), connect(harness)
    large.send(fetch(0))
    sent = turn(harness)
    small.send(METADATA)

    while not drain(small):  # a busy kernel may deliver a turn later
        sent += turn(harness)
        assert sent < BATCH_BYTES, "the large answer is no longer on its way"


def ask(harness: Harness, client: socket.socket) -> float:
    """A small request and its response. Returns the start time: the response is not older."""
    begun = time.monotonic()
    client.send(METADATA)
    while not drain(client):
        turn(harness)
    return begun


def test_large_responses_share_a_small_piece_while_short_ones_are_expected(harness):
    serving(harness)
    small, *large = (connect(harness) for _ in range(3))
    for client in large:
        client.send(fetch(0))

    received = [0, 0]
    for _ in range(12):
        asked = ask(harness, small)
        sent = turn(harness)
        if time.monotonic() - asked < SHORT_RESPONSES_S:  # this process did not stand still
            assert sent <= SHARED_PIECE_BYTES
        for index, client in enumerate(large):
            received[index] += drain(client)

    assert min(received) >= BATCH_BYTES // 4, "they take turns"


def test_other_work_does_not_wait_for_large_responses(harness):
    serving(harness)
    small, *large = (connect(harness) for _ in range(31))
    for client in large:
        client.send(fetch(0))
    asked = ask(harness, small)
    newcomer = connect(harness)
    newcomer.send(METADATA)

    turns = 0
    while not drain(newcomer):
        turn(harness)
        turns += 1
    if time.monotonic() - asked < SHORT_RESPONSES_S:
        assert turns <= 3, "all of them go first, a piece in each turn"


def test_large_response_has_the_whole_turn_again_when_nobody_asks_for_long(harness):
    serving(harness)
    small, large = connect(harness), connect(harness)
    ask(harness, small)
    quiet_from = time.monotonic() + SHORT_RESPONSES_S
    large.send(fetch(0))
    turn(harness)
    wait_until(lambda: time.monotonic() > quiet_from)
    turn(harness)  # sees how late it is
    drain(large)

    assert turn(harness) > 2 * SHARED_PIECE_BYTES
