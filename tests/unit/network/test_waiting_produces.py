"""Produces that wait for followers: their bytes are freed, and their responses stay right."""

from __future__ import annotations

import time

import pytest
from support.network.net_loop_harness import (
    NOT_LEADER,
    TOPIC_ID,
    Harness,
    answers,
    partitions_of,
    produce,
    received,
    result,
)
from support.storage.log_store import batch

from kbroker._ext.shared import lane_layout

pytestmark = pytest.mark.unit

APPENDED = lane_layout.APPENDED
TIMED_OUT = 7
BOTH = {0: batch(), 1: batch()}


def numbered(sequence: int) -> bytes:
    """A batch of an idempotent producer."""
    return batch(producer_id=9, producer_epoch=0, base_sequence=sequence)


def errors(client, version=9):
    """(correlation id, error codes) of each response that has arrived."""
    return [
        (number, [p.error_code for p in partitions_of(response)])
        for number, response in answers(received(client), version)
    ]


def assert_nothing_is_left(harness: Harness) -> None:
    assert (harness.arena.allocated, harness.loop.requests_in_flight) == (0, 0)
    assert harness.loop.produces_in_flight() == 0


@pytest.mark.parametrize("version", [3, 9, 12, 13])
def test_bytes_are_freed_and_the_response_names_its_topic(version):
    harness = Harness()
    client = harness.connect()
    client.send(produce(version, acks=-1, records=BOTH))
    harness.turn()
    told = harness.descriptors()

    harness.answer(result(told[0], APPENDED))
    harness.turn()
    assert harness.arena.allocated > 0, "the other one may not be appended yet"
    harness.answer(result(told[1], APPENDED))
    harness.turn()
    assert harness.arena.allocated == 0
    harness.region[:] = b"\xff" * len(harness.region)  # others use it
    harness.answer(result(told[1], base_offset=8), result(told[0], base_offset=4))
    harness.turn()

    [(_, response)] = answers(received(client), version)
    [topic] = response.responses
    assert (topic.name if version < 13 else bytes(topic.topic_id)) == (
        "t" if version < 13 else TOPIC_ID
    )
    assert [p.base_offset for p in topic.partition_responses] == [4, 8]
    assert_nothing_is_left(harness)


def test_bytes_are_freed_when_the_rest_of_the_request_has_results():
    harness = Harness()
    client = harness.connect()
    client.send(produce(9, acks=-1, records=BOTH))
    harness.turn()
    told = harness.descriptors()

    harness.answer(result(told[0], APPENDED), result(told[1], error=5))
    harness.turn()
    assert harness.arena.allocated == 0
    harness.answer(result(told[0]))
    harness.turn()

    assert errors(client) == [(1, [0, 5])]
    assert_nothing_is_left(harness)


def test_slow_follower_does_not_take_the_memory_of_others():
    """More waits for it than the arena holds, and other partitions take produces."""
    harness = Harness(arena_bytes=1 << 17, frame_max=(1 << 16) - 4)
    waiting = [harness.connect() for _ in range(6)]
    told = []
    for client in waiting:
        client.send(produce(9, acks=-1, records={0: b"x" * 50_000}))
        harness.turn()
        told += [d for d in harness.descriptors() if d not in told]
        harness.answer(*(result(d, APPENDED) for d in told))
        harness.turn()
    assert len(told) == len(waiting)
    other = harness.connect()
    other.send(produce(9, acks=1, correlation_id=7, records={1: b"y" * 50_000}))
    harness.turn()
    [its] = harness.descriptors()
    harness.answer(result(its))
    harness.turn()

    assert errors(other) == [(7, [0])]
    harness.answer(*(result(d) for d in told))
    harness.turn()
    assert [errors(client) for client in waiting] == [[(1, [0])]] * len(waiting)
    assert_nothing_is_left(harness)


