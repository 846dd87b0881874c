"""What the tests of other asyncio clients ask of a consumer and a producer, asked of ours."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest

from kbroker.client import KafkaAdminClient, KafkaProducer, TopicPartition
from kbroker.client.admin.topics import NewTopic
from kbroker.client.aio import AsyncKafkaConsumer, AsyncKafkaProducer
from kbroker.client.errors import ClientClosed, ConsumerState
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": "false",
}
WAIT_S = 20.0
LONG_S = 60.0  # a call of this length that ends within WAIT_S was ended by something else


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        with KafkaAdminClient(bootstrap_servers=running.bootstrap) as admin:
            names = ("t", "empty", "silent", "fresh", "written")
            admin.create_topics([NewTopic(name, partitions=2) for name in names])
        with KafkaProducer(bootstrap_servers=running.bootstrap) as producer:
            for n in range(100):
                producer.send("t", b"%d" % n, partition=n % 2)
        yield running


def consumer(broker: Broker, **settings: Any) -> AsyncKafkaConsumer:
    settings.setdefault("auto_offset_reset", "earliest")
    return AsyncKafkaConsumer(bootstrap_servers=broker.bootstrap, **settings)


def run(body: Awaitable[None]) -> None:
    asyncio.run(asyncio.wait_for(body, WAIT_S))


async def begun(call: Awaitable[Any]) -> asyncio.Future[Any]:
    """A call that waits by now."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0.2)
    assert not task.done()
    return task


def test_a_commit_does_not_wait_for_another_task_that_polls(broker):
    """One task waits for records, others commit, seek and ask meanwhile: none of them waits as
    long as ``poll`` may, and ``poll`` goes on with what is left of its time.
    """

    async def body() -> None:
        async with consumer(broker, group_id="beside-poll", enable_auto_commit=False) as reader:
            await reader.assign([("empty", 0)])
            assert await reader.position(("empty", 0)) == 0
            poll = await begun(reader.poll(LONG_S))
            await reader.commit({("empty", 0): 0})
            assert (await reader.committed([("empty", 0)]))[TopicPartition("empty", 0)].offset == 0
            assert await reader.end_offsets([("empty", 0)]) == {("empty", 0): 0}
            await reader.pause(("empty", 0))
            await reader.resume(("empty", 0))
            assert not poll.done()
            async with AsyncKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
                await producer.send_and_wait("empty", b"late", partition=0)
            assert [record.value for record in await poll] == [b"late"]

    run(body())


def test_a_poll_that_others_interrupt_ends_with_its_time(broker):
    """``poll`` with nothing to read ends neither before nor long after its timeout, however many
    calls come between.
    """

    async def body() -> None:
        async with consumer(broker) as reader:
            await reader.assign([("silent", 0)])
            await reader.position(("silent", 0))
            began = time.monotonic()
            poll = asyncio.ensure_future(reader.poll(1.0))
            while not poll.done():
                await reader.position(("silent", 0))
                await asyncio.sleep(0.01)
            assert await poll == []
            assert time.monotonic() - began >= 1.0

    run(body())


def test_tasks_that_poll_at_once_share_the_records(broker):
    """Several tasks iterate over one consumer: each record reaches one of them, and a task that
    asks something is served although two others wait in ``poll``.
    """

    async def body() -> None:
        async with consumer(broker) as reader:
            await reader.assign([("t", 0), ("t", 1)])
            found: list[int] = []

            async def take() -> None:
                while len(found) < 100:
                    found.extend(int(record.value) for record in await reader.poll(0.2, 3))

            await asyncio.gather(take(), take(), take())
            assert sorted(found) == list(range(100))
            polls = [await begun(reader.poll(LONG_S)) for _ in range(2)]
            assert await reader.position(("t", 0)) == 50
            for poll in polls:
                poll.cancel()
            await asyncio.wait(polls)

    run(body())


@pytest.mark.parametrize("call", ["poll", "poll_columns", "iteration"])
def test_close_ends_a_task_that_reads(broker, call):
    """A program that stops calls ``close`` while another task waits for records: that task gets
    ClientClosed at once, as everything that is called later; ``async for`` just ends.
    """

    async def body() -> None:
        reader = consumer(broker, group_id=f"closed-{call}")
        await reader.subscribe(["silent"])

        async def iterate() -> None:
            async for _ in reader:
                raise AssertionError("there is no record")

        waits = iterate() if call == "iteration" else getattr(reader, call)(LONG_S)
        task = await begun(waits)
        await reader.close()
        if call == "iteration":
            await task
        else:
            with pytest.raises(ClientClosed):
                await task
        await reader.close()
        for late in (reader.poll(0), reader.commit(), reader.subscribe(["t"]), iterate()):
            with pytest.raises(ClientClosed):
                await late

    run(body())


