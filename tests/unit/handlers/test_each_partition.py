"""A request about many partitions: all are begun, then owners are asked, then results are taken."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from kbroker.handlers.support.owner_calls import each_partition
from kbroker.ipc.pending import Pending, run

pytestmark = pytest.mark.unit

TOPICS = [("a", [0, 1]), ("empty", []), ("b", [7]), ("a", [0])]


class Context:
    async def each(self, items: Iterable[Any]) -> AsyncIterator[Any]:
        for item in items:
            yield item


class Request:
    """Its owners respond when told to."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.asked: list[Pending[int]] = []

    def start(self, topic: str, number: int) -> Pending[int]:
        self.calls.append((topic, number))
        self.asked.append(Pending())
        return self.asked[-1]

    def send(self) -> None:
        self.calls.append("send")

    async def result(self, number: int, asked: Pending[int]) -> tuple[int, int]:
        return number, await asked

    async def all(self) -> list[Any]:
        context: Any = Context()
        found = each_partition(context, TOPICS, self.start, self.send, self.result)
        return [one async for one in found]


def test_owners_are_asked_once_all_partitions_have_begun() -> None:
    request = Request()
    outcome = run(request.all())

    assert request.calls == [("a", 0), ("a", 1), ("b", 7), ("a", 0), "send"]
    assert not outcome.done


def test_results_are_in_the_order_of_the_request_whoever_responds_first() -> None:
    request = Request()
    outcome = run(request.all())
    for value, pending in reversed(list(enumerate(request.asked))):
        assert not outcome.done
        pending.resolve(value)

    assert outcome.value == [
        ("a", [(0, 0), (1, 1)]),
        ("empty", []),
        ("b", [(7, 2)]),
        ("a", [(0, 3)]),
    ]


def test_error_of_one_result_is_that_of_the_request() -> None:
    request = Request()
    outcome = run(request.all())
    request.asked[0].resolve(error=KeyError("a bug"))

    assert isinstance(outcome.error, KeyError)
