"""The controller's events run one after another, each to its end."""

from __future__ import annotations

import pytest

from kbroker.controller.election import events
from kbroker.controller.election.events import EventQueue
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.pending import Pending

pytestmark = pytest.mark.unit


def test_event_waits_until_the_one_before_is_done() -> None:
    """An event's decision before an await must still hold afterwards."""
    queue, order = EventQueue(), []
    gate: Pending[None] = Pending()

    async def first() -> str:
        order.append("first begins")
        await gate
        order.append("first ends")
        return "one"

    async def second() -> str:
        order.append("second")
        return "two"

    outcomes = queue.put(first), queue.put(second)
    assert order == ["first begins"]
    gate.resolve()
    assert order == ["first begins", "first ends", "second"]
    assert [outcome.value for outcome in outcomes] == ["one", "two"]


def test_event_that_fails_does_not_keep_the_next_from_running() -> None:
    queue = EventQueue()

    async def failing() -> None:
        raise ValueError("no")

    async def fine() -> int:
        return 1

    failed, done = queue.put(failing), queue.put(fine)
    assert isinstance(failed.error, ValueError)
    assert done.value == 1


def test_event_may_put_another() -> None:
    queue = EventQueue()

    async def inner() -> int:
        return 2

    async def outer() -> Pending[int]:
        return queue.put(inner)

    assert queue.put(outer).value.value == 2


def test_too_many_events_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "EVENTS_MAX", 2)
    queue, gate = EventQueue(), Pending[None]()

    async def waiting() -> None:
        await gate

    outcomes = [queue.put(waiting) for _ in range(4)]
    assert isinstance(outcomes[3].error, WireError)
    assert outcomes[3].error.code == ErrorCode.REQUEST_TIMED_OUT
    gate.resolve()
    assert [outcome.error for outcome in outcomes[:3]] == [None] * 3
    assert queue.put(waiting).done
