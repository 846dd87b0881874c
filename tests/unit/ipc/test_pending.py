"""Coroutines that are under way at the same time."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from kbroker.ipc.pending import Pending, in_window, run

pytestmark = pytest.mark.unit

COUNT, AT_ONCE = 7, 3


@pytest.fixture
def begun() -> list[Pending[int]]:
    return []


def work(begun: list[Pending[int]]) -> Coroutine[Any, None, int]:
    async def wait() -> int:
        begun.append(Pending())
        return await begun[-1]

    return wait()


def test_results_are_in_order_and_no_more_are_under_way_than_allowed(
    begun: list[Pending[int]],
) -> None:
    outcome = run(in_window((work(begun) for _ in range(COUNT)), AT_ONCE))
    assert len(begun) == AT_ONCE
    begun[1].resolve(1)
    assert len(begun) == AT_ONCE, "the first is awaited first"
    begun[0].resolve(0)
    assert len(begun) == AT_ONCE + 2
    for number in range(2, COUNT):
        begun[number].resolve(number)
    assert outcome.done and outcome.value == list(range(COUNT))


def test_failure_is_raised_when_all_that_have_begun_have_ended(begun: list[Pending[int]]) -> None:
    """Whoever handles it may count on nothing being written any more."""
    outcome = run(in_window((work(begun) for _ in range(COUNT)), AT_ONCE))
    begun[0].resolve(error=OSError("first"))
    begun[1].resolve(1)
    assert len(begun) == AT_ONCE, "no further one begins"
    assert not outcome.done
    begun[2].resolve(error=OSError("second"))
    assert str(outcome.error) == "first"


def test_nothing_to_do_ends_at_once() -> None:
    assert run(in_window([], AT_ONCE)).value == []
