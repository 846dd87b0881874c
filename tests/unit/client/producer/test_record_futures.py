"""Futures of records: what they tell, and when they end."""

from __future__ import annotations

import threading

import pytest
from support.clients.produce_link import ProduceLink, Where, pool

from kbroker._ext.client.record_futures import RecordFuture
from kbroker.client.errors import RejectedError

pytestmark = pytest.mark.unit


def send(made, value=b"v"):
    return made.append("t", b"k", value, None, None, 5)


def test_future_of_a_refused_record_has_its_error():
    error = ValueError("bad")
    future = RecordFuture.refused(error)
    called = []
    future.add_done_callback(called.append)

    assert future.done() and not future.running()
    assert future.exception() is error
    assert called == [future]
    with pytest.raises(ValueError, match="bad"):
        future.get()


def test_future_waits_for_its_batch():
    made = pool()
    future = send(made)
    assert not future.done() and future.running()
    assert future.cancel() is future.cancelled() is False
    with pytest.raises(TimeoutError):
        future.result(0.01)
    with ProduceLink(made).start() as link:
        found = []
        waiter = threading.Thread(target=lambda: found.append(future.result(10)))
        waiter.start()
        link.respond(link.receive())
        waiter.join(10)

    assert found == [Where("t", 0, 100, 5, 1, 1)]


def test_futures_of_a_failed_batch_raise_its_error():
    made = pool()
    futures = [send(made), send(made)]
    with ProduceLink(made) as link:
        link.turn()
        link.respond(link.receive(), error_code=10)
        ((_, _, _, _, (batch,)),) = link.turn(1)
        link.loop.fail(batch, RejectedError(10, "produce to t-0"))

    for future in futures:
        assert future.exception(0).code == 10
        with pytest.raises(RejectedError, match="MESSAGE_TOO_LARGE"):
            future.result(0)


def test_future_outlives_its_producer():
    made = pool()
    with ProduceLink(made) as link:
        future = send(made)
        link.turn()
        link.respond(link.receive())
        link.turn(1)
    del made, link

    assert future.result(0).topic == "t"


def test_futures_of_a_list_are_runs_of_records():
    made = pool(2, batch_bytes=300)
    futures = made.append_many("t", [b"x" * 50] * 10, None, None, 1, 5)
    with ProduceLink(made, in_flight_max=100) as link:
        assert not futures.done()
        with pytest.raises(TimeoutError):
            futures.result(0.0)
        offset = 0
        while not futures.done():
            link.turn(0.05)
            got = link.receive()
            link.respond(got, base_offset=offset)
            offset += len(got.records("t", 1))
            link.turn(1)
        found = futures.result(0)

    assert len(found) > 1
    at = 0
    for topic, partition, first, count in found:
        assert (topic, partition, first) == ("t", 1, at)
        at += count
    assert at == 10
    assert futures.exceptions(0) == {}
