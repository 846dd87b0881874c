"""A muted connection: later requests wait, earlier ones get a response with the throttle time."""

from __future__ import annotations

import struct
import time
from typing import Any

import pytest
from support.network.net_loop_harness import (
    METADATA,
    Harness,
    answers,
    fetch,
    framed,
    produce,
    received,
    result,
    serving,
)

from kbroker._ext.shared.partition_table import LEADER, ONLINE
from kbroker.protocol import codec, header
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.testing import wait_until

pytestmark = pytest.mark.unit

LONG_MS = 60_000
SHORT_MS = 30


@pytest.fixture
def harness() -> Harness:
    harness = Harness()
    serving(harness)
    harness.table.reset(0, state=ONLINE, role=LEADER, slot_incarnation=7)
    return harness


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def mute(harness: Harness, for_ms: int) -> int:
    """When it ends."""
    until_ms = monotonic_ms() + for_ms
    harness.loop.mute(harness.connection, until_ms)
    return until_ms


def waits_about(throttle_ms: int, for_ms: int) -> bool:
    """Asserts that the remaining throttle time in a response is about this."""
    return for_ms - 10_000 < throttle_ms <= for_ms


def test_muted_connection_is_not_received_from(harness: Harness) -> None:
    client = harness.connect()
    mute(harness, LONG_MS)

    client.send(METADATA * 3)
    harness.turn()

    assert harness.dispatched == []
    assert harness.loop.bytes_received == 0, "the kernel keeps it, and stops the client at last"


def test_muted_connection_continues_by_itself_when_its_time_is_over(harness: Harness) -> None:
    """There is no socket event then; the loop wakes up for it."""
    client = harness.connect()
    harness.turn()
    until_ms = mute(harness, SHORT_MS)
    client.send(METADATA)
    harness.turn()
    assert harness.dispatched == []

    harness.loop.turn(LONG_MS)
    harness.turn()

    assert len(harness.dispatched) == 1
    assert monotonic_ms() >= until_ms
    assert harness.connection.muted_until_ms == 0


def test_muted_connections_end_in_the_order_of_their_times(harness: Harness) -> None:
    order: list[Any] = []
    harness.on_dispatch = lambda connection, token, frame: order.append(connection)
    clients = [harness.connect() for _ in range(3)]
    first = harness.connection
    clients[2].send(METADATA)
    mute(harness, 2 * SHORT_MS)
    clients.append(harness.connect())
    clients[3].send(METADATA)
    mute(harness, SHORT_MS)

    def both() -> bool:
        harness.turn()
        return len(order) == 2

    wait_until(both, 10)
    assert order == [harness.connection, first]


def test_muted_connections_go_on_when_quotas_change(harness: Harness) -> None:
    """One that was told to wait for an hour need not, if its quota is raised."""
    clients = []
    for _ in range(3):
        clients.append(harness.connect())
        mute(harness, LONG_MS)
        clients[-1].send(METADATA)
    harness.turn()
    assert harness.dispatched == []

    harness.loop.forget_quotas(False)
    harness.turn()

    assert len(harness.dispatched) == 3
    assert harness.connection.muted_until_ms == 0
    mute(harness, LONG_MS)
    clients[-1].send(METADATA)
    harness.turn()
    assert len(harness.dispatched) == 3


def test_mute_lasts_until_the_later_of_two_ends(harness: Harness) -> None:
    client = harness.connect()
    later = mute(harness, LONG_MS)
    mute(harness, SHORT_MS)
    assert harness.connection.muted_until_ms == later

    harness.connect().send(METADATA)
    first_end = mute(harness, SHORT_MS)
    second_end = mute(harness, 4 * SHORT_MS)
    assert second_end > first_end
    client.send(METADATA)

    def served() -> bool:
        harness.turn()
        return bool(harness.dispatched)

    wait_until(served, 10)
    assert monotonic_ms() >= second_end
    assert len(harness.dispatched) == 1, "the other one is muted still"


