"""The producer for asyncio: what waits, what does not, and how records end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.clients.scripted_produce import QUICK, Scripted

from kbroker.client.aio import AsyncKafkaProducer
from kbroker.client.errors import BufferExhausted, ClientClosed, RejectedError, Timeout
from kbroker.errors import ErrorCode

pytestmark = pytest.mark.unit

WAIT_S = 20.0


def run(
    broker: Scripted, body: Callable[[AsyncKafkaProducer], Awaitable[Any]], **settings: Any
) -> Any:
    async def whole() -> Any:
        given = {"bootstrap_servers": broker.bootstrap, **QUICK, **settings}
        async with AsyncKafkaProducer(**given) as producer:
            return await body(producer)

    return asyncio.run(asyncio.wait_for(whole(), WAIT_S))


def test_futures_end_in_the_event_loop_with_results_or_errors():
    threads = []

    async def body(producer: AsyncKafkaProducer) -> None:
        good = await producer.send("t", b"good")
        good.add_done_callback(lambda _: threads.append(threading.current_thread()))
        assert (await good).offset == 0
        with pytest.raises(RejectedError) as caught:
            await producer.send_and_wait("t", b"bad")
        assert caught.value.code == ErrorCode.INVALID_RECORD

    with Scripted(0, int(ErrorCode.INVALID_RECORD)) as broker:
        run(broker, body)
    assert threads == [threading.main_thread()]


def test_flush_returns_after_the_futures_have_ended():
    async def body(producer: AsyncKafkaProducer) -> list[bool]:
        sent = [await producer.send("t", b"%d" % n) for n in range(50)]
        await producer.flush()
        return [one.done() for one in sent]

    with Scripted() as broker:
        assert run(broker, body, linger_ms=1000) == [True] * 50


@pytest.mark.parametrize("bad", ["text", 7], ids=str)
def test_record_that_cannot_be_encoded_fails_alone(bad):
    async def body(producer: AsyncKafkaProducer) -> None:
        wrong = await producer.send("t", bad)
        right = await producer.send("t", b"right")
        with pytest.raises(TypeError, match="value_serializer"):
            await wrong
        assert (await right).offset == 0

    with Scripted() as broker:
        run(broker, body)


def test_serializers_partitioners_and_interceptors_are_called_once_for_each_record():
    calls: list[Any] = []

    class Watching:
        def on_send(self, record: Any) -> Any:
            calls.append(record.value)
            return record._replace(value=record.value + "!")

        def on_acknowledgement(self, metadata: Any, error: Any) -> None:
            calls.append(metadata.offset)

    async def body(producer: AsyncKafkaProducer) -> None:
        for n in range(3):
            await producer.send_and_wait("t", f"{n}")
        with pytest.raises(TypeError, match="send_many has no interceptors"):
            await producer.send_many("t", ["a"])

    with Scripted() as broker:
        run(
            broker,
            body,
            value_serializer=lambda value: value.encode(),
            partitioner=lambda key, everything, available: everything[0],
            interceptor_classes=[Watching()],
        )
    assert calls == ["0", 0, "1", 1, "2", 2]
    assert broker.appended == [b"0!", b"1!", b"2!"]


def test_send_waits_for_memory_up_to_max_block_ms():
    """The leader cannot be reached, so nothing is acknowledged; other tasks go on meanwhile."""
    ticks = []

    async def body(producer: AsyncKafkaProducer) -> None:
        await producer.partitions_for("t")

        async def tick() -> None:
            while True:
                ticks.append(1)
                await asyncio.sleep(0.001)

        ticking = asyncio.ensure_future(tick())
        await producer.send("t", bytes(900))
        with pytest.raises(BufferExhausted) as caught:
            await producer.send("t", bytes(900))
        assert caught.value.waited_ms == 200
        with pytest.raises(BufferExhausted):
            await producer.send_many("t", [bytes(900)])
        ticking.cancel()
        await producer.close(0)

    with Scripted() as broker:
        broker.leader = -1
        run(broker, body, buffer_memory=1500, batch_size=1000, max_block_ms=200)
    assert len(ticks) > 5


def test_send_waits_for_a_topic_up_to_max_block_ms():
    async def body(producer: AsyncKafkaProducer) -> None:
        with pytest.raises(Timeout, match="metadata of topic t"):
            await producer.send("t", b"v")

    with Scripted() as broker:
        broker.topic_error = int(ErrorCode.LEADER_NOT_AVAILABLE)
        run(broker, body, max_block_ms=100)


def test_records_that_wait_for_their_topic_are_sent_in_order():
    async def body(producer: AsyncKafkaProducer) -> None:
        sent = await asyncio.gather(*[producer.send("t", b"%d" % n) for n in range(20)])
        await asyncio.gather(*sent)

    with Scripted() as broker:
        run(broker, body)
    assert broker.appended == [b"%d" % n for n in range(20)]


def test_cancelled_future_changes_nothing():
    async def body(producer: AsyncKafkaProducer) -> None:
        first = await producer.send("t", b"first")
        first.cancel()
        assert (await producer.send_and_wait("t", b"second")).offset == 1

    with Scripted() as broker:
        run(broker, body)
    assert broker.appended == [b"first", b"second"]


def test_rest_of_a_list_fails_when_memory_runs_out():
    async def body(producer: AsyncKafkaProducer) -> None:
        await producer.partitions_for("t")
        sent = await producer.send_many("t", [bytes(900)] * 3)
        await producer.close(0)
        failed = await sent.exceptions()
        assert list(failed) == [0, 1, 2] and len(sent) == 3
        assert [type(error) for error in failed.values()] == [ClientClosed] + [BufferExhausted] * 2
        with pytest.raises(ClientClosed):
            await sent.result()

    with Scripted() as broker:
        broker.leader = -1
        run(broker, body, buffer_memory=1500, batch_size=1000, max_block_ms=1000)


def test_closed_producer_and_another_loop_are_refused():
    async def closed() -> None:
        producer = made
        await producer.send_and_wait("t", b"v")
        await producer.close()
        await producer.close()
        await producer.flush()
        calls = [producer.send("t", b"v"), producer.send_many("t", [b"v"])]
        for call in (*calls, producer.partitions_for("t"), producer.init_transactions()):
            with pytest.raises(ClientClosed):
                await call
        assert producer.metrics()["record-send-total"] == 1

    async def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="one event loop"):
            await made.send("t", b"v")

    with Scripted() as broker:
        made = AsyncKafkaProducer(bootstrap_servers=broker.bootstrap, **QUICK)
        for body in (closed, elsewhere):
            asyncio.run(asyncio.wait_for(body(), WAIT_S))
