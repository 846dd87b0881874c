"""The consumer for asyncio: calls are awaited, cancelled ones lose nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("pyarrow")

from support.clients import client_topics as topics

from kbroker.client.aio import AsyncKafkaConsumer
from kbroker.client.connections.cluster import Cluster
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

SETTINGS = {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0}
WAIT_S = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running, Cluster(running.bootstrap) as cluster:
        topics.create(cluster, "t", 2)
        topics.write(cluster, "t", 100)
        yield running


def consumer(broker: Broker, **settings) -> AsyncKafkaConsumer:
    settings.setdefault("auto_offset_reset", "earliest")
    return AsyncKafkaConsumer(bootstrap_servers=broker.bootstrap, **settings)


def test_a_member_reads_commits_and_its_listener_may_await(broker):
    heard = []

    async def run() -> None:
        async with consumer(broker, group_id="aio", enable_auto_commit=False) as reader:

            class Listener:
                async def on_partitions_assigned(self, partitions):
                    heard.append(("assigned", len(await reader.committed(partitions))))

                async def on_partitions_revoked(self, partitions):
                    await reader.commit()
                    heard.append(("revoked", len(partitions)))

            await reader.subscribe(["t"], listener=Listener())
            found = []
            async for record in reader:
                found.append(int(record.value))
                if len(found) == 100:
                    break
            assert sorted(found) == list(range(100))

    asyncio.run(asyncio.wait_for(run(), WAIT_S))
    assert heard == [("assigned", 2), ("revoked", 2)]


def test_a_cancelled_poll_ends_at_once_and_loses_nothing(broker):
    async def run() -> None:
        async with consumer(broker) as reader:
            await reader.assign([("t", 0), ("t", 1)])
            found = []
            deadline = time.monotonic() + WAIT_S
            while time.monotonic() < deadline:
                poll = asyncio.ensure_future(reader.poll(WAIT_S, 7))
                await asyncio.sleep(0)
                if len(found) % 2:
                    poll.cancel()
                try:
                    found += [int(record.value) for record in await poll]
                except asyncio.CancelledError:
                    pass
                if len(found) >= 100:
                    break
            assert sorted(found) == list(range(100))
            waiting = asyncio.ensure_future(reader.poll(3600))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await reader.poll(0) == []
            assert await reader.position(("t", 0)) >= 0

    asyncio.run(asyncio.wait_for(run(), WAIT_S))
