"""How a broker serves ControlledShutdown and AlterIsr, as the controller or not."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.cluster.controller_requests import (
    AlterIsr,
    AlterIsrResponse,
    ControlledShutdown,
    ControllerRequest,
    ShutdownResponse,
)
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import ControlMessage, IsrResult, IsrState, WantedIsr
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.metastore.settled import Fenced
from kbroker.metastore.store import StoreFailed
from kbroker.peers.controller_codec import API_OF, request_to_wire, response_from_wire
from kbroker.protocol import codec
from kbroker.protocol.api import response_class
from kbroker.workers.controller.controller_server import ControllerServer

pytestmark = pytest.mark.unit

NETWORK = Address(ProcessKind.NETWORK, 0)
SHUTDOWN = ControlledShutdown(2, 77)
ALTER = AlterIsr(2, 77, [WantedIsr("t", 1, 3, [2], 5), WantedIsr("t", 0, 3, [2], 5)])


class Background:
    """The background of a controller that fails with ``error``, or succeeds."""

    def __init__(self, error: Exception | None = None) -> None:
        self.shutdowns = self.in_sync = self
        self.error = error
        self.asked: list[Any] = []

    def _answer(self, asked: Any, value: Any) -> Pending[Any]:
        self.asked.append(asked)
        done: Pending[Any] = Pending()
        done.resolve(value, self.error)
        return done

    def shut_down(self, *asked: Any) -> Pending[Any]:
        return self._answer(asked, [("t", 4)])

    def alter(self, *asked: Any) -> Pending[Any]:
        state = IsrState(2, 3, [2], 6)
        return self._answer(
            asked, [IsrResult(ErrorCode.NONE, state), IsrResult(ErrorCode.FENCED_LEADER_EPOCH)]
        )


def served(background: Any, request: ControllerRequest, version: int) -> Any:
    """The response, over the wire."""
    server = ControllerServer(lambda: background, lambda delay_ms: Pending(), is_shared=True)
    body = codec.encode(request_to_wire(request), version)
    outcome = run(server.serve(NETWORK, ControlMessage(API_OF[type(request)], version, body)))
    assert outcome.error is None and outcome.value.body is not None
    message = codec.decode_exact(response_class(API_OF[type(request)]), version, outcome.value.body)
    return response_from_wire(message, request)


@pytest.mark.parametrize(("version", "epoch"), [(0, -1), (1, -1), (2, 77), (3, 77)])
def test_controller_says_what_remains_of_a_broker_that_shuts_down(version: int, epoch: int) -> None:
    background = Background()

    assert served(background, SHUTDOWN, version) == ShutdownResponse(remaining=(("t", 4),))
    assert background.asked == [(2, epoch)]


def test_each_partition_is_in_the_response() -> None:
    response = served(Background(), ALTER, 0)

    assert response.partitions == {
        ("t", 1): IsrResult(ErrorCode.NONE, IsrState(2, 3, [2], 6)),
        ("t", 0): IsrResult(ErrorCode.FENCED_LEADER_EPOCH),
    }


@pytest.mark.parametrize(
    ("background", "code"),
    [
        (None, ErrorCode.NOT_CONTROLLER),
        (Background(Fenced()), ErrorCode.NOT_CONTROLLER),
        (Background(WireError(ErrorCode.STALE_BROKER_EPOCH)), ErrorCode.STALE_BROKER_EPOCH),
        (Background(StoreFailed("full")), ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_request_that_fails_as_a_whole_says_why(background: Any, code: ErrorCode) -> None:
    # COMPAT: as in Kafka, this is how a broker that shuts down learns of another controller.
    moved = {ErrorCode.NOT_CONTROLLER: ErrorCode.STALE_CONTROLLER_EPOCH}

    assert served(background, ALTER, 0) == AlterIsrResponse(code)
    assert served(background, SHUTDOWN, 3) == ShutdownResponse(moved.get(code, code))


def test_every_truncation_is_malformed_and_nothing_is_done() -> None:
    background: Any = Background()
    server = ControllerServer(lambda: background, lambda delay_ms: Pending(), is_shared=True)
    for request, version in ((SHUTDOWN, 3), (ALTER, 0)):
        body = codec.encode(request_to_wire(request), version)
        for length in range(len(body)):
            asked = ControlMessage(API_OF[type(request)], version, body[:length])
            assert run(server.serve(NETWORK, asked)).value.body is None
    assert background.asked == []
