"""In-sync replicas over the way to the controller: answers in order, and what is repeated."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.cluster.controller_requests import AlterIsr, AlterIsrResponse
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import IsrResult, IsrState, WantedIsr
from kbroker.peers.link import LinkFailed
from kbroker.workers.controller.active_controllers import ActiveControllers

pytestmark = pytest.mark.unit

ME = 1
WANTED = [WantedIsr("t", 1, 3, [1], 5), WantedIsr("t", 0, 3, [1], 5)]
DONE = IsrResult(ErrorCode.NONE, IsrState(ME, 3, [1], 6))
FENCED = IsrResult(ErrorCode.FENCED_LEADER_EPOCH)


class Link:
    """Whoever is the controller answers this."""

    def __init__(self, answer: AlterIsrResponse | Exception) -> None:
        self.answer = answer
        self.asked = 2
        self.requests: list[Any] = []

    async def ask(self, request: Any) -> AlterIsrResponse:
        self.requests.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Registered:
    broker_epoch = 77


def controllers(link: Link) -> ActiveControllers:
    one_of_these: list[Any] = [link, Registered(), None]
    link_, hosting, store = one_of_these
    return ActiveControllers(link_, hosting, ME, store)


def test_answers_are_in_the_order_of_what_was_wanted() -> None:
    link = Link(AlterIsrResponse(partitions={("t", 0): FENCED, ("t", 1): DONE}))

    assert controllers(link).alter_isr(WANTED).value == [DONE, FENCED]
    assert link.requests == [AlterIsr(ME, 77, WANTED)]


@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        (LinkFailed("no broker is the controller"), ErrorCode.NETWORK_EXCEPTION, "no broker is"),
        (
            AlterIsrResponse(ErrorCode.NOT_CONTROLLER),
            ErrorCode.NOT_CONTROLLER,
            "broker 2 returned NOT_CONTROLLER",
        ),
        (
            AlterIsrResponse(ErrorCode.STALE_BROKER_EPOCH),
            ErrorCode.STALE_BROKER_EPOCH,
            "broker 2 returned STALE_BROKER_EPOCH",
        ),
    ],
)
def test_request_that_nobody_served_fails_as_a_whole(
    answer: AlterIsrResponse | Exception, code: ErrorCode, text: str
) -> None:
    """It is repeated then: whether anything has changed is not known."""
    outcome = controllers(Link(answer)).alter_isr(WANTED)

    assert isinstance(outcome.error, WireError)
    assert outcome.error.code is code and text in outcome.error.message
