"""Produce requests without a result from the io worker: they time out, and late results do no
harm.
"""

from __future__ import annotations

import time

import pytest
from support.network.net_loop_harness import (
    Harness,
    answers,
    partitions_of,
    produce,
    received,
    result,
)

pytestmark = pytest.mark.unit

REQUEST_TIMED_OUT = 7
SECOND = 1_000_000_000


@pytest.fixture
def harness():
    return Harness()


def errors(client, version=9):
    """(correlation id, error codes) of each response that has arrived."""
    return [
        (number, [p.error_code for p in partitions_of(response)])
        for number, response in answers(received(client), version)
    ]


def expire(harness, after_s, since=None):
    began = time.monotonic_ns() if since is None else since
    harness.loop.expire_at(began + int(after_s * SECOND))
    harness.turn()


@pytest.mark.parametrize(
    ("timeout_ms", "patience_s"), [(5000, 5), (1, 1), (-1, 1), (2**31 - 1, 60)]
)
def test_produce_without_a_result_completes_at_its_own_timeout(harness, timeout_ms, patience_s):
    """Within a second and a minute."""
    client = harness.connect()
    before = time.monotonic_ns()
    client.send(produce(9, timeout_ms=timeout_ms))
    harness.turn()

    expire(harness, patience_s - 0.5, since=before)
    assert received(client) == b""
    expire(harness, patience_s + 0.5)

    assert errors(client) == [(1, [REQUEST_TIMED_OUT])]


def test_partition_with_a_result_keeps_it_when_another_times_out(harness):
    client = harness.connect()
    client.send(produce(9, records={0: b"a" * 70, 1: b"b" * 70}))
    harness.turn()
    first, _ = harness.descriptors()
    harness.answer(result(first, base_offset=42))
    harness.turn()

    expire(harness, 2)

    [(_, response)] = answers(received(client), 9)
    zero, one = partitions_of(response)
    assert (zero.error_code, zero.base_offset) == (0, 42)
    assert one.error_code == REQUEST_TIMED_OUT


def test_result_after_the_timeout_frees_the_bytes_and_completes_nothing(harness):
    client = harness.connect()
    client.send(produce(9))
    harness.turn()
    [descriptor] = harness.descriptors()
    expire(harness, 2)
    assert errors(client) == [(1, [REQUEST_TIMED_OUT])]
    assert harness.arena.allocated > 0, "the io worker may still read there"

    harness.answer(result(descriptor))
    harness.turn()

    assert received(client) == b""
    assert (harness.arena.allocated, harness.loop.requests_in_flight) == (0, 0)


def test_result_that_comes_twice_does_not_touch_the_next_request_in_its_place(harness):
    """The entry of a finished request is reused; its token is not."""
    client = harness.connect()
    client.send(produce(9, correlation_id=1))
    harness.turn()
    [late] = harness.descriptors()
    expire(harness, 2)
    harness.answer(result(late))
    harness.turn()
    assert errors(client) == [(1, [REQUEST_TIMED_OUT])]

    client.send(produce(9, correlation_id=2))
    harness.turn()
    [descriptor] = harness.descriptors()
    assert descriptor[0] & 0xFFFFFFFF == late[0] & 0xFFFFFFFF, "the same entry"
    harness.answer(result(late, error=2))
    harness.turn()
    assert received(client) == b""

    harness.answer(result(descriptor))
    harness.turn()
    assert errors(client) == [(2, [0])]
    assert harness.arena.allocated == 0


def test_connection_continues_after_a_timeout_while_its_worker_stands_still(harness):
    client = harness.connect()
    client.send(produce(9, correlation_id=1))
    harness.turn()
    [stuck] = harness.descriptors()
    expire(harness, 2)
    client.send(produce(9, correlation_id=2))
    harness.turn()
    [descriptor] = harness.descriptors()

    harness.answer(result(descriptor))
    harness.turn()
    assert errors(client) == [(1, [REQUEST_TIMED_OUT]), (2, [0])]
    harness.answer(result(stuck))
    harness.turn()

    assert received(client) == b""
    assert (harness.arena.allocated, harness.loop.requests_in_flight) == (0, 0)


def test_restart_of_the_worker_after_a_timeout_frees_the_bytes(harness):
    client = harness.connect()
    client.send(produce(9))
    harness.turn()
    harness.descriptors()
    expire(harness, 2)
    harness.cells[0] += 1
    harness.turn()

    assert errors(client) == [(1, [REQUEST_TIMED_OUT])]
    assert (harness.arena.allocated, harness.loop.requests_in_flight) == (0, 0)
