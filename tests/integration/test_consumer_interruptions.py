"""``KafkaConsumer`` when a partition cannot be read, and when code of the program raises or leaves:
everything else goes on, and nothing that was read and not returned is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kbroker.client import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kbroker.client.admin.topics import NewTopic
from kbroker.client.aio import AsyncKafkaConsumer
from kbroker.client.errors import DeserializationFailed, OffsetOutOfRange
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

WAIT_S = 20.0
PARTITIONS = 5
SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": 100,
    "auto.create.topics.enable": "false",
}


class Leave(BaseException):
    """Such as Ctrl-C, sys.exit or a cancellation."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        with KafkaAdminClient(bootstrap_servers=running.bootstrap) as admin:
            admin.create_topics([NewTopic("t", partitions=PARTITIONS)])
        with KafkaProducer(bootstrap_servers=running.bootstrap) as producer:
            for n in range(100):
                producer.send("t", b"%d" % n, partition=n % PARTITIONS)
        yield running


@pytest.fixture
def consumer(broker: Broker) -> Iterator[Callable[..., KafkaConsumer]]:
    with ExitStack() as stack:

        def make(**settings: object) -> KafkaConsumer:
            settings.setdefault("auto_offset_reset", "earliest")
            made = KafkaConsumer(bootstrap_servers=broker.bootstrap, **settings)
            return stack.enter_context(made)

        yield make


def read_all(consumer: KafkaConsumer, count: int, found: list[int], *expected: type) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        try:
            found += [int(record.value) for record in consumer.poll(0.2)]
        except expected:
            pass


def test_a_partition_that_is_out_of_range_starves_no_other(consumer):
    reader = consumer(auto_offset_reset="none")
    reader.assign([("t", n) for n in range(PARTITIONS)])
    for n in range(PARTITIONS):
        reader.seek(("t", n), 0 if n else 1_000)
    found: list[int] = []

    read_all(reader, 80, found, OffsetOutOfRange)

    assert sorted(found) == [n for n in range(100) if n % PARTITIONS]
    with pytest.raises(OffsetOutOfRange, match="t-0"):
        reader.poll(WAIT_S)


def test_a_record_that_cannot_be_deserialized_starves_no_other_partition(consumer):
    def deserializer(data: bytes) -> bytes:
        if data == b"10":
            raise ValueError("poison")
        return data

    reader = consumer(value_deserializer=deserializer)
    reader.assign([("t", n) for n in range(PARTITIONS)])
    found: list[int] = []

    read_all(reader, 82, found, DeserializationFailed)

    assert sorted(found) == [n for n in range(100) if n % PARTITIONS or n < 10]
    assert reader.position(("t", 0)) == 2


def test_a_record_that_can_be_deserialized_later_is_returned_then(consumer):
    """Such as one whose schema could not be had for a moment."""
    failures = [0]

    def deserializer(data: bytes) -> bytes:
        if data == b"10" and failures[0] < 2:
            failures[0] += 1
            raise ValueError("not yet")
        return data

    reader = consumer(value_deserializer=deserializer)
    reader.assign([("t", 0)])
    found: list[int] = []

    read_all(reader, 20, found, DeserializationFailed)

    assert found == list(range(0, 100, PARTITIONS))
    assert failures == [2]


@pytest.mark.parametrize("call", ["poll", "poll_columns"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, Leave])
def test_what_a_call_had_read_when_a_deserializer_ended_it_is_returned_again(consumer, call, error):
    calls = [0]

    def deserializer(data: bytes) -> int:
        calls[0] += 1
        if calls[0] == 7:
            raise error
        return int(data)

    reader = consumer(value_deserializer=deserializer)
    reader.assign([("t", 0)])
    with pytest.raises(error):
        getattr(reader, call)(WAIT_S)
    assert reader.position(("t", 0)) == 0

    found: list[int] = []
    read_all(reader, 20, found)
    assert found == list(range(0, 100, PARTITIONS))


def test_what_an_interceptor_had_when_it_ended_the_call_is_returned_again(consumer):
    class Interceptor:
        left = 1

        def on_consume(self, records: list) -> list:
            if self.left:
                self.left -= 1
                raise Leave
            return records

    reader = consumer(interceptor_classes=[Interceptor()])
    reader.assign([("t", 0)])
    with pytest.raises(Leave):
        reader.poll(WAIT_S)

    found: list[int] = []
    read_all(reader, 20, found)
    assert found == list(range(0, 100, PARTITIONS))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("when", ["on_partitions_assigned", "on_partitions_revoked"])
