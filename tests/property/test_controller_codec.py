"""ControlledShutdown and AlterIsr over the wire: requests and responses arrive unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.running.examples import examples

from kbroker.cluster.controller_requests import (
    AlterIsr,
    AlterIsrResponse,
    ControlledShutdown,
    ControllerRequest,
    ControllerResponse,
    ShutdownResponse,
)
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import IsrResult, IsrState, WantedIsr
from kbroker.peers.controller_codec import (
    API_OF,
    request_from_wire,
    request_to_wire,
    response_from_wire,
    response_to_wire,
)
from kbroker.protocol import codec
from kbroker.protocol.api import request_class, response_class
from kbroker.protocol.primitives import DecodeError

pytestmark = pytest.mark.property

NUMBERS = st.integers(0, 2**31 - 1)
KEYS = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 9)), unique=True)
CODES = st.sampled_from([ErrorCode.NONE, ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH])
ISR = st.lists(NUMBERS, max_size=4)
WANTED = AlterIsr(1, 7, [WantedIsr("t", 0, 3, [0], 5), WantedIsr("t", 1, 3, [0], 5)])


def asked(request: ControllerRequest, version: int) -> ControllerRequest:
    data = codec.encode(request_to_wire(request), version)
    message = codec.decode_exact(request_class(API_OF[type(request)]), version, data)
    return request_from_wire(message)


def answered(response: ControllerResponse, request: ControllerRequest, version: int) -> Any:
    data = codec.encode(response_to_wire(response), version)
    message = codec.decode_exact(response_class(API_OF[type(request)]), version, data)
    return response_from_wire(message, request)


@settings(max_examples=examples(50))
@given(st.integers(0, 3), NUMBERS, st.integers(-1, 2**62), KEYS, CODES)
def test_controlled_shutdown_round_trips(
    version: int, broker_id: int, epoch: int, keys: list[tuple[str, int]], code: ErrorCode
) -> None:
    request = ControlledShutdown(broker_id, epoch if version >= 2 else -1)
    response = ShutdownResponse(code, tuple(keys))

    assert asked(request, version) == request
    assert answered(response, request, version) == response


@settings(max_examples=examples(50))
@given(st.data())
def test_alter_isr_round_trips(data: Any) -> None:
    keys = sorted(data.draw(KEYS))
    wanted = [
        WantedIsr(*key, data.draw(NUMBERS), data.draw(ISR), data.draw(NUMBERS)) for key in keys
    ]
    states = {
        key: IsrResult(
            ErrorCode.NONE,
            IsrState(data.draw(NUMBERS), data.draw(NUMBERS), data.draw(ISR), data.draw(NUMBERS)),
        )
        for key in keys
    }
    for key in keys[:2]:
        states[key] = IsrResult(ErrorCode.INVALID_UPDATE_VERSION)
    request, response = AlterIsr(1, 7, wanted), AlterIsrResponse(partitions=states)

    assert asked(request, 0) == request
    assert answered(response, request, 0) == response


def test_response_to_the_whole_request_names_no_partitions() -> None:
    response = AlterIsrResponse(ErrorCode.NOT_CONTROLLER)

    assert answered(response, WANTED, 0) == response


def test_response_without_all_partitions_is_malformed() -> None:
    """Its changes would be in flight forever."""
    partial = AlterIsrResponse(partitions={("t", 0): IsrResult(ErrorCode.FENCED_LEADER_EPOCH)})

    with pytest.raises(DecodeError, match="no result for t-1"):
        answered(partial, WANTED, 0)


def test_request_that_names_a_partition_twice_is_rejected() -> None:
    with pytest.raises(WireError) as failed:
        asked(AlterIsr(1, 7, [WANTED.partitions[0]] * 2), 0)

    assert failed.value.code is ErrorCode.INVALID_REQUEST
