"""Batches that wait for followers: their network process is told that it may free the bytes."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.replication.leader_host import ME, LeaderHost

from kbroker._ext.shared.lane_layout import APPENDED
from kbroker.errors import ErrorCode
from kbroker.testing import wait_until

pytestmark = pytest.mark.unit

Make = Callable[[list[int]], LeaderHost]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Make]:
    made: list[LeaderHost] = []

    def make(replicas: list[int]) -> LeaderHost:
        made.append(LeaderHost(tmp_path, isr=replicas, replicas=replicas))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_batch_that_waits_is_told_once_and_its_result_follows(host: Make) -> None:
    leader = host([ME, 2])
    leader.produce(7)
    leader.loop.note_waits()
    assert leader.results() == []
    leader.produce(8)
    leader.loop.note_waits()
    assert leader.results() == [(7, APPENDED)]
    leader.loop.note_waits()
    assert leader.results() == [(8, APPENDED)]
    leader.loop.note_waits()
    assert leader.results() == []

    leader.fetch(2, 1)
    assert leader.results() == [(7, 0)]
    leader.produce(9)
    leader.fetch(2, 3)
    assert leader.results() == [(8, 0), (9, 0)]
    leader.loop.note_waits()
    leader.loop.note_waits()
    assert leader.results() == []


def test_waits_are_noted_for_all_however_the_queue_moves(host: Make) -> None:
    leader = host([ME, 2])
    told: list[int] = []
    for number in range(100):
        leader.produce(number)
        if number % 7 == 6:
            leader.fetch(2, number - 3)
        if number % 5 == 4:
            leader.loop.note_waits()
        told += [number for number, code in leader.results() if code == APPENDED]

    assert told == sorted(set(told))
    assert len(told) > 10


def test_batch_of_a_partition_without_followers_is_answered_at_once(host: Make) -> None:
    leader = host([ME])
    leader.produce(7)
    leader.loop.note_waits()
    leader.loop.note_waits()
    assert leader.results() == [(7, 0)]


def test_batch_that_cannot_be_committed_here_gets_its_error_after_that(host: Make) -> None:
    leader = host([ME, 2])
    leader.produce(7)
    leader.loop.note_waits()
    leader.loop.note_waits()
    leader.tell(leader=2, leader_epoch=2)
    assert leader.results() == [(7, APPENDED), (7, ErrorCode.NOT_LEADER_OR_FOLLOWER)]


def test_loop_notes_waits_by_itself(host: Make) -> None:
    leader = host([ME, 2])
    leader.produce(7)
    found: list[tuple[int, int]] = []

    with select.epoll() as epoll:

        def is_told() -> bool:
            leader.loop.turns(epoll.fileno(), 50)
            found.extend(leader.results())
            return bool(found)

        wait_until(is_told, 30, "the wait is noted")

    assert found == [(7, APPENDED)]
