"""InitProducerId and allocated blocks of ids."""

from __future__ import annotations

from typing import Any

import pytest
from support.network.network_process import NetworkProcess, decode

from kbroker.errors import ErrorCode, WireError
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.init_producer_id import InitProducerIdRequest

pytestmark = pytest.mark.unit


@pytest.fixture
def process() -> NetworkProcess:
    process = NetworkProcess()
    blocks = iter(range(1000, 9000, 3))
    process.set_response("allocate_producer_ids", lambda to: {"first": next(blocks), "count": 3})
    return process


def init(process: NetworkProcess, version: int = 4, **values: Any) -> Any:
    request = InitProducerIdRequest(**{"transactional_id": None, **values})
    return process.ask(request, version)


@pytest.mark.parametrize("version", range(7))
def test_init_producer_id_is_new_each_time_with_epoch_0(
    process: NetworkProcess, version: int
) -> None:
    responses = [init(process, version) for _ in range(7)]
    assert [r.error_code for r in responses] == [0] * 7
    assert [r.producer_id for r in responses] == list(range(1000, 1007))
    assert {r.producer_epoch for r in responses} == {0}
    assert len(process.calls("allocate_producer_ids")) == 3


@pytest.mark.parametrize("version", range(3, 7))
def test_init_producer_id_naming_the_old_one_gets_a_new_one(
    process: NetworkProcess, version: int
) -> None:
    response = init(process, version, producer_id=17, producer_epoch=32767)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (0, 1000, 0)


@pytest.mark.parametrize(
    "values",
    [{"producer_id": 17}, {"producer_epoch": 3}, {"transactional_id": ""}],
)
def test_init_producer_id_contradiction_is_invalid_request(
    process: NetworkProcess, values: dict[str, Any]
) -> None:
    response = init(process, 3, **values)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert response.producer_id == -1


def test_init_producer_id_requests_that_wait_share_blocks(process: NetworkProcess) -> None:
    process.rpc.is_holding = True
    outcomes = [process.send(InitProducerIdRequest(transactional_id=None), 4) for _ in range(5)]
    assert len(process.calls("allocate_producer_ids")) == 1
    process.rpc.release()
    assert [o.done for o in outcomes] == [True] * 3 + [False] * 2
    process.rpc.release()
    ids = [decode(ApiKey.INIT_PRODUCER_ID, 4, o.value).producer_id for o in outcomes]
    assert ids == list(range(1000, 1005))


@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT])
def test_init_producer_id_controller_away_is_asked_again_by_all_who_wait(
    process: NetworkProcess, code: ErrorCode
) -> None:
    """Java looks up a coordinator for the first error, and gives up on the other."""
    allocate = process.rpc.responses["allocate_producer_ids"]

    def away(to: Any) -> Any:
        raise WireError(code)

    process.set_response("allocate_producer_ids", away)
    process.rpc.is_holding = True
    outcomes = [process.send(InitProducerIdRequest(transactional_id=None), 4) for _ in range(2)]
    process.rpc.release()
    for outcome in outcomes:
        response = decode(ApiKey.INIT_PRODUCER_ID, 4, outcome.value)
        assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    process.rpc.is_holding = False
    process.set_response("allocate_producer_ids", allocate)
    assert init(process).producer_id == 1000
