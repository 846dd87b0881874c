"""Requests over ``slow.request.log.ms``, and their stages in the log."""

from __future__ import annotations

import logging
import time

import pytest
from support.network.net_loop_harness import METADATA, Harness, fetch, produce, received, result

from kbroker._ext.shared.request_times import RequestTimes, region_size
from kbroker.workers.network.slow_requests import LINES_MAX, report

pytestmark = pytest.mark.unit


@pytest.fixture
def harness() -> Harness:
    made = Harness()
    made.loop.keep_times(RequestTimes(bytearray(region_size(1)), 0))
    return made


def ask(harness: Harness) -> None:
    client = harness.connect()
    client.send(METADATA)
    harness.turn()
    token, _ = harness.dispatched.pop()
    harness.loop.respond(token, b"\0\0\0\2")
    harness.turn()
    assert received(client)


def lines(harness: Harness, caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    caplog.clear()
    report(harness.loop.responses, ["PLAINTEXT"])
    return caplog.records


def test_slow_request_is_logged_with_its_stages(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.loop.responses.watch_for(0)
    client = harness.connect()
    client.send(produce(9))
    harness.turn()
    [descriptor] = harness.descriptors()
    taken_ns = time.monotonic_ns()
    harness.connection.name_software(b"librdkafka", b"2.16.0")

    harness.answer(result(descriptor, taken_ns=taken_ns, waits_ns=taken_ns + 2_000_000))
    harness.turn()

    assert received(client)
    [record] = lines(harness, caplog)
    fields = record.args
    assert isinstance(fields, dict)
    assert (fields["api"], fields["version"]) == ("Produce", 9)
    assert fields["local_ms"] == 2.0
    stages = ("queue_ms", "local_ms", "remote_ms", "response_queue_ms", "send_ms")
    assert sum(fields[name] for name in stages) == pytest.approx(fields["total_ms"], abs=0.01)
    assert fields["principal"] == "User:ANONYMOUS"
    assert (fields["listener"], fields["software"]) == ("PLAINTEXT", "librdkafka 2.16.0")
    assert "test:1" in record.getMessage()
    assert lines(harness, caplog) == []


def test_nothing_is_noted_below_the_threshold_or_without_one(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    ask(harness)
    assert lines(harness, caplog) == []
    harness.loop.responses.watch_for(60_000)
    ask(harness)
    assert lines(harness, caplog) == []
    harness.loop.responses.watch_for(-1)
    ask(harness)
    assert lines(harness, caplog) == []


def test_time_that_a_fetch_waits_for_data_is_not_slow(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """The client has asked for it."""
    harness.loop.responses.watch_for(1_000)
    client = harness.connect()
    client.send(fetch(max_wait_ms=1_500))
    harness.turn()
    until = time.monotonic() + 30
    answer = b""
    while not answer and time.monotonic() < until:
        harness.loop.turn(100)
        harness.loop.end_turn()
        answer = received(client)

    assert answer
    assert lines(harness, caplog) == []


def test_many_slow_requests_are_counted_not_listed(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.loop.responses.watch_for(0)
    for _ in range(150):
        ask(harness)

    records = lines(harness, caplog)

    assert len(records) == LINES_MAX + 1
    assert records[-1].getMessage() == f"{150 - LINES_MAX} more requests were slow"
    totals = [record.args["total_ms"] for record in records[:-1]]  # type: ignore[index, call-overload]
    assert totals == sorted(totals, reverse=True)  # of the first hundred
