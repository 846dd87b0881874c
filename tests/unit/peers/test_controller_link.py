"""The link to a controller that is local, remote, missing, or has been replaced."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker
from support.network.peer_loop import PeerLoop

from kbroker.cluster.control_requests import LiveBroker
from kbroker.cluster.controller_requests import (
    AlterIsr,
    AlterIsrResponse,
    ControlledShutdown,
    ControllerRequest,
    ControllerResponse,
    ShutdownResponse,
)
from kbroker.config.loader import BrokerConfig
from kbroker.errors import ErrorCode
from kbroker.ipc.calls import IsrResult, WantedIsr
from kbroker.ipc.pending import Pending, run
from kbroker.peers.controller_codec import response_to_wire
from kbroker.peers.controller_link import ControllerLink
from kbroker.peers.endpoints import listener_for_control
from kbroker.peers.link import LinkFailed
from kbroker.peers.links import Links
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.alter_partition import AlterPartitionResponse
from kbroker.types import BrokerId

pytestmark = pytest.mark.unit

ME = 1
SHUTDOWN = ControlledShutdown(ME, 77)
WANTED = AlterIsr(ME, 77, [WantedIsr("t", 0, 3, [1], 5)])
FENCED = AlterIsrResponse(partitions={("t", 0): IsrResult(ErrorCode.FENCED_LEADER_EPOCH)})


class Asking:
    """A broker that sends a request. ``controller``: according to the store."""

    def __init__(self, **settings: str) -> None:
        self.loop = PeerLoop()
        self.controller: tuple[int, int] | None = None  # broker, port
        self.own: list[ControllerRequest] = []
        self.lookups = 0
        self.told = -1
        config = BrokerConfig({key.replace("_", "."): text for key, text in settings.items()})
        nobody: Any = None
        self.links = Links(BrokerId(ME), nobody, self.loop, config, self.loop.now_ms)
        self.link = ControllerLink(
            ME,
            self._own,
            self._find,
            self.links.link(),
            listener_for_control(config),
            config.protocol_version,
        )
        self.loop.ticks.append(lambda now: self.link.tick(now, self.told))

    async def _own(self, request: ControllerRequest) -> ControllerResponse:
        self.own.append(request)
        return ShutdownResponse()

    async def _find(self) -> tuple[int, LiveBroker] | None:
        self.lookups += 1
        if self.controller is None:
            return None
        number, port = self.controller
        return number, LiveBroker([["PLAINTEXT", "127.0.0.1", port, "PLAINTEXT"]], None)

    def ask(self, request: ControllerRequest) -> Pending[ControllerResponse]:
        return run(self.link.ask(request))

    def answer(self, request: ControllerRequest) -> ControllerResponse:
        outcome = self.ask(request)
        self.loop.run_until(lambda: outcome.done)
        if outcome.error is not None:
            raise outcome.error
        answer: ControllerResponse = outcome.value
        return answer


@pytest.fixture
def asking() -> Iterator[Asking]:
    made = Asking()
    yield made
    made.link.close()
    made.links.close()
    made.loop.close()


class Answers(FakeBroker):
    """Returns these responses, one after the other."""

    def __init__(self, *answers: Any) -> None:
        self.left = list(answers)
        super().__init__(
            {ApiKey.CONTROLLED_SHUTDOWN: self._next, ApiKey.ALTER_PARTITION: self._next}
        )

    def _next(self, request: Any, state: dict[str, Any]) -> Any:
        answer = self.left.pop(0)
        if callable(answer):
            return answer()
        is_value = isinstance(answer, (ShutdownResponse, AlterIsrResponse))
        return response_to_wire(answer) if is_value else answer


def test_broker_that_is_the_controller_asks_itself(asking: Asking) -> None:
    asking.controller = ME, 1

    assert asking.answer(SHUTDOWN) == ShutdownResponse()
    assert asking.own == [SHUTDOWN]


def test_controller_elsewhere_is_looked_up_once(asking: Asking) -> None:
    remaining = ShutdownResponse(remaining=(("t", 4),))
    with Answers(remaining, FENCED) as other:
        asking.controller = 2, other.port

        assert asking.answer(SHUTDOWN) == remaining
        assert asking.answer(WANTED) == FENCED
    assert asking.lookups == 1
    assert [other.requests[0].broker_epoch, other.requests[1].broker_id] == [77, ME]


def test_without_a_controller_the_request_fails(asking: Asking) -> None:
    with pytest.raises(LinkFailed, match="no broker is the controller"):
        asking.answer(SHUTDOWN)


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (WANTED, AlterIsrResponse(ErrorCode.NOT_CONTROLLER)),
        (SHUTDOWN, ShutdownResponse(ErrorCode.STALE_CONTROLLER_EPOCH)),
    ],
)
def test_broker_that_is_not_the_controller_any_more_is_not_asked_again(
    asking: Asking, request_: ControllerRequest, answer: ControllerResponse
) -> None:
    with Answers(answer) as old, Answers(ShutdownResponse()) as new:
        asking.controller = 2, old.port
        assert asking.answer(request_) == answer
        asking.controller = 3, new.port

        assert asking.answer(SHUTDOWN) == ShutdownResponse()


def test_lost_connection_has_the_controller_looked_up_again(asking: Asking) -> None:
    with Answers(None) as old, Answers(ShutdownResponse()) as new:
        asking.controller = 2, old.port
        with pytest.raises(LinkFailed, match="closed the connection"):
            asking.answer(SHUTDOWN)
        asking.controller = 2, new.port  # it was restarted, on another port

        assert asking.answer(SHUTDOWN) == ShutdownResponse()


def test_response_that_lacks_partitions_is_none(asking: Asking) -> None:
    with Answers(AlterPartitionResponse(), FENCED) as other:
        asking.controller = 2, other.port
        with pytest.raises(
            LinkFailed, match="malformed: the AlterIsr response has no result for t-0"
        ):
            asking.answer(WANTED)

        assert asking.answer(WANTED) == FENCED


def test_request_to_a_controller_that_was_replaced_is_given_up(asking: Asking) -> None:
    """Its machine may be gone without notice."""
    release = threading.Event()
    with Answers(lambda: release.wait(30) and None) as silent:
        asking.controller, asking.told = (2, silent.port), 2
        outcome = asking.ask(WANTED)
        asking.loop.run_until(lambda: silent.requests)
        assert not outcome.done

        asking.told = 3

        asking.loop.run_until(lambda: outcome.done)
        assert isinstance(outcome.error, LinkFailed)
        release.set()


def test_second_request_ends_the_first(asking: Asking) -> None:
    """A caller that asks again does not wait for the first request any more."""
    release = threading.Event()
    with Answers(lambda: release.wait(30) and None, ShutdownResponse()) as other:
        asking.controller = 2, other.port
        first = asking.ask(SHUTDOWN)
        asking.loop.run_until(lambda: other.requests)

        assert asking.answer(SHUTDOWN) == ShutdownResponse()

        assert isinstance(first.error, LinkFailed)
        release.set()


def test_protocol_version_decides_the_version_of_the_request() -> None:
    asking = Asking(inter_broker_protocol_version="2.0")
    with Answers(ShutdownResponse()) as other:
        asking.controller = 2, other.port
        assert asking.answer(SHUTDOWN) == ShutdownResponse()
    assert other.requests[0].broker_epoch == -1  # version 1 has none
    asking.link.close()
    asking.links.close()
    asking.loop.close()
