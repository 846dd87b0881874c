"""How long each stage of a request took, as a network process notes it."""

from __future__ import annotations

import time

import pytest
from support.network.net_loop_harness import Harness, framed, produce, received, result

from kbroker._ext.shared.request_times import (
    LOCAL,
    QUEUE,
    REMOTE,
    RESPONSE_QUEUE,
    SEND,
    TOTAL,
    RequestTimes,
    TimesView,
    region_size,
    summary,
)
from kbroker.protocol import header
from kbroker.protocol.api import ApiKey

pytestmark = pytest.mark.unit


class Timed:
    """A harness whose loop keeps times."""

    def __init__(self, harness: Harness) -> None:
        region = bytearray(region_size(1))
        self.harness = harness
        harness.loop.keep_times(RequestTimes(region, 0))
        self.view = TimesView(region, 1)

    def us(self, stage: int, api: int = ApiKey.PRODUCE) -> float:
        count, mean, _ = summary(self.view.histogram(api, stage))
        assert count == 1
        return mean


@pytest.fixture
def timed() -> Timed:
    return Timed(Harness())


def test_stages_of_a_produce_add_up_to_its_total(timed: Timed) -> None:
    harness, client = timed.harness, timed.harness.connect()
    client.send(produce(9))
    harness.turn()
    [descriptor] = harness.descriptors()
    taken_ns = time.monotonic_ns()

    harness.answer(result(descriptor, taken_ns=taken_ns, waits_ns=taken_ns + 1_000))
    harness.turn()

    assert received(client)
    parts = [timed.us(stage) for stage in (QUEUE, LOCAL, REMOTE, RESPONSE_QUEUE, SEND)]
    assert timed.us(LOCAL) == 1
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(timed.us(TOTAL), abs=len(parts))  # whole microseconds
    assert timed.view.errors(ApiKey.PRODUCE) == [(0, 1)]


def test_produce_that_waits_for_nobody_has_no_remote_time(timed: Timed) -> None:
    harness, client = timed.harness, timed.harness.connect()
    client.send(produce(9))
    harness.turn()
    [descriptor] = harness.descriptors()

    harness.answer(result(descriptor, error=10, taken_ns=time.monotonic_ns()))
    harness.turn()

    assert received(client)
    assert timed.view.count(ApiKey.PRODUCE, REMOTE) == 0
    assert timed.view.count(ApiKey.PRODUCE, LOCAL) == 1
    assert timed.view.errors(ApiKey.PRODUCE) == [(10, 1)]


def test_produce_without_a_response_is_timed_too(timed: Timed) -> None:
    harness, client = timed.harness, timed.harness.connect()
    client.send(produce(9, acks=0))
    harness.turn()
    [descriptor] = harness.descriptors()

    harness.answer(result(descriptor, taken_ns=time.monotonic_ns()))
    harness.turn()

    assert timed.us(TOTAL) >= 0
    assert timed.us(SEND) == 0


def test_request_of_a_handler_is_timed_under_its_api(timed: Timed) -> None:
    harness, client = timed.harness, timed.harness.connect()
    client.send(framed(header.encode_request_header(ApiKey.METADATA, 1, 2, "me") + b"\0\0\0\0"))
    harness.turn()
    [(token, _)] = harness.dispatched

    harness.loop.respond(token, b"\0\0\0\2")
    harness.turn()

    assert received(client)
    assert timed.us(TOTAL, ApiKey.METADATA) >= timed.us(LOCAL, ApiKey.METADATA)
    assert timed.view.count(ApiKey.PRODUCE, TOTAL) == 0
