"""The request arena is full: who waits, who gets freed memory, and who is closed."""

from __future__ import annotations

import time

import pytest
from support.network.net_loop_harness import Harness, answers, fetch, produce, received, result
from support.running.pace import hold

from kbroker._ext.shared.partition_table import LEADER, ONLINE
from kbroker.ipc.regions import arena_size, small_part_bytes

pytestmark = pytest.mark.unit

KIB = 1 << 10
FULL = "the request arena is full"
MISSING = 100  # bytes of a request that is not whole
PATIENT_S = 0.6  # longer than anyone waits before others are closed


def make(arena_kib=1024, frame_kib=256, small_kib=128) -> Harness:
    harness = Harness(arena_kib * KIB, frame_kib * KIB - 4, small_bytes=small_kib * KIB)
    harness.loop.set_timeouts(600_000, 600_000, 600_000, 600_000)
    harness.unsent = {}
    return harness


def frame(kib: int, number: int = 1) -> bytes:
    return produce(9, correlation_id=number, records={0: b"x" * (kib * KIB)})


def sent(harness: Harness, data: bytes):
    """A new connection that has sent so many bytes."""
    client = harness.connect()
    push(harness, client, data)
    return client


def push(harness: Harness, client, data: bytes) -> None:
    """Send what the loop accepts; the rest is sent first next time."""
    left = memoryview(harness.unsent.get(client, b"") + data)
    for _ in range(50):
        try:
            left = left[client.send(left) :]
        except BlockingIOError:
            pass
        harness.turn(1)
        if not left:
            break
    harness.unsent[client] = bytes(left)
    harness.turn()


def finish(harness: Harness, *clients) -> None:
    """Send the rest of each request, and complete those that are whole."""
    for client in clients:
        push(harness, client, frame(1)[-MISSING:])
        while answer_all(harness):
            pass


def relieve(harness: Harness, after_s: float = PATIENT_S) -> list[str | None]:
    """The connections closed after this time."""
    before = len(harness.closed)
    harness.loop.relieve(time.monotonic_ns() // 1_000_000 + int(after_s * 1000))
    harness.turn()
    return harness.closed[before:]


def fill_large_part(harness: Harness) -> list:
    """Four connections hold the whole large part with incomplete requests."""
    clients = [sent(harness, frame(200)[:-MISSING]) for _ in range(4)]
    assert harness.arena.allocated >= 1024 * KIB
    return clients


def answer_all(harness: Harness) -> int:
    taken = harness.descriptors()
    harness.answer(*[result(d) for d in taken])
    harness.turn()
    return len(taken)


def test_small_request_is_served_while_unfinished_ones_hold_the_large_part():
    harness = make()
    fill_large_part(harness)
    waiting = sent(harness, frame(200))
    assert harness.loop.starved_count == 1

    for number in range(20):
        client = sent(harness, produce(9, correlation_id=number))
        assert answer_all(harness) == 1
        assert [n for n, _ in answers(received(client), 9)] == [number]

    assert received(waiting) == b""
    assert harness.closed == []


def test_small_request_of_a_client_that_sent_large_ones_is_served_too():
    harness = make()
    client = sent(harness, frame(200))
    assert answer_all(harness) == 1
    received(client)
    fill_large_part(harness)

    push(harness, client, produce(9, correlation_id=2))
    assert answer_all(harness) == 1
    assert [n for n, _ in answers(received(client), 9)] == [2]


def test_small_requests_use_the_large_part_only_while_nobody_waits_for_it():
    harness = make(small_kib=64)
    small = [sent(harness, frame(3)[:-MISSING]) for _ in range(17)]
    assert harness.loop.starved_count == 0, "the small part is full, the large one serves"
    finish(harness, small.pop())
    large = [sent(harness, frame(200)[:-MISSING]) for _ in range(4)]
    assert harness.loop.starved_count == 1
    held = harness.arena.allocated

    late = sent(harness, frame(3)[:-MISSING])
    assert harness.loop.starved_count == 2
    assert harness.arena.allocated == held <= (1024 - 64) * KIB, "there are blocks for it"
    finish(harness, *small)
    assert harness.loop.starved_count == 1, "of the small part it gets some"
    finish(harness, *large, late)
    assert harness.loop.starved_count == 0
    assert harness.arena.allocated == 0
    assert harness.closed == []


def test_line_goes_by_the_age_of_the_request_and_nobody_overtakes():
    harness = make()
    holders = fill_large_part(harness)
    first, second, third = (sent(harness, frame(kib)) for kib in (230, 100, 100))
    assert harness.loop.starved_count == 3

    done = []
    for holder in holders:
        finish(harness, holder)
        done += [c for c in (first, second, third) if c not in done and received(c)]
    assert done == [first, second, third]
    assert harness.arena.allocated == 0


def test_silent_holders_are_closed_longest_first_and_only_as_many_as_needed():
    harness = make()
    holders = fill_large_part(harness)
    hold(0.005)  # the clock of the loop has milliseconds
    push(harness, holders[0], b"x")
    waiting = sent(harness, frame(200))

    assert relieve(harness, 0.4) == [], "not yet"
    [reason] = relieve(harness)

    assert FULL in reason
    with pytest.raises(OSError):
        holders[1].send(b"x")
    assert answer_all(harness) == 1
    assert received(waiting), "served"
    assert relieve(harness, 2) == [], "nobody waits any more"


def test_nobody_is_closed_while_nobody_waits():
    harness = make()
    fill_large_part(harness)
    assert relieve(harness, 60) == []


def test_relief_comes_though_others_are_busy_and_a_fetch_is_parked():
    """Requests in progress always have blocks; that is no reason to wait for them."""
    harness = make()
    harness.table.reset(0, state=ONLINE, role=LEADER, slot_incarnation=7)
    sent(harness, fetch(60_000))
    sent(harness, produce(9))
    assert harness.fetch.counts()["parked"] == 1
    fill_large_part(harness)
    sent(harness, frame(200))

    [reason] = relieve(harness)
    assert FULL in reason


def test_holders_that_wait_for_each_other_give_up_the_youngest():
    """Each has half of what it needs: without relief none would ever complete."""
    harness = make(arena_kib=512, frame_kib=512, small_kib=64)
    whole = frame(400)
    oldest = sent(harness, whole[: 100 * KIB])
    hold(0.005)
    youngest = sent(harness, whole[: 100 * KIB])
    left = whole[100 * KIB :]
    for client in (oldest, youngest):
        push(harness, client, left[: 160 * KIB])
    assert harness.loop.starved_count == 2, "each has 256 KiB and wants 512"

    [reason] = relieve(harness)
    assert FULL in reason
    with pytest.raises(OSError):
        youngest.send(b"x")
    push(harness, oldest, left[160 * KIB :])
    assert harness.loop.starved_count == 1


def test_closed_connection_leaves_the_line_to_the_next():
    harness = make()
    holders = fill_large_part(harness)
    first, second = sent(harness, frame(200)), sent(harness, frame(200))
    assert harness.loop.starved_count == 2
    harness.loop.set_timeouts(600_000, 600_000, 0, 600_000)
    finish(harness, *holders[:2])
    assert received(first) and received(second)


@pytest.mark.parametrize(("bound", "largest"), [(1, 100), (1 << 28, 104857604), (1 << 20, 1 << 20)])
def test_arena_holds_two_of_the_largest_and_a_ninth_is_for_small_ones(bound, largest):
    size = arena_size(bound, largest)
    small = small_part_bytes(size)
    assert small * 9 == size or size < 9
    assert size - small >= max(bound, 2 * largest)