def test_produce_times_out_and_its_result_finds_nothing():
    harness = Harness()
    client = harness.connect()
    client.send(produce(9, acks=-1))
    harness.turn()
    [told] = harness.descriptors()
    harness.answer(result(told, APPENDED))
    harness.turn()

    harness.loop.expire_at(time.monotonic_ns() + 2_000_000_000)
    harness.turn()
    assert errors(client) == [(1, [TIMED_OUT])]
    assert_nothing_is_left(harness)
    harness.answer(result(told))
    client.send(produce(9, acks=-1, correlation_id=2))
    harness.turn()

    assert errors(client) == []
    [told] = harness.descriptors()
    harness.answer(result(told))
    harness.turn()
    assert errors(client) == [(2, [0])]


@pytest.mark.parametrize("closes_first", [True, False])
def test_bytes_of_a_client_that_is_gone_are_freed(closes_first):
    harness = Harness()
    client = harness.connect()
    client.send(produce(9, acks=-1))
    harness.turn()
    [told] = harness.descriptors()
    if closes_first:
        client.close()
        harness.turn()
        assert harness.arena.allocated > 0
    harness.answer(result(told, APPENDED))
    harness.turn()
    if not closes_first:
        client.close()
        harness.turn()

    assert_nothing_is_left(harness)
    harness.answer(result(told))
    harness.turn()
    assert_nothing_is_left(harness)


def test_client_repeats_what_waited_when_the_io_worker_died():
    """The bytes are gone; the log knows the batch by its number, so the connection can go on."""
    harness = Harness()
    client = harness.connect()
    client.send(produce(9, acks=-1, records={0: numbered(0)}))
    client.send(produce(9, acks=-1, correlation_id=2, records={0: numbered(1)}))
    harness.turn()
    first, second = harness.descriptors()
    harness.answer(result(first, APPENDED))
    harness.turn()

    harness.cells[0] += 1
    harness.turn()

    [again] = harness.descriptors()
    assert (again[0], harness.batch_of(again)) == (second[0], numbered(1))
    harness.answer(result(again, APPENDED), sender=6)
    harness.turn()
    harness.answer(result(again), sender=6)
    harness.turn()
    assert errors(client) == [(1, [NOT_LEADER]), (2, [0])]
    assert harness.closed == []
    assert_nothing_is_left(harness)


def test_connection_ends_if_what_waited_has_no_number():
    """A later batch must not be appended before the client repeats it."""
    harness = Harness()
    client = harness.connect()
    client.send(produce(9, acks=-1, records={0: batch()}))
    harness.turn()
    [told] = harness.descriptors()
    harness.answer(result(told, APPENDED))
    harness.turn()

    harness.cells[0] += 1
    client.send(produce(9, acks=-1, correlation_id=2, records={0: batch()}))
    harness.turn()

    assert errors(client) == [(1, [NOT_LEADER]), (2, [NOT_LEADER])]
    assert harness.descriptors() == []
    assert client.recv(1) == b""


def test_bytes_that_the_next_io_worker_reads_are_kept_until_it_has_appended_them():
    harness = Harness()
    client = harness.connect()
    client.send(produce(9, acks=-1, records={0: numbered(0), 1: numbered(0)}))
    harness.turn()
    told = harness.descriptors()
    harness.answer(result(told[0], APPENDED))
    harness.turn()

    harness.cells[0] += 1
    harness.turn()
    again = harness.descriptors()
    assert [d[:7] for d in again] == [d[:7] for d in told]
    harness.answer(result(again[1], APPENDED), sender=6)
    harness.turn()
    assert harness.arena.allocated > 0, "the first one is read again, too"
    harness.answer(result(again[0], APPENDED), sender=6)
    harness.turn()
    assert harness.arena.allocated == 0
    harness.answer(*(result(d) for d in again), sender=6)
    harness.turn()

    assert errors(client) == [(1, [0, 0])]
    assert_nothing_is_left(harness)
