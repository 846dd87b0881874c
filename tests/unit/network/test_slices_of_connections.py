"""How much of a turn a connection gets, and when a heavy request may start."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from support.network.net_loop_harness import Harness, framed, produce, received, serving

from kbroker.protocol import codec, header
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.delete_groups import DeleteGroupsRequest

pytestmark = pytest.mark.unit

KIB = 1 << 10
HEAVY_BYTES = 3 << 20  # two of them exceed the number served at a time


def test_connection_with_much_to_do_is_behind_the_others_after_its_slice() -> None:
    """Thousands of its small requests were all started before any other connection was read."""
    harness = Harness()
    harness.loop.slice_ns_max = 0  # a slice ends with the first request
    greedy = [harness.connect() for _ in range(2)]
    for client, version in zip(greedy, (8, 9), strict=True):
        client.send(b"".join(produce(version, correlation_id=number) for number in range(50)))

    started = []
    for _ in range(20):
        harness.turn(1)
        started.append(len(harness.descriptors()))

    assert max(started) <= 4, "a request or two for each"
    assert sum(started) >= 36, "nobody waits for an event"


def heavy_frame(size: int) -> bytes:
    """A request that Python decodes."""
    request = DeleteGroupsRequest(groups_names=["g" * (32 * KIB - 1)] * (size // (32 * KIB)))
    head = header.encode_request_header(ApiKey.DELETE_GROUPS, 0, 1, "me")
    return framed(head + codec.encode(request, 0))


class HeavyClients:
    """Clients that each send one heavy request, and the dispatched ones."""

    def __init__(self, count: int) -> None:
        self.harness = Harness(arena_bytes=1 << 25, frame_max=(1 << 23) - 4)
        self.harness.loop.set_timeouts(600_000, 600_000, 600_000, 600_000)
        self.frame = heavy_frame(HEAVY_BYTES)
        self.send_from(count)

    def send_from(self, count: int) -> None:
        """Let this many clients send all of it."""
        self.clients = [self.harness.connect() for _ in range(count)]
        left = dict.fromkeys(self.clients, memoryview(self.frame))
        while any(left.values()):
            for client, data in left.items():
                with suppress(BlockingIOError):
                    left[client] = data[client.send(data[: 1 << 18]) :]
            self.harness.turn(1)
        self.harness.turn()

    def tokens(self) -> list[int]:
        return [token for token, _ in self.harness.dispatched]

    def answer(self, token: int) -> None:
        self.harness.loop.respond(token, b"\0\0\0\1")
        self.harness.turn()


def test_heavy_requests_begin_one_after_the_other() -> None:
    """Decoded, each is many times as large: together they exhausted the process's memory."""
    heavy = HeavyClients(3)
    assert len(heavy.tokens()) == 1

    for done in (1, 2):
        heavy.answer(heavy.tokens()[-1])

        assert len(heavy.tokens()) == done + 1
    heavy.answer(heavy.tokens()[-1])

    assert [len(received(client)) for client in heavy.clients] == [8, 8, 8]
    assert heavy.harness.loop.heavy_bytes == 0


def test_heavy_request_that_was_given_away_lets_the_next_one_begin() -> None:
    """Members of a group wait for each other: held requests would be waited for."""
    begun = []
    heavy = HeavyClients(0)
    harness = heavy.harness
    harness.on_dispatch = lambda connection, token, frame: begun.append(connection)
    heavy.send_from(2)
    assert len(begun) == 1

    harness.loop.lighten(begun[0])
    harness.turn()

    assert len(begun) == 2


def test_connection_that_is_closed_makes_room_for_heavy_requests_of_others() -> None:
    begun = []
    heavy = HeavyClients(0)
    heavy.harness.on_dispatch = lambda connection, token, frame: begun.append(connection)
    heavy.send_from(3)

    for done in (1, 2, 3):
        assert len(begun) == done
        heavy.harness.loop.close(begun[-1], "for a test")
        heavy.harness.turn()

    assert heavy.harness.loop.heavy_bytes == 0


def test_small_requests_pass_heavy_ones_that_wait() -> None:
    heavy = HeavyClients(2)
    harness = heavy.harness
    serving(harness)
    small = harness.connect()
    small.send(framed(header.encode_request_header(ApiKey.API_VERSIONS, 0, 1, "me")))
    harness.turn()

    assert struct.unpack(">ii", received(small)) == (4, 2)


def test_heavy_request_that_waits_is_not_taken_for_one_that_is_not_whole() -> None:
    heavy = HeavyClients(2)
    heavy.harness.loop.set_timeouts(600_000, 600_000, 0, 600_000)

    heavy.harness.loop.sweep()

    assert heavy.harness.closed == []
