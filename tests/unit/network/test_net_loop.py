"""The loop of a network process: framing, request order, responses, and rejections."""

from __future__ import annotations

import os
import random
import socket
import struct

import pytest
from support.network.net_loop_harness import (
    NOT_LEADER,
    SMALLEST_BATCH,
    Harness,
    answers,
    framed,
    partitions_of,
    produce,
    received,
    result,
)

from kbroker._ext.network.connection import SERVING
from kbroker.protocol import header
from kbroker.protocol.api import ApiKey
from kbroker.security.principal import ANONYMOUS
from kbroker.testing import wait_until

pytestmark = pytest.mark.unit

PRODUCE_VERSIONS = range(14)
UNKNOWN_TOPIC = 3
UNKNOWN_TOPIC_ID = 100
INVALID_REQUIRED_ACKS = 21
CORRUPT_MESSAGE = 2
ZERO, ONE = b"zero".ljust(61), b"one".ljust(70)


@pytest.fixture
def harness():
    return Harness()


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_every_version_reaches_the_owner_and_gets_a_response(harness, version):
    client = harness.connect()

    client.send(produce(version, correlation_id=77, records={0: ZERO, 1: ONE}))
    harness.turn()
    first, second = harness.descriptors()
    assert [harness.batch_of(first), harness.batch_of(second)] == [ZERO, ONE]
    assert (first[2], first[3], second[2], second[3]) == (0, 7, 1, 8), "slot and its incarnation"
    harness.answer(result(first, base_offset=10), result(second, base_offset=20))
    harness.turn()

    [(correlation_id, response)] = answers(received(client), version)
    assert correlation_id == 77
    assert [p.base_offset for p in partitions_of(response)] == [10, 20]
    assert [p.error_code for p in partitions_of(response)] == [0, 0]
    assert harness.arena.allocated == 0, "the request's bytes are let go"


@pytest.mark.parametrize("version", [8, 9, 13])
@pytest.mark.parametrize("more", [[], [4, 700, 70000]])
def test_produce_rejected_records_are_named_in_the_response(harness, version, more):
    client = harness.connect()

    client.send(produce(version))
    harness.turn()
    [descriptor] = harness.descriptors()
    text = b"no key in a compacted topic"
    behind = text + struct.pack(f"={len(more)}i", *more)
    rejected = result(descriptor, 87, -1, text, bad_record=3, more=len(more))
    harness.answer(rejected, texts=behind)
    harness.turn()

    [(_, response)] = answers(received(client), version)
    [part] = partitions_of(response)
    assert part.error_code == 87
    assert part.error_message == text.decode()
    assert [e.batch_index for e in part.record_errors] == [3, *more]
    assert {e.batch_index_error_message for e in part.record_errors} == {text.decode()}


def test_produce_pipelined_gets_responses_in_order_though_results_come_in_reverse(harness):
    client = harness.connect()

    client.send(b"".join(produce(9, correlation_id=i) for i in range(4)))
    harness.turn()
    found = harness.descriptors()
    assert len(found) == 4
    for descriptor in reversed(found[1:]):
        harness.answer(result(descriptor))
    harness.turn()
    assert received(client) == b"", "the first is still missing"
    harness.answer(result(found[0]))
    harness.turn()

    assert [number for number, _ in answers(received(client), 9)] == [0, 1, 2, 3]


def test_other_request_waits_for_produces_before_it_and_holds_those_behind(harness):
    client = harness.connect()
    metadata = framed(header.encode_request_header(ApiKey.METADATA, 1, 2, "me") + b"\0\0\0\0")

    client.send(produce(9, correlation_id=1) + metadata + produce(9, correlation_id=3))
    harness.turn()
    [descriptor] = harness.descriptors()
    assert harness.dispatched == []
    harness.answer(result(descriptor))
    harness.turn()
    [(token, frame)] = harness.dispatched
    assert framed(frame) == metadata
    assert harness.descriptors() == [], "nothing behind it is started"
    harness.loop.respond(token, b"\0\0\0\2")
    harness.turn()

    assert len(harness.descriptors()) == 1


def test_produce_without_acks_has_no_response(harness):
    client = harness.connect()

    client.send(produce(9, acks=0))
    harness.turn()
    [descriptor] = harness.descriptors()
    harness.answer(result(descriptor))
    harness.turn()

    assert received(client) == b""
    assert harness.closed == []
    assert harness.loop.requests_in_flight == 0


