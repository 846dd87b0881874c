"""Batches that a caller has made, on the way that batches of records go."""

from __future__ import annotations

import signal
import socket
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.clients.produce_link import NODE, ProduceLink, pool
from support.running.examples import examples
from support.storage.batch_stamps import stamp_batch

from kbroker.batch_summary import HEADER, HEADER_BYTES
from kbroker.record.batch import RecordBatch
from kbroker.record.builder import BatchBuilder

pytestmark = pytest.mark.unit

ATTRIBUTE_BITS = {"append time": 0x08, "transactional": 0x10, "delete horizon": 0x40}


def batch_of(*values: bytes, codec: int = 0) -> bytearray:
    builder = BatchBuilder(codec)
    for value in values:
        builder.append(value, timestamp=1)
    return bytearray(builder.build())


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(
    codec=st.integers(0, 4),
    base_offset=st.integers(0, 1 << 40),
    epoch=st.integers(-1, 1 << 20),
    bits=st.sets(st.sampled_from(sorted(ATTRIBUTE_BITS.values()))),
    former=st.tuples(st.integers(-1, 99), st.integers(-1, 9), st.integers(-1, 1 << 30)),
    transactional=st.booleans(),
)
def test_a_batch_is_sent_as_it_is_but_for_its_producer(
    codec, base_offset, epoch, bits, former, transactional
):
    """Whatever another producer or a broker has written into its header."""
    data = batch_of(b"a", b"b" * 100, b"", codec=codec)
    fields = list(HEADER.unpack_from(data))
    fields[0], fields[2] = base_offset, epoch
    attributes = 5  # after base offset, length, leader epoch, magic and checksum
    fields[attributes] |= sum(bits)
    data[:HEADER_BYTES] = HEADER.pack(*fields)
    data[43:57] = b"".join(
        number.to_bytes(size, "big", signed=True)
        for number, size in zip(former, (8, 2, 4), strict=True)
    )
    wanted = bytearray(data)
    stamp_batch(wanted, 70, 2, 0, transactional)

    made = pool(idempotent=True, transactional=transactional)
    made.set_producer(70, 2)
    id_of = {"transactional_id": "x"} if transactional else {}
    with ProduceLink(made, **id_of) as link:
        sent = made.append_batch("t", 0, data, 3, 10.0)
        link.turn()
        if transactional:
            made.added([("t", 0)], True)
            link.turn()
        (size,) = (int.from_bytes(link.theirs.recv(4), "big"),)
        frame = b""
        while len(frame) < size:
            frame += link.theirs.recv(size - len(frame))
    assert bytes(wanted) in frame
    assert not sent.ended


def test_a_batch_has_the_sequence_numbers_after_those_of_records():
    made = pool(idempotent=True)
    made.set_producer(70, 0)
    with ProduceLink(made, in_flight_max=5) as link:
        for count in (2, 3, 1):
            made.append_batch("t", 0, batch_of(*[b"v"] * count), count, 10.0)
        made.append("t", None, b"record", None, 0, 5)
        numbers = []
        for _ in range(4):
            link.turn()
            received = link.receive()
            numbers.append(RecordBatch(received.batches["t", 0]).header.base_sequence)
            link.respond(received)
            link.turn(0.02)
    assert numbers == [0, 2, 5, 6]
    assert made.unended == made.used_bytes == 0


def test_a_batch_tells_where_it_was_appended():
    made = pool()
    with ProduceLink(made) as link:
        sent = made.append_batch("t", 0, batch_of(b"v"), 1, 10.0)
        assert (sent.base_offset, sent.ended) == (-1, False)
        link.turn()
        link.respond(link.receive(), base_offset=41)
        link.turn(0.02)
    assert (sent.base_offset, sent.ended, sent.failed) == (41, True, False)


def test_a_batch_waits_for_a_topic_and_a_partition_that_nobody_knows_yet():
    made = pool(topic="other")
    with ProduceLink(made) as link:
        sent = made.append_batch("t", 3, batch_of(b"v"), 1, 10.0)
        assert link.turn() == [("leaders", ["t"])]
        assert link.loop.leaderless() == [("t", 3)]
        made.set_topic("t", [NODE] * 4, [0] * 4)
        link.turn()
        link.respond(link.receive())
        link.turn(0.02)
    assert sent.ended and not sent.failed


@pytest.mark.parametrize("data", [b"", b"x" * 70, bytes(batch_of(b"v")) + b"x"])
def test_bytes_that_are_not_exactly_one_batch_are_refused(data):
    made = pool()
    with pytest.raises(ValueError, match="not exactly one batch of format 2"):
        made.append_batch("t", 0, data, 1, 10.0)
    assert made.unended == made.used_bytes == 0


@pytest.mark.parametrize("partition", [-1, 1_000_000])
def test_a_partition_that_no_topic_has_is_refused(partition):
    with pytest.raises(ValueError, match="has no partition"):
        pool().append_batch("t", partition, batch_of(b"v"), 1, 10.0)


def test_the_loop_returns_when_little_enough_waits():
    """Whoever drives it waits for that, and not for an event."""
    made = pool(2)
    with ProduceLink(made) as link:
        for partition in (0, 1):
            made.append_batch("t", partition, batch_of(b"v"), 1, 10.0)
        link.turn()
        received = link.receive()
        threading.Timer(0.05, lambda: link.respond(received)).start()
        began = time.monotonic()
        assert link.loop.run(20.0, 0) == []
        assert made.used_bytes == 0
        assert time.monotonic() - began < 10


def test_the_loop_returns_for_a_signal():
    """Whose handler, such as that of Ctrl-C, runs only then."""
    made = pool()
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        with ProduceLink(made) as link:
            made.append_batch("t", 0, batch_of(b"v"), 1, 60.0)
            link.turn()
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            began = time.monotonic()
            link.loop.run(20.0, 0)
            assert time.monotonic() - began < 10
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_connection_without_a_request_is_its_owner_s_again():
    made = pool()
    with ProduceLink(made) as link:
        ours, theirs = socket.socketpair()
        link.loop.connect(9, ours, False, 9)
        assert link.loop.release(9)
        assert link.loop.in_flight(9) == -1
        ours.send(b"x")
        assert theirs.recv(1) == b"x"

        made.append_batch("t", 0, batch_of(b"v"), 1, 10.0)
        link.turn()
        assert not link.loop.release(NODE), "a response is to come"
        link.respond(link.receive())
        link.turn(0.02)
        assert link.loop.release(NODE)
