"""Batches that are too large for their broker: where records go, and what futures tell."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.clients.produce_link import ProduceLink, pool
from support.clients.scripted_produce import Scripted, producer

from kbroker.client.producer.splitting import halves
from kbroker.errors import ErrorCode
from kbroker.record.batch import RecordBatch
from kbroker.record.builder import BatchBuilder
from kbroker.record.compression import CODEC_NAMES

pytestmark = pytest.mark.unit

TOO_LARGE = int(ErrorCode.MESSAGE_TOO_LARGE)


class Small(Scripted):
    """Takes batches of at most ``limit`` bytes, and only the next sequence number of an epoch."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self._next = (-1, 0)

    def produce(self, request: Any, state: dict[str, Any]) -> Any:
        (topic,) = request.topic_data
        (row,) = topic.partition_data
        header = RecordBatch(bytes(row.records)).header
        epoch, expected = self._next
        if header.producer_epoch != epoch:
            epoch, expected = header.producer_epoch, 0
        code = 0
        if len(row.records) > self.limit:
            code = TOO_LARGE
        elif header.producer_id >= 0 and header.base_sequence != expected:
            code = int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        else:
            self._next = (epoch, expected + header.record_count)
        self.script.append(code)
        return super().produce(request, state)


def built(values: list[bytes], codec: int = 0) -> bytes:
    builder = BatchBuilder(codec)
    for n, value in enumerate(values):
        builder.append(value, b"k%d" % n, 1000 - n, [(b"h\xff", None), ("h", b"v")])
    return builder.build()


def sent_as_one(made: Any, values: list[bytes]) -> tuple[Any, Any]:
    futures = made.append_many("t", values, None, None, None, 5)
    link = ProduceLink(made, in_flight_max=1)
    link.turn()
    link.respond(link.receive(), error_code=TOO_LARGE)
    ((_, _, _, _, (batch,)),) = link.turn(1)
    return futures, (link, batch)


@pytest.mark.parametrize("codec", range(len(CODEC_NAMES)), ids=CODEC_NAMES)
def test_halves_have_all_records_in_their_order(codec):
    whole = built([b"%d" % n * 50 for n in range(9)], codec)
    parts = halves(whole)

    assert [count for _, count in parts] == [4, 5]
    found = [record for data, _ in parts for record in RecordBatch(data).records()]
    assert [record[1:] for record in found] == [r[1:] for r in RecordBatch(whole).records()]
    assert {RecordBatch(data).codec for data, _ in parts} == {codec}


@pytest.mark.parametrize(
    ("sizes", "first"), [((1, 1), 1), ((9000, 1), 1), ((1, 9000), 1), ((1, 1, 1, 9000), 3)]
)
def test_halves_are_cut_by_bytes_and_never_empty(sizes, first):
    parts = halves(built([bytes(size) for size in sizes]))

    assert [count for _, count in parts] == [first, len(sizes) - first]


@pytest.mark.parametrize("settings", [{}, {"compression_type": "gzip"}, {"acks": 1}], ids=str)
def test_batch_that_is_too_large_is_sent_in_parts_and_in_order(settings):
    plain = settings.get("acks") == 1
    if plain:
        settings = {**settings, "enable_idempotence": False}
    values = [b"%04d" % n * 8 for n in range(200)]
    with Small(700) as broker, producer(broker, linger_ms=100, **settings) as made:
        called: list[int] = []
        futures = []
        for n, value in enumerate(values):
            future = made.send("t", value)
            future.add_done_callback(lambda done, n=n: called.append(n))
            futures.append(future)
        found = [future.result(20).offset for future in futures]
        made.flush(20)
        metrics = made.metrics()

    assert broker.appended == values
    assert found == list(range(200))
    assert sorted(called) == list(range(200))
    assert metrics["batch-split-total"] >= 1


def test_single_record_that_is_too_large_fails_alone_and_others_keep_their_order():
    values = [b"%04d" % n for n in range(40)]
    values[17] = bytes(5000)
    with Small(1000) as broker, producer(broker, linger_ms=100) as made:
        futures = [made.send("t", value) for value in values]
        many = made.send_many("t", values)
        errors = {n: future.exception(20) for n, future in enumerate(futures)}
        in_many = many.exceptions(20)

    assert [n for n, error in errors.items() if error is not None] == [17]
    assert errors[17].code == TOO_LARGE
    assert list(in_many) == [17] and in_many[17].code == TOO_LARGE
    good = values[:17] + values[18:]
    assert broker.appended == good * 2


def test_futures_follow_their_records_into_parts_of_parts():
    values = [b"%d" % n for n in range(8)]
    made = pool()
    futures, (link, batch) = sent_as_one(made, values)
    singles = made.append_many("t", [b"later"], None, None, None, 5)
    with link:
        link.loop.split(batch, halves(batch.data))
        assert batch.ended and not batch.taken and not futures.done()
        link.turn()
        request = link.receive()
        assert len(request.records()) == 4
        link.respond(request, error_code=TOO_LARGE)
        ((_, _, _, _, (again,)),) = link.turn(1)
        link.loop.split(again, halves(again.data))
        got: list[bytes | None] = []
        at = 100
        while not singles.done():
            link.turn()
            request = link.receive()
            got += [record.value for record in request.records()]
            link.respond(request, base_offset=at)
            at = 100 + len(got)
            link.turn(1)

    assert got == [*values, b"later"]
    assert futures.result(0) == [("t", 0, 100, 2), ("t", 0, 102, 2), ("t", 0, 104, 4)]
    assert made.used_bytes == 0 and made.unended == 0


def test_thread_that_waits_for_a_batch_waits_for_its_parts():
    made = pool()
    one = made.append("t", None, b"first", None, None, 5)
    futures, (link, batch) = sent_as_one(made, [b"second", b"third"])
    found: list[Any] = []
    waiters = [
        threading.Thread(target=lambda: found.append(one.result(20).offset)),
        threading.Thread(target=lambda: found.append(sum(run[3] for run in futures.result(20)))),
    ]
    for waiter in waiters:
        waiter.start()
    with link:
        link.loop.split(batch, halves(batch.data))
        for _ in range(2):
            link.turn()
            link.respond(link.receive())
            link.turn(1)
        for waiter in waiters:
            waiter.join(20)

    assert sorted(found) == [2, 100]