def test_a_listener_that_ends_the_call_does_not_end_the_rebalance(consumer, protocol, when):
    class Listener:
        pass

    def ends(partitions: list) -> None:
        if partitions:
            raise Leave

    listener = Listener()
    setattr(listener, when, ends)
    group = f"{protocol}-{when}"
    reader = consumer(group_id=group, group_protocol=protocol)
    reader.subscribe(["t"], listener=listener)
    found: list[int] = []

    read_all(reader, 50, found, Leave)
    other = consumer(group_id=group, group_protocol=protocol)
    other.subscribe(["t"])
    deadline = time.monotonic() + WAIT_S
    shares: tuple[int, int] = (0, 0)
    while min(shares) < 2 or sum(shares) != PARTITIONS:
        assert time.monotonic() < deadline, shares
        for one in (reader, other):
            try:
                one.poll(0.05)
            except Leave:
                pass
        shares = len(reader.assignment()), len(other.assignment())
    listener.__dict__.clear()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("when", ["on_partitions_assigned", "on_partitions_revoked"])
def test_unsubscribe_in_a_listener_reads_nothing_any_more(consumer, protocol, when):
    heard: list[str] = []

    class Listener:
        def on_partitions_assigned(self, partitions: list) -> None:
            self.hear("on_partitions_assigned", partitions)

        def on_partitions_revoked(self, partitions: list) -> None:
            self.hear("on_partitions_revoked", partitions)

        def hear(self, what: str, partitions: list) -> None:
            if what == when and partitions and when not in heard:
                heard.append(what)
                reader.unsubscribe()

    group = f"leave-{protocol}-{when}"
    reader = consumer(group_id=group, group_protocol=protocol)
    reader.subscribe(["t"], listener=Listener())
    others = []
    deadline = time.monotonic() + WAIT_S
    while not heard:
        assert time.monotonic() < deadline
        reader.poll(0.05)
        if reader.assignment() and not others:
            others.append(consumer(group_id=group, group_protocol=protocol))
            others[0].subscribe(["t"])
        for one in others:
            one.poll(0.05)

    assert reader.assignment() == set()
    assert reader.poll(0.3) == []


def test_records_that_only_a_cancelled_call_had_are_neither_committed_nor_lost(broker):
    """However often it is cancelled, and whatever the next call is."""

    async def run(way: str) -> tuple[list[int], int]:
        settings = {"bootstrap_servers": broker.bootstrap, "auto_offset_reset": "earliest"}
        async with AsyncKafkaConsumer(
            group_id=f"cancelled-{way}", enable_auto_commit=False, **settings
        ) as reader:
            await reader.assign([("t", 0)])
            returned: list[int] = []
            for n in range(40):
                read = reader.poll if way == "poll" else reader.poll_columns
                call = asyncio.ensure_future(read(0.5, 3))
                await asyncio.sleep(0.0005 * (n % 8))
                for _ in range(n % 3):
                    call.cancel()
                    await asyncio.sleep(0)
                try:
                    rows = await call
                except asyncio.CancelledError:
                    rows = []
                if way == "poll":
                    returned += [record.offset for record in rows]
                else:
                    returned += [offset for one in rows for offset in one.offsets]
                await reader.commit()
                assert (await reader.position(("t", 0))) == len(returned)
            committed = (await reader.committed([("t", 0)]))["t", 0]
        return returned, committed.offset if committed else 0

    for way in ("poll", "columns"):
        returned, committed = asyncio.run(run(way))
        assert returned == list(range(len(returned)))
        assert committed == len(returned)


@pytest.mark.parametrize(
    "call",
    [
        lambda one: one.seek(("t", 0), 1.5),
        lambda one: one.seek(("t", 0), "7"),
        lambda one: one.seek(("t", "0"), 7),
        lambda one: one.assign(["t"]),
        lambda one: one.assign([(b"t", 0)]),
        lambda one: one.commit_sync({("t", 0): 1.5}),
        lambda one: one.commit_sync({("t", 0): (1, 2)}),
        lambda one: one.position(("t", 0.0)),
        lambda one: one.end_offsets(["t"]),
        lambda one: one.offsets_for_times({("t", 0): 1.5}),
        lambda one: one.pause("t"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_by_the_call_that_gets_it(consumer, call):
    reader = consumer(group_id="types")
    reader.assign([("t", 0)])
    with pytest.raises(TypeError, match=r"not |integer"):
        call(reader)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_topic_that_is_created_or_grows_later_is_read(broker, consumer, protocol):
    """Long before ``metadata.max.age.ms``: as soon as metadata has it."""
    name = f"later-{protocol}"
    reader = consumer(group_id=name, group_protocol=protocol, metadata_max_age_ms=300)
    reader.subscribe([name])
    reader.poll(0.5)
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions=1)])
        with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send(name, b"1", partition=0)
        found: list[int] = []
        read_all(reader, 1, found)
        admin.create_partitions({name: 2})
        with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send(name, b"2", partition=1)
        read_all(reader, 2, found)

    assert found == [1, 2]
