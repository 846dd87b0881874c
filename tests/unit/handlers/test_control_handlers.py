"""Control requests and requests to the controller, on their way to the controller process."""

from __future__ import annotations

from typing import Any

import pytest
from support.network.network_process import NetworkProcess
from support.security.authorizers import deny_all

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers import control
from kbroker.handlers.registry import announced
from kbroker.ipc.process_table import CONTROLLER
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey, request_class, response_class

pytestmark = pytest.mark.unit

# What Kafka 2.7 announces.
VERSIONS = {
    ApiKey.LEADER_AND_ISR: (0, 4),
    ApiKey.STOP_REPLICA: (0, 3),
    ApiKey.UPDATE_METADATA: (0, 6),
    ApiKey.CONTROLLED_SHUTDOWN: (0, 3),
    ApiKey.ALTER_PARTITION: (0, 0),
}
EVERY = [(api, n) for api, (first, last) in VERSIONS.items() for n in range(first, last + 1)]


def test_versions_of_kafka_2_7_are_announced() -> None:
    found = {key: (first, last) for key, first, last in announced() if key in VERSIONS}

    assert found == VERSIONS


@pytest.mark.parametrize(("api", "version"), EVERY)
def test_request_is_passed_on_as_it_came(api: ApiKey, version: int) -> None:
    process = NetworkProcess()
    response = response_class(api)(error_code=int(ErrorCode.STALE_BROKER_EPOCH))
    answer = codec.encode(response, version)
    process.set_response("control_request", lambda to, **args: {"body": answer.hex(), "reason": ""})
    cls: Any = request_class(api)
    is_asked = "broker_id" in cls.__slots__
    request = cls(broker_id=7) if is_asked else cls(controller_id=7, controller_epoch=9)

    assert process.ask(request, version) == response

    ((to, _, timeout_ms, asked),) = process.rpc.calls
    assert (to, timeout_ms) == (CONTROLLER, 20_000)
    body = codec.encode(request, version)
    assert asked == {"api_key": int(api), "version": version, "body": body.hex()}


def test_request_that_is_not_allowed_is_not_passed_on() -> None:
    process = NetworkProcess()
    process.follow(deny_all())

    response = process.ask(request_class(ApiKey.STOP_REPLICA)(), 3)

    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert process.rpc.calls == []


def test_malformed_request_closes_the_connection_as_the_controller_process_says() -> None:
    """The network process decodes nothing itself."""
    process = NetworkProcess()
    process.set_response("control_request", lambda to, **args: {"body": None, "reason": "why"})

    assert process.send(request_class(ApiKey.UPDATE_METADATA)(), 6).value is None
    assert process.connection.close_reason == "why"


@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT])
def test_request_that_nobody_serves_closes_the_connection(code: ErrorCode) -> None:
    """The controller would take any response as final, and never retry."""
    process = NetworkProcess()

    def is_restarting(to: Any, **args: Any) -> Any:
        raise WireError(code, "restarting")

    process.set_response("control_request", is_restarting)

    assert process.send(request_class(ApiKey.UPDATE_METADATA)(), 6).value is None
    assert process.connection.close_reason == "UPDATE_METADATA: restarting"


def test_request_that_the_controller_process_rejects_gets_a_response() -> None:
    process = NetworkProcess()

    def reject(to: Any, **args: Any) -> Any:
        raise WireError(ErrorCode.INVALID_REQUEST)

    process.set_response("control_request", reject)

    response = process.ask(request_class(ApiKey.UPDATE_METADATA)(), 6)

    assert response.error_code == ErrorCode.INVALID_REQUEST


def test_request_that_is_too_long_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "CONTROL_BYTES_MAX", 10)
    process = NetworkProcess()

    response = process.ask(request_class(ApiKey.LEADER_AND_ISR)(), 4)

    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert process.rpc.calls == []