def test_produce_without_acks_that_fails_closes_the_connection(harness):
    client = harness.connect()

    client.send(produce(9, acks=0))
    harness.turn()
    [descriptor] = harness.descriptors()
    harness.answer(result(descriptor, error=10))
    harness.turn()

    assert len(harness.closed) == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": "unknown"}, UNKNOWN_TOPIC),
        ({"records": {2: b"x"}}, UNKNOWN_TOPIC),
        ({"records": {-1: b"x"}}, UNKNOWN_TOPIC),
        ({"acks": 2}, INVALID_REQUIRED_ACKS),
        ({"records": {0: SMALLEST_BATCH[:-1]}}, CORRUPT_MESSAGE),
    ],
)
def test_produce_that_cannot_be_placed_completes_at_once(harness, arguments, error):
    client = harness.connect()

    client.send(produce(9, **arguments))
    harness.turn()

    [(_, response)] = answers(received(client), 9)
    assert [p.error_code for p in partitions_of(response)] == [error]
    assert harness.descriptors() == []


def test_produce_unknown_topic_id_completes_at_once(harness):
    client = harness.connect()

    client.send(produce(13, topic_id=b"\xff" * 16))
    harness.turn()

    [(_, response)] = answers(received(client), 13)
    assert [p.error_code for p in partitions_of(response)] == [UNKNOWN_TOPIC_ID]


def test_restarted_worker_fails_what_it_had_not_completed(harness):
    client = harness.connect()

    client.send(produce(9))
    harness.turn()
    [descriptor] = harness.descriptors()
    harness.cells[0] = 6
    harness.turn()
    harness.answer(result(descriptor), sender=5)
    harness.turn()

    [(_, response)] = answers(received(client), 9)
    assert [p.error_code for p in partitions_of(response)] == [NOT_LEADER]
    assert harness.loop.requests_in_flight == 0


def test_result_for_another_incarnation_is_dropped(harness):
    client = harness.connect()

    client.send(produce(9))
    harness.turn()
    [descriptor] = harness.descriptors()
    harness.answer(result(descriptor), target=2)
    harness.answer(result(descriptor), sender=4)
    harness.turn()

    assert received(client) == b""
    assert harness.loop.lane_drops == 2


def test_closed_client_keeps_its_bytes_until_the_worker_is_done(harness):
    client = harness.connect()

    client.send(produce(9))
    harness.turn()
    [descriptor] = harness.descriptors()
    client.close()
    harness.turn()
    assert harness.arena.allocated > 0, "the io worker still reads there"
    harness.answer(result(descriptor))
    harness.turn()

    assert harness.arena.allocated == 0
    assert harness.loop.requests_in_flight == 0


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
        (b"\x7f\xff\xff\xff", "socket.request.max.bytes"),
        (b"\xff\xff\xff\xff", "negative"),
        (b"\x00\x00\x00\x07", "shorter than any header"),
    ],
)
def test_wrong_protocol_is_closed_with_its_name(harness, start, reason):
    client = harness.connect()

    client.send(start)
    harness.turn()

    [told] = harness.closed
    assert reason in told
    assert harness.arena.allocated == 0


def test_announced_length_is_not_allocated():
    harness = Harness(arena_bytes=1 << 24, frame_max=(1 << 23) - 4)
    clients = [harness.connect() for _ in range(50)]

    for client in clients:
        client.send(struct.pack(">i", 8_000_000) + b"\0\0\0\x09")
    harness.turn()

    assert harness.arena.allocated <= 50 * 65536


@pytest.mark.parametrize("version", [0, 3, 8, 9, 13])
def test_produce_cut_anywhere_closes_only_that_connection(harness, version):
    whole = produce(version)[4:]

    for size in range(8, len(whole)):
        client = harness.connect()
        client.send(framed(whole[:size]))
        harness.turn()
        assert harness.descriptors() == [], size
        assert harness.closed and "malformed" in harness.closed.pop(), size
        client.close()

    assert harness.arena.allocated == 0
    assert harness.loop.requests_in_flight == 0


def test_large_request_in_small_pieces_arrives_whole(harness):
    client = harness.connect()
    payload = bytes(range(256)) * 2000
    frame = produce(9, records={0: payload})

    for start in range(0, len(frame), 10_000):
        client.send(frame[start : start + 10_000])
        harness.turn()
    [descriptor] = harness.descriptors()

    assert harness.batch_of(descriptor) == payload


