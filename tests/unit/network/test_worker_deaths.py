"""An io worker dies: its next incarnation gets the requests without a result, in order."""

from __future__ import annotations

import socket
import time

import pytest
from support.network.net_loop_harness import (
    METADATA,
    NOT_LEADER,
    Harness,
    answers,
    partitions_of,
    produce,
    received,
    result,
)
from support.storage.log_store import batch

pytestmark = pytest.mark.unit

TIMED_OUT = 7


def numbered(sequence: int) -> bytes:
    """A batch of an idempotent producer."""
    return batch(producer_id=9, producer_epoch=0, base_sequence=sequence)


def send(client: socket.socket, number: int, records: bytes | None = None) -> None:
    """A produce to partition 0; without records, one without a sequence number."""
    client.send(produce(9, correlation_id=number, records={0: records} if records else None))


def codes(data: bytes) -> list[tuple[int, int]]:
    """(correlation id, error) of each produce response for one partition."""
    return [(number, partitions_of(r)[0].error_code) for number, r in answers(data, 9)]


def die(harness: Harness) -> None:
    """Restart the io worker; the network process notices at the end of its turn."""
    harness.cells[0] += 1


def is_over(client: socket.socket) -> bool:
    """Whether the client gets no more bytes."""
    try:
        return client.recv(1000) == b""
    except BlockingIOError:
        return False


def test_next_worker_is_asked_first_what_the_last_one_did_not_complete():
    harness = Harness()
    client = harness.connect()
    for number in range(3):
        send(client, number, numbered(number))
    harness.turn()
    told = harness.descriptors()

    die(harness)
    send(client, 3, numbered(3))
    harness.turn()
    again = harness.descriptors()

    assert [d[:7] for d in again[:3]] == [d[:7] for d in told], "same tokens, same bytes"
    assert [harness.batch_of(d) for d in again] == [numbered(n) for n in range(4)]
    harness.answer(*(result(told[n], base_offset=9) for n in range(3)), sender=5)
    harness.turn()
    assert received(client) == b"", "of one that is gone"
    harness.answer(*(result(d, base_offset=n) for n, d in enumerate(again)), sender=6)
    harness.turn()
    assert codes(received(client)) == [(n, 0) for n in range(4)]
    assert (harness.arena.allocated, harness.loop.requests_in_flight) == (0, 0)


def test_first_message_of_the_next_worker_asks_it_too():
    harness = Harness()
    client = harness.connect()
    send(client, 1, numbered(0))
    harness.turn()
    [told] = harness.descriptors()

    die(harness)
    harness.answer(result(told, error=5), sender=6)
    harness.turn()

    assert received(client) != b"", "the token is the same, so its word counts"
    assert harness.descriptors() == [told]


def test_worker_that_dies_while_others_wait_is_no_end():
    harness = Harness()
    client = harness.connect()
    send(client, 1, numbered(0))
    harness.turn()
    for _ in range(4):
        [told] = harness.descriptors()
        die(harness)
        harness.turn()

    [told] = harness.descriptors()
    harness.answer(result(told, base_offset=7), sender=9)
    harness.turn()
    assert codes(received(client)) == [(1, 0)]


def test_each_connection_keeps_its_order():
    harness = Harness()
    clients = [harness.connect() for _ in range(3)]
    for number in range(4):
        for index, client in enumerate(clients):
            send(client, number, numbered(10 * index + number))
        harness.turn()
    harness.descriptors()

    die(harness)
    harness.turn()

    found = [harness.batch_of(d) for d in harness.descriptors()]
    for index in range(3):
        wanted = [numbered(10 * index + number) for number in range(4)]
        assert [data for data in found if data in wanted] == wanted
    assert len(found) == 12


def test_batch_without_a_number_is_rejected_and_nothing_behind_it_starts():
    """It may be in the log or not; later batches could be appended before it."""
    harness = Harness()
    client = harness.connect()
    send(client, 1)
    send(client, 2)
    harness.turn()
    harness.descriptors()

    die(harness)
    harness.turn(1)
    send(client, 3)
    harness.turn()

    assert harness.descriptors() == []
    assert codes(received(client)) == [(1, NOT_LEADER), (2, NOT_LEADER)]
    assert is_over(client)
    assert harness.loop.connection_count == 1, "until the client has read it all"
    client.close()
    harness.turn()
    assert harness.loop.connection_count == 0
    assert (harness.arena.allocated, harness.loop.requests_in_flight) == (0, 0)


