"""The producer for asyncio against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

pytest.importorskip("pyarrow")

from support.clients import client_topics as topics

from kbroker.client.aio import AsyncKafkaConsumer, AsyncKafkaProducer
from kbroker.client.batches.record_arrays import Fields
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import RejectedError, TransactionState
from kbroker.errors import ErrorCode
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "num.partitions": 2,
    "group.initial.rebalance.delay.ms": 0,
}
WAIT_S = 40.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap, deadline=20) as made:
        yield made


def run(broker: Broker, body: Callable[[AsyncKafkaProducer], Awaitable[None]], **settings) -> None:
    async def whole() -> None:
        async with AsyncKafkaProducer(bootstrap_servers=broker.bootstrap, **settings) as producer:
            await body(producer)

    asyncio.run(asyncio.wait_for(whole(), WAIT_S))


def test_records_are_where_their_futures_say(broker, cluster):
    found = []

    async def body(producer: AsyncKafkaProducer) -> None:
        sent = [await producer.send("found", b"%d" % n, key=b"k%d" % n) for n in range(200)]
        found.extend(await asyncio.gather(*sent))
        found.append(await producer.send_and_wait("found", b"200", partition=1))
        assert await producer.partitions_for("found") == {0, 1}

    run(broker, body, linger_ms=5)
    values = [topics.values(cluster, "found", n) for n in range(2)]
    assert [values[one.partition][one.offset] for one in found] == [b"%d" % n for n in range(201)]


def test_a_small_buffer_makes_tasks_wait_and_keeps_their_order(broker, cluster):
    """More than ``buffer.memory`` from several tasks: the event loop goes on meanwhile."""
    topics.create(cluster, "narrow", 3)
    turns = []

    async def writer(producer: AsyncKafkaProducer, partition: int) -> None:
        for n in range(300):
            await producer.send("narrow", b"%d" % n + b" " * 1000, partition=partition)

    async def body(producer: AsyncKafkaProducer) -> None:
        tasks = [asyncio.ensure_future(writer(producer, n)) for n in range(3)]
        while not all(task.done() for task in tasks):
            turns.append(1)
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        await producer.flush()

    run(broker, body, buffer_memory=40_000, batch_size=4096)
    found = [[int(value) for value in topics.values(cluster, "narrow", n)] for n in range(3)]
    assert found == [list(range(300))] * 3
    assert len(turns) > 10


def test_lists_are_larger_than_the_buffer(broker, cluster):
    topics.create(cluster, "lists", 1)
    values = [b"%d" % n + b" " * 500 for n in range(2000)]

    async def body(producer: AsyncKafkaProducer) -> None:
        values[3:3] = [b"x" * 2_000_000]
        sent = await producer.send_many("lists", values, headers={"h": b"v"})
        assert len(sent) == 2001
        failed = await sent.exceptions()
        assert list(failed) == [3] and sent.done()
        more = await producer.send_many("lists", values[:3], [b"k"] * 3)
        assert sum(run[3] for run in await more.result()) == 3
        with pytest.raises(ValueError, match="2 keys for 3 values"):
            await producer.send_many("lists", values[:3], [b"k"] * 2)

    run(broker, body, buffer_memory=100_000, batch_size=8192)
    del values[3]
    assert topics.values(cluster, "lists", 0) == [*values, *values[:3]]


def test_arrays_are_larger_than_the_buffer(broker, cluster):
    topics.create(cluster, "arrays", 1)
    values = [b"%d" % n + b" " * 500 for n in range(2000)]
    times = list(range(2000))

    async def body(producer: AsyncKafkaProducer) -> None:
        sent = await producer.send_many("arrays", Fields.of(values), timestamp_ms=times)
        assert sum(run[3] for run in await sent.result()) == 2000
        more = await producer.send_many("arrays", Fields.of(values[:3]), [b"k"] * 3)
        assert sum(run[3] for run in await more.result()) == 3
        with pytest.raises(ValueError, match="2 keys for 3 values"):
            await producer.send_many("arrays", Fields.of(values[:3]), Fields.of([b"k"] * 2))
        async with AsyncKafkaConsumer(bootstrap_servers=broker.bootstrap) as consumer:
            await consumer.assign([("arrays", 0)])
            await consumer.seek(("arrays", 0), 0)
            left = 2003
            while left:
                for columns in await consumer.poll_columns(10, arrays=True):
                    found = columns.arrays
                    offsets = [at for at in found.offsets if at < 2000]
                    assert found.timestamps[: len(offsets)].tolist() == offsets
                    left -= len(found)

    run(broker, body, buffer_memory=100_000, batch_size=8192)
    assert topics.values(cluster, "arrays", 0) == [*values, *values[:3]]


def test_batch_that_is_split_ends_its_futures(broker, cluster):
    topics.create(cluster, "split", max_message_bytes=2000)

    async def body(producer: AsyncKafkaProducer) -> None:
        single = await producer.send("split", b"first")
        many = await producer.send_many("split", [b"%d" % n * 40 for n in range(100)])
        large = await producer.send("split", b"x" * 5000)
        await producer.flush()
        assert (await single).offset == 0
        assert sum(run[3] for run in await many.result()) == 100
        with pytest.raises(RejectedError) as caught:
            await large
        assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE

    run(broker, body, linger_ms=50)
    assert len(topics.values(cluster, "split", 0)) == 101


def test_transactions_commit_at_the_end_of_a_block_and_abort_on_errors(broker, cluster):
    topics.create(cluster, "bank", 1)
    topics.create(cluster, "source", 1)

    async def body(producer: AsyncKafkaProducer) -> None:
        with pytest.raises(TransactionState):
            await producer.send("bank", b"early")
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send("bank", b"1")
            await producer.send_offsets_to_transaction({("source", 0): 7}, "aio-group")
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await producer.send_and_wait("bank", b"2")
                1 / 0  # noqa: B018 - the error
        await producer.begin_transaction()
        await producer.send("bank", b"3")
        commit = asyncio.ensure_future(producer.commit_transaction())
        await asyncio.sleep(0)
        commit.cancel()
        # It continues; what comes next begins after it.
        await producer.begin_transaction()
        await producer.send("bank", b"4")
        await producer.commit_transaction()

    async def read() -> list[bytes]:
        settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
        found: list[bytes] = []
        async with AsyncKafkaConsumer(
            bootstrap_servers=broker.bootstrap, group_id="aio-group", **settings
        ) as consumer:
            await consumer.assign([("bank", 0)])
            while len(found) < 3:
                found += [record.value for record in await consumer.poll()]
            offsets = await consumer.committed([("source", 0)])
            assert next(iter(offsets.values())).offset == 7
        return found

    run(broker, body, transactional_id="aio")
    assert asyncio.run(asyncio.wait_for(read(), WAIT_S)) == [b"1", b"3", b"4"]


def test_a_transaction_that_is_cancelled_anywhere_makes_way_for_the_next_one(broker, cluster):
    """Once or twice, at each of its awaits; only what was committed counts."""

    async def block(producer: AsyncKafkaProducer, value: bytes) -> None:
        async with producer.transaction():
            await producer.send_and_wait("cancelled", value, partition=0)

    async def body(producer: AsyncKafkaProducer) -> None:
        await producer.init_transactions()
        for n in range(40):
            task = asyncio.ensure_future(block(producer, b"%d" % n))
            for _ in range(n % 20):
                await asyncio.sleep(0.0005)
            for _ in range(1 + n % 2):
                task.cancel()
                await asyncio.sleep(0)
            await asyncio.wait([task])
        await block(producer, b"last")

    topics.create(cluster, "cancelled", 1)
    run(broker, body, transactional_id="cancelled", linger_ms=0)

    async def read() -> list[bytes]:
        settings = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
        async with AsyncKafkaConsumer(bootstrap_servers=broker.bootstrap, **settings) as consumer:
            await consumer.assign([("cancelled", 0)])
            found: list[bytes] = []
            while not found or found[-1] != b"last":
                found += [record.value for record in await consumer.poll(1.0)]
            return found

    values = asyncio.run(asyncio.wait_for(read(), WAIT_S))
    assert values.count(b"last") == 1
    assert len(set(values)) == len(values)