def test_muted_in_the_middle_of_what_it_pipelined_it_stops_there(harness: Harness) -> None:
    client = harness.connect()
    muted = harness.connection

    def dispatch(connection: Any, token: int, frame: bytes) -> None:
        harness.dispatched.append((token, frame))
        harness.loop.mute(muted, monotonic_ms() + LONG_MS)
        harness.loop.respond(token, b"\0\0\0\2")

    harness.on_dispatch = dispatch
    client.send(METADATA * 2)
    harness.turn()

    assert len(harness.dispatched) == 1
    assert received(client) == framed(b"\0\0\0\2"), "its answer is sent at once (KIP-219)"


@pytest.mark.parametrize("version", range(14))
def test_produce_response_says_how_long_to_wait(harness: Harness, version: int) -> None:
    client = harness.connect()
    client.send(produce(version))
    harness.turn()
    [descriptor] = harness.descriptors()
    mute(harness, LONG_MS)
    harness.answer(result(descriptor, base_offset=3))
    harness.turn()

    [(_, response)] = answers(received(client), version)
    if version:
        assert waits_about(response.throttle_time_ms, LONG_MS)
    assert response.responses[0].partition_responses[0].base_offset == 3


@pytest.mark.parametrize("version", range(19))
def test_fetch_response_says_how_long_to_wait(harness: Harness, version: int) -> None:
    """For a parked fetch: the throttle time is known only when it completes."""
    client = harness.connect()
    partition = FetchRequest.FetchPartition(partition=0, partition_max_bytes=1000)
    named = {"topic_id": bytes(range(16))} if version >= 13 else {"topic": "t"}
    topic = FetchRequest.FetchTopic(**named, partitions=[partition])
    request = FetchRequest(max_wait_ms=LONG_MS, min_bytes=1, max_bytes=1000, topics=[topic])
    if version < 15:
        request.replica_id = -1
    head = header.encode_request_header(ApiKey.FETCH, version, 1, "me")
    client.send(framed(head + codec.encode(request, version)))
    harness.turn()
    mute(harness, LONG_MS)
    harness.fetch.remove_topic("t")
    harness.turn()

    data = received(client)
    (size,) = struct.unpack_from(">i", data)
    frame = data[4:]
    _, at = header.decode_response_header(frame, ApiKey.FETCH, version)
    response = codec.decode_exact(FetchResponse, version, frame[at:])
    assert len(frame) == size
    if version:
        assert waits_about(response.throttle_time_ms, LONG_MS)


def test_responses_without_a_throttle_say_zero(harness: Harness) -> None:
    client = harness.connect()
    client.send(produce(9))
    harness.turn()
    [descriptor] = harness.descriptors()
    harness.answer(result(descriptor))
    harness.turn()

    [(_, response)] = answers(received(client), 9)
    assert response.throttle_time_ms == 0


def test_muted_connection_is_neither_idle_nor_late(harness: Harness) -> None:
    """It has begun a request that it is not allowed to finish."""
    client = harness.connect()
    client.send(METADATA + METADATA[:7])
    harness.turn()
    muted = harness.connection
    harness.connect()
    harness.loop.set_timeouts(1, 1, 1, 1)
    harness.loop.mute(muted, monotonic_ms() + LONG_MS)

    def swept() -> bool:
        harness.loop.sweep()
        return bool(harness.closed)

    wait_until(swept, 10)
    assert harness.closed == ["no request within 1 ms"], "the other one"
    assert harness.loop.connection_count == 1


def test_muted_connection_that_is_closed_leaves_nothing_behind(harness: Harness) -> None:
    harness.connect()
    mute(harness, SHORT_MS)
    harness.loop.close(harness.connection, "gone")
    other = harness.connect()

    harness.loop.turn(LONG_MS)
    other.send(METADATA)
    harness.turn()

    assert harness.closed == ["gone"]
    assert len(harness.dispatched) == 1


def test_fetch_that_waits_completes_though_its_connection_is_muted(harness: Harness) -> None:
    client = harness.connect()
    client.send(fetch(SHORT_MS))
    harness.turn()
    mute(harness, LONG_MS)
    found: list[bytes] = []

    def answered() -> bool:
        harness.turn()
        found.append(received(client))
        return bool(found[-1])

    wait_until(answered, 10)
