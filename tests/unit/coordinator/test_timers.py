"""Timers of a shard: by name, run by the owner of the clock."""

from __future__ import annotations

import pytest

from kbroker.coordinator.timers import Timers

pytestmark = pytest.mark.unit


def run(timers: Timers, now_ms: int) -> None:
    for _, function, args in timers.due(now_ms):
        function(*args)


def test_timers_run_in_order_of_their_deadlines() -> None:
    timers, found = Timers(), list[str]()
    timers.set("b", 20, found.append, "b")
    timers.set("a", 10, found.append, "a")
    timers.set("c", 21, found.append, "c")

    run(timers, 20)

    assert found == ["a", "b"] and "c" in timers and timers.next_deadline_ms() == 21


@pytest.mark.parametrize("later", [15, 5])
def test_timer_that_is_set_again_runs_once_at_its_new_time(later: int) -> None:
    timers, found = Timers(), list[int]()
    timers.set("a", 10, found.append, 1)
    timers.set("a", later, found.append, 2)

    run(timers, later - 1)
    assert not found
    run(timers, 100)

    assert found == [2] and not len(timers)


def test_timer_that_an_earlier_one_puts_off_does_not_run() -> None:
    """Both are due at once: after a pause of the process, all sessions are."""
    timers, found = Timers(), list[str]()
    timers.set("first", 10, timers.set, "second", 50, found.append, "second")
    timers.set("second", 11, found.append, "second")
    timers.set("third", 12, timers.cancel, "fourth")
    timers.set("fourth", 13, found.append, "fourth")

    run(timers, 20)
    assert found == []
    run(timers, 50)

    assert found == ["second"]


def test_timer_that_is_set_to_now_waits_for_the_next_time() -> None:
    timers, found = Timers(), list[int]()

    def again() -> None:
        found.append(1)
        timers.set("a", 10, again)

    timers.set("a", 10, again)

    run(timers, 10)
    assert found == [1]
    run(timers, 10)

    assert found == [1, 1]
