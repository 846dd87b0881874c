"""FastStream, which is built on aiokafka, with our clients in the place of aiokafka's."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import pytest

pytest.importorskip("faststream")
pytest.importorskip("aiokafka")

import aiokafka
from faststream import AckPolicy
from faststream.kafka import KafkaBroker
from interop import as_aiokafka

from kbroker.client import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kbroker.client.admin.topics import NewTopic
from kbroker.testing import Broker

pytestmark = pytest.mark.interop

SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
}
COUNT = 120
PARTITIONS = 3
WAIT_S = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


@pytest.fixture
def topics(broker: Broker, request: pytest.FixtureRequest) -> tuple[str, str]:
    """One with numbers, and one for what is made of them."""
    name = "".join(one if one.isalnum() else "-" for one in request.node.name)
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(f"{name}-{one}", PARTITIONS) for one in ("in", "out")])
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for n in range(COUNT):
            producer.send(f"{name}-in", b"%d" % n, partition=n % PARTITIONS)
    return f"{name}-in", f"{name}-out"


@pytest.fixture
def as_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiokafka, "AIOKafkaConsumer", as_aiokafka.Consumer)
    monkeypatch.setattr(aiokafka, "AIOKafkaProducer", as_aiokafka.Producer)
    monkeypatch.setattr(aiokafka.admin.client, "AIOKafkaAdminClient", as_aiokafka.Admin)


def results(broker: Broker, name: str) -> Counter[int]:
    with KafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as reader:
        reader.assign([(name, number) for number in range(PARTITIONS)])
        ends = reader.end_offsets(reader.assignment())
        found: Counter[int] = Counter()
        while any(reader.position(key) < end for key, end in ends.items()):
            found.update(int(record.value) for record in reader.poll(0.2))
        return found


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def run(body: Awaitable[None]) -> None:
    asyncio.run(asyncio.wait_for(body, WAIT_S * 2))


def test_a_pipeline_that_is_restarted_handles_each_record_once(broker, topics, as_of_others):
    """Consume, transform, produce, commit after each record, and stop between two of them: the
    next run goes on with the next record.
    """
    source, target = topics
    seen: list[int] = []

    def pipeline() -> KafkaBroker:
        app = KafkaBroker(broker.bootstrap)

        @app.publisher(target)
        @app.subscriber(
            source,
            group_id=source,
            auto_offset_reset="earliest",
            ack_policy=AckPolicy.ACK,
        )
        async def double(number: int) -> str:
            seen.append(number)
            return str(number * 2)

        return app

    async def body() -> None:
        for enough in (COUNT // 4, COUNT // 2, COUNT):
            async with pipeline() as app:
                await app.start()
                await until(lambda enough=enough: len(seen) >= enough)

    run(body())
    assert results(broker, target) == Counter(2 * n for n in range(COUNT))
    assert Counter(seen) == Counter(range(COUNT))


def test_a_record_whose_handler_fails_is_handled_again(broker, topics, as_of_others):
    """FastStream seeks back to it and goes on there: nothing is left out, and each record has one
    result.
    """
    source, target = topics
    failed: set[int] = set()

    async def body() -> None:
        app = KafkaBroker(broker.bootstrap)

        @app.publisher(target)
        @app.subscriber(
            source,
            group_id=source,
            auto_offset_reset="earliest",
            ack_policy=AckPolicy.NACK_ON_ERROR,
        )
        async def sometimes(number: int) -> str:
            if number % 10 == 3 and number not in failed:
                failed.add(number)
                raise ValueError(number)
            return str(number)

        async with app:
            await app.start()
            async with asyncio.timeout(WAIT_S):
                while sum((await asyncio.to_thread(results, broker, target)).values()) < COUNT:
                    await asyncio.sleep(0.1)

    run(body())
    assert len(failed) == COUNT // 10
    assert results(broker, target) == Counter(range(COUNT))


def test_batches_by_a_pattern_are_handled_and_published_in_batches(broker, topics, as_of_others):
    """With two members of one group, of which one leaves in the middle: at least once each."""
    source, target = topics
    seen: Counter[int] = Counter()

    def member() -> KafkaBroker:
        app = KafkaBroker(broker.bootstrap)

        @app.subscriber(
            pattern=f"{source[:-3]}.in",
            group_id=source,
            batch=True,
            max_records=7,
            batch_timeout_ms=50,
            auto_offset_reset="earliest",
            ack_policy=AckPolicy.ACK,
        )
        async def some(numbers: list[int]) -> None:
            seen.update(numbers)
            await app.publish_batch(*[str(number) for number in numbers], topic=target)

        return app

    async def body() -> None:
        async with member() as first:
            await first.start()
            async with member() as second:
                await second.start()
                await until(lambda: len(seen) >= COUNT // 3)
            await until(lambda: len(seen) == COUNT)

    run(body())
    found = results(broker, target)
    assert set(found) == set(range(COUNT))
    assert found == seen