def test_connection_that_ends_completes_what_it_has_started():
    harness = Harness()
    client = harness.connect()
    send(client, 1)
    send(client, 2, numbered(0))
    harness.turn()
    harness.descriptors()

    die(harness)
    harness.turn()
    assert codes(received(client)) == [(1, NOT_LEADER)]
    assert not is_over(client)
    [again] = harness.descriptors()
    client.send(METADATA)
    harness.turn()
    harness.answer(result(again), sender=6)
    harness.turn()

    assert codes(received(client)) == [(2, 0)]
    assert is_over(client)
    assert harness.dispatched == []


def test_connection_that_ends_is_closed_if_its_peer_does_not(monkeypatch):
    harness = Harness()
    harness.loop.set_timeouts(600_000, 600_000, 600_000, 600_000)
    client = harness.connect()
    send(client, 1)
    harness.turn()
    die(harness)
    harness.turn()
    assert harness.loop.connection_count == 1

    began = time.monotonic()
    while harness.loop.connection_count and time.monotonic() < began + 30:
        harness.loop.sweep()
        harness.loop.turn(100)
    assert 4 < time.monotonic() - began < 30


def test_other_connections_continue():
    harness = Harness()
    ending, other = harness.connect(), harness.connect()
    send(ending, 1)
    send(other, 1, numbered(0))
    harness.turn()
    harness.descriptors()
    die(harness)
    harness.turn()
    [again] = harness.descriptors()
    harness.answer(result(again), sender=6)
    send(other, 2)
    harness.turn()

    [new] = harness.descriptors()
    harness.answer(result(new), sender=6)
    harness.turn()
    assert codes(received(other)) == [(1, 0), (2, 0)]


def test_request_of_both_kinds_is_served_for_each():
    harness = Harness()
    client = harness.connect()
    client.send(produce(9, correlation_id=1, records={0: numbered(0), 1: b"x" * 61}))
    harness.turn()
    harness.descriptors()

    die(harness)
    harness.turn()
    [again] = harness.descriptors()
    assert (again[1], again[2]) == (0, 0)
    harness.answer(result(again, base_offset=4), sender=6)
    harness.turn()

    [(_, response)] = answers(received(client), 9)
    assert [(p.error_code, p.base_offset) for p in partitions_of(response)] == [
        (0, 4),
        (NOT_LEADER, -1),
    ]
    assert is_over(client)


def test_what_a_closed_connection_has_asked_is_not_asked_again():
    """Its client sends it again on another connection."""
    harness = Harness()
    client = harness.connect()
    send(client, 1, numbered(0))
    harness.turn()
    harness.descriptors()
    client.close()
    harness.turn()
    assert harness.arena.allocated > 0

    die(harness)
    harness.turn()

    assert harness.descriptors() == []
    assert (harness.arena.allocated, harness.loop.requests_in_flight) == (0, 0)


def test_what_was_given_up_at_its_timeout_is_not_asked_again():
    harness = Harness()
    client = harness.connect()
    send(client, 1, numbered(0))
    harness.turn()
    harness.descriptors()
    harness.loop.expire_at(time.monotonic_ns() + 2_000_000_000)
    harness.turn()
    assert codes(received(client)) == [(1, TIMED_OUT)]

    die(harness)
    harness.turn()

    assert harness.descriptors() == []
    assert (harness.arena.allocated, harness.loop.requests_in_flight) == (0, 0)


def test_time_continues_while_there_is_no_worker():
    harness = Harness()
    client = harness.connect()
    send(client, 1, numbered(0))
    harness.turn()
    die(harness)
    harness.turn()
    harness.loop.expire_at(time.monotonic_ns() + 2_000_000_000)
    harness.turn()
    assert codes(received(client)) == [(1, TIMED_OUT)]