def test_a_task_that_a_listener_has_started_uses_the_consumer_afterwards(broker):
    """A listener starts a worker for the partitions that came. The worker outlives the callback,
    and its calls are served like those of any task.
    """
    heard: list[Any] = []

    async def body() -> None:
        async with consumer(broker, group_id="workers", enable_auto_commit=False) as reader:
            workers = []

            async def work(partitions: Any) -> None:
                await asyncio.sleep(0.2)  # the callback has ended
                await reader.commit(dict.fromkeys(partitions, 1))
                heard.append(await reader.committed(partitions))

            class Listener:
                async def on_partitions_assigned(self, partitions: Any) -> None:
                    workers.append(asyncio.ensure_future(work(partitions)))

                async def on_partitions_revoked(self, partitions: Any) -> None:
                    pass

            await reader.subscribe(["t"], listener=Listener())
            while not workers:
                await reader.poll(0.1)
            await workers[0]

    run(body())
    assert [sorted(row.offset for row in found.values()) for found in heard] == [[1, 1]]


def test_what_the_other_consumer_tells_this_one_tells_too(broker):
    """Paused partitions, lag, topics and positions are told to programs of asyncio as well."""

    async def body() -> None:
        async with consumer(broker) as reader:
            first = TopicPartition("t", 0)
            await reader.assign([first])
            await reader.pause(first)
            assert reader.paused() == {first}
            await reader.resume(first)
            assert reader.paused() == set()
            assert len(await reader.poll(WAIT_S, 10)) == 10
            assert await reader.current_lag(first) == 40
            assert (await reader.list_topics())["t"] == {0, 1}
            assert (await reader.positions())[first].offset == 10
            with pytest.raises(ConsumerState):
                await reader.enforce_rebalance()

    run(body())


def test_an_error_in_the_block_closes_the_consumer(broker):
    """A block that raises leaves the group and closes; what it has read is not committed."""

    async def body() -> None:
        reader = consumer(broker, group_id="raises")
        with pytest.raises(KeyError):
            async with reader:
                await reader.subscribe(["t"])
                while not await reader.poll(0.2, 5):
                    pass
                raise KeyError("of the program")
        with pytest.raises(ClientClosed):
            await reader.poll(0)
        async with consumer(broker, group_id="raises") as successor:
            found = await successor.committed([("t", 0), ("t", 1)])
            assert set(found.values()) == {None}

    run(body())


def test_a_consumer_is_created_outside_of_a_loop(broker):
    """As programs do that create their clients when a module is loaded."""
    reader = consumer(broker)
    writer = AsyncKafkaProducer(bootstrap_servers=broker.bootstrap)

    async def body() -> None:
        async with writer, reader:
            sent = await writer.send_and_wait("fresh", b"1", partition=1)
            await reader.assign([("fresh", 1)])
            await reader.seek(("fresh", 1), sent.offset)
            assert [one.value for one in await reader.poll(WAIT_S)] == [b"1"]

    run(body())


def test_flush_and_close_wait_for_all_that_was_sent(broker):
    """Futures that nobody has awaited have ended after ``flush`` and after ``close``."""

    async def body() -> None:
        writer = AsyncKafkaProducer(bootstrap_servers=broker.bootstrap, linger_ms=10_000)
        sent = [await writer.send("written", b"%d" % n, partition=0) for n in range(50)]
        await writer.flush()
        assert [future.result().offset for future in sent] == list(range(50))
        sent = [await writer.send("written", b"%d" % n, partition=0) for n in range(50)]
        await writer.close()
        assert [future.result().offset for future in sent] == list(range(50, 100))
        await writer.close()
        with pytest.raises(ClientClosed):
            await writer.send("written", b"late")

    run(body())


def test_a_cancelled_wait_for_a_record_does_not_unsend_it(broker):
    """``send_and_wait`` that is cancelled while it waits: the record is written all the same, and
    those after it, too.
    """

    async def body() -> None:
        async with AsyncKafkaProducer(bootstrap_servers=broker.bootstrap, linger_ms=300) as writer:
            waits = asyncio.ensure_future(writer.send_and_wait("fresh", b"a", partition=0))
            await begun(asyncio.sleep(0.25))
            waits.cancel()
            await asyncio.wait([waits])
            after = await writer.send_and_wait("fresh", b"b", partition=0)
        async with consumer(broker) as reader:
            await reader.assign([("fresh", 0)])
            found: list[Any] = []
            while len(found) <= after.offset:
                found += await reader.poll(1.0)
            assert [record.value for record in found][-2:] == [b"a", b"b"]

    run(body())


@pytest.mark.parametrize("made", [AsyncKafkaConsumer, AsyncKafkaProducer])
def test_a_client_that_was_closed_leaves_no_warning(broker, made):
    """Neither a ResourceWarning nor a task that was never awaited."""

    async def body() -> None:
        async with made(bootstrap_servers=broker.bootstrap) as client:
            assert await client.partitions_for("t") == {0, 1}

    gc.collect()  # what others have left
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run(body())
        gc.collect()
    assert [str(one.message) for one in found] == []