def test_one_event_is_asked_for_a_long_rest_of_a_request(harness):
    """And one for whatever comes if the rest is short, the client slow, or nothing is missing."""
    client = harness.connect()
    frame = produce(9, records={0: b"a" * 200_000})
    asked, rests = [], []
    with socket.socket(fileno=os.dup(harness.connection.fd)) as ours:
        for size in (3, 100, 20_000, 20_000, 4_000, 100_000, 50_000, len(frame)):
            client.send(frame[:size])
            frame = frame[size:]
            harness.turn()
            rests.append(len(frame))
            asked.append(ours.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT))

    assert len(harness.descriptors()) == 1
    assert asked == [1, 1, 65_536, 65_536, 1, rests[5], 1, 1]
    assert 10_000 < rests[5] < 65_536


@pytest.mark.parametrize("seed", range(5))
def test_requests_over_tcp_are_served_when_their_last_byte_is_here(seed):
    """Here an event does wait for as many bytes as were asked for."""
    chance = random.Random(seed)
    harness = Harness(arena_bytes=1 << 22)
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    ours.setblocking(False)
    access = harness.accesses.of(ANONYMOUS, "test")
    harness.loop.add_connection(ours.detach(), 0, "test", 1, access, SERVING)

    for number in range(20):
        payload = bytes([number]) * chance.choice([100, 70_000, 200_000, 600_000])
        frame = produce(9, records={0: payload})
        while frame:
            size = chance.choice([1000, 20_000, 70_000, 100_000])
            client.sendall(frame[:size])
            frame = frame[size:]
            harness.turn(1)
        [descriptor] = wait_until(harness.descriptors_in_a_turn)
        assert harness.batch_of(descriptor) == payload
        harness.answer(result(descriptor))
        harness.turn()
    client.close()


def test_requests_that_come_at_once_are_received_whole_into_one_block(harness):
    """A block for each would cost a receive and a copy of the next one's first part."""
    client = harness.connect()
    records = [bytes([number]) * 10_000 for number in range(6)]

    for _ in range(2):  # the size of a burst is known from the first time
        client.send(b"".join(produce(9, records={0: data}) for data in records))
        harness.turn()
        sent = harness.descriptors()
        assert [harness.batch_of(one) for one in sent] == records
        held = harness.arena.allocated
        harness.answer(*map(result, sent))
        harness.turn()
        assert len(answers(received(client), 9)) == 6

    assert held == 65536
    assert harness.arena.allocated == 0


@pytest.mark.parametrize("sizes", [[5_000, 20_000], [70_000, 100, 40_000], [9_000] * 20])
def test_requests_of_any_sizes_arrive_whole_however_they_are_cut(harness, sizes):
    client = harness.connect()
    records = [bytes([number]) * max(size, 61) for number, size in enumerate(sizes * 5)]
    stream = b"".join(produce(9, records={0: data}) for data in records)
    found = []

    for at in range(0, len(stream), 33_333):
        client.send(stream[at : at + 33_333])
        harness.turn(10)
        sent = harness.descriptors()
        found += [harness.batch_of(one) for one in sent]
        harness.answer(*map(result, sent))
        harness.turn()
        received(client)

    assert found == records
    assert harness.arena.allocated == 0


def test_full_arena_stops_reading_and_continues_when_bytes_are_freed():
    harness = Harness(arena_bytes=1 << 17, frame_max=(1 << 16) - 4)
    clients = [harness.connect() for _ in range(4)]
    frame = produce(9, records={0: b"x" * 50_000})
    taken = []

    for client in clients:
        assert client.send(frame) == len(frame)
    for _ in range(20):
        harness.turn(1)
        taken += harness.descriptors()
    assert 1 <= len(taken) < 4, "the arena holds fewer than all"
    answered = 0
    while answered < len(taken):
        harness.answer(result(taken[answered]))
        answered += 1
        harness.turn()
        taken += harness.descriptors()

    assert answered == 4


@pytest.mark.parametrize(
    ("client_id", "code"),
    [("me", 17), ("__admin_client", 0), ("__admin_clienT", 17), ("", 17), (None, 17)],
)
def test_produce_to_a_topic_of_the_coordinators_is_for_the_admin_client(harness, client_id, code):
    harness.fetch.put_topic("__t", bytes(16), [0], [7], internal=True)
    client = harness.connect()
    client.send(produce(9, topic="__t", client_id=client_id))
    harness.turn()
    descriptors = harness.descriptors()
    assert len(descriptors) == (1 if code == 0 else 0)
    if code:
        ((_, answer),) = answers(client.recv(10_000), 9)
        assert answer.responses[0].partition_responses[0].error_code == code
