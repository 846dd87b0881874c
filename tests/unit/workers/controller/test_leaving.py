"""A controlled shutdown with a scripted controller and a clock of its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from kbroker.cluster.controller_requests import (
    ControlledShutdown,
    ControllerRequest,
    ShutdownResponse,
)
from kbroker.config.loader import BrokerConfig
from kbroker.errors import ErrorCode
from kbroker.ipc.pending import Pending, run
from kbroker.peers.link import LinkFailed
from kbroker.workers.controller.leaving import Leaving, patience_s

pytestmark = pytest.mark.unit

REMAINS = ShutdownResponse(remaining=(("t", 3), ("t", 4)))
SILENCE = "silence"


class Stop:
    """One controlled shutdown. answers: of the controller, in order. stuck: partitions that nobody
    else will lead, from the time on that is given with each.
    """

    def __init__(
        self, *answers: Any, stuck: Mapping[tuple[str, int], int] = {}, **settings: str
    ) -> None:
        self.now = 0
        self.asked: list[ControllerRequest] = []
        self._answers = list(answers)
        self._sleepers: list[tuple[int, Pending[None]]] = []
        names = {key.replace("_", "."): text for key, text in settings.items()}
        leaving = Leaving(
            7,
            self._ask,
            lambda key: self.now < stuck.get(key, self.now + 1),
            BrokerConfig(names),
            self._sleep,
            lambda: self.now,
        )
        outcome = run(leaving.hand_over(lambda: 100 + len(self.asked)))
        while not outcome.done:
            self._sleepers.sort(key=lambda row: row[0])
            self.now, pending = self._sleepers.pop(0)
            pending.resolve()
        assert outcome.error is None
        self.succeeded = outcome.value

    async def _ask(self, request: ControllerRequest) -> ShutdownResponse:
        self.asked.append(request)
        response = self._answers.pop(0)
        if response is SILENCE:
            await Pending[None]()
        if isinstance(response, Exception):
            raise response
        assert isinstance(response, ShutdownResponse)
        return response

    def _sleep(self, delay_ms: int) -> Pending[None]:
        pending: Pending[None] = Pending()
        self._sleepers.append((self.now + delay_ms, pending))
        return pending


def test_broker_stops_at_once_when_nothing_remains() -> None:
    stop = Stop(ShutdownResponse())

    assert stop.succeeded
    assert (stop.asked, stop.now) == ([ControlledShutdown(7, 100)], 0)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (REMAINS, "no other broker can lead 2 partitions, t-3 among them"),
        (LinkFailed("no broker is the controller"), "no broker is the controller"),
        (ShutdownResponse(ErrorCode.STALE_CONTROLLER_EPOCH), "returned STALE_CONTROLLER_EPOCH"),
    ],
)
def test_controller_is_asked_again_after_a_while(
    response: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        stop = Stop(response, ShutdownResponse())

    assert stop.succeeded and stop.now == 5000
    # The broker may have registered again by then.
    assert stop.asked == [ControlledShutdown(7, 100), ControlledShutdown(7, 101)]
    assert "attempt 1 of 3" in caplog.text and reason in caplog.text
    assert "controlled shutdown succeeded after 5000 ms" in caplog.text


def test_broker_stops_all_the_same_after_some_attempts(caplog: pytest.LogCaptureFixture) -> None:
    stop = Stop(REMAINS, REMAINS, controlled_shutdown_max_retries="2")

    assert not stop.succeeded and stop.now == 5000
    assert "attempt 2 of 2" in caplog.text and "stopping all the same" in caplog.text


def test_broker_whose_replicas_are_all_there_is_does_not_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A cluster that was stopped as a whole took ten seconds to do so."""
    stop = Stop(REMAINS, stuck={("t", 3): 0, ("t", 4): 300})

    assert not stop.succeeded and stop.now == 300
    assert len(stop.asked) == 1
    assert "no other replica of 2 partitions is there" in caplog.text


def test_broker_waits_for_those_that_somebody_may_lead() -> None:
    stop = Stop(REMAINS, ShutdownResponse(), stuck={("t", 3): 0})

    assert stop.succeeded and stop.now == 5000


def test_controller_that_is_silent_is_asked_again_after_the_timeout() -> None:
    stop = Stop(SILENCE, ShutdownResponse(), controller_socket_timeout_ms="1000")

    assert stop.succeeded and stop.now == 6000


def test_time_for_a_controlled_shutdown_is_that_of_all_attempts() -> None:
    cluster = {"zookeeper.connect": "host:2181"}

    assert patience_s(BrokerConfig(cluster)) == 3 * 35
    assert patience_s(BrokerConfig({**cluster, "controlled.shutdown.enable": "false"})) == 0
    assert patience_s(BrokerConfig()) == 0, "a single broker has nobody to hand over to"
