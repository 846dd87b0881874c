"""What the tests of other clients ask of a producer, asked of ``KafkaProducer``."""

from __future__ import annotations

import gc
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.client import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kbroker.client.admin.topics import NewTopic
from kbroker.client.batches.offsets import GroupMetadata
from kbroker.client.errors import (
    ClientClosed,
    ClientError,
    ConsumerState,
    RecordTooLarge,
    RejectedError,
    SettingRefused,
    TransactionState,
)
from kbroker.errors import ErrorCode
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

SETTINGS = {
    "log.retention.ms": -1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": "false",
}
WAIT_S = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


def create(broker: Broker, *names: str, partitions: int = 1, **configs: Any) -> None:
    rows = {key.replace("_", "."): str(value) for key, value in configs.items()}
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions=partitions, configs=rows) for name in names])


def made(broker: Broker, **settings: Any) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=broker.bootstrap, **settings)


def read(broker: Broker, name: str, **settings: Any) -> list[Any]:
    """All records of a topic."""
    settings.setdefault("auto_offset_reset", "earliest")
    with KafkaConsumer(bootstrap_servers=broker.bootstrap, **settings) as consumer:
        consumer.assign([(name, number) for number in consumer.partitions_for(name)])
        ends = consumer.end_offsets(consumer.assignment())
        found = []
        deadline = time.monotonic() + WAIT_S
        while any(consumer.position(key) < end for key, end in ends.items()):
            assert time.monotonic() < deadline, ends
            found += consumer.poll(0.1)
        return found


def committed(broker: Broker, group: str, at: tuple[str, int]) -> int | None:
    with KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=group) as consumer:
        row = consumer.committed([at])[TopicPartition(*at)]
        return None if row is None else row.offset


# -- records


def test_what_is_nothing_stays_apart_from_what_is_empty(broker):
    """Key, value and header: null and empty bytes arrive as they were sent, in order, and headers
    of one name keep their number and order. The metadata tells sizes, -1 for null.
    """
    create(broker, "nothing")
    headers = [("a", b"1"), ("", b""), ("a", None), ("\u00e9", b"\xff"), ("a", b"1")]
    rows = [(None, None), (b"", b""), (b"k", None), (None, b"v")]
    with made(broker) as producer:
        told = [producer.send("nothing", value, key, headers) for key, value in rows]
        sizes = [
            (one.serialized_key_size, one.serialized_value_size)
            for one in (future.result(WAIT_S) for future in told)
        ]
    found = read(broker, "nothing")
    assert [(one.key, one.value) for one in found] == rows
    assert all(list(one.headers) == headers for one in found)
    assert sizes == [(-1, -1), (0, 0), (1, -1), (-1, 1)]


def test_the_time_of_a_record_is_the_one_that_counts_in_its_topic(broker):
    """The given one, the clock without one, and the broker's where the topic says so: the future
    tells the same as the record.
    """
    create(broker, "create-time")
    create(broker, "append-time", message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    with made(broker) as producer:
        futures = [
            producer.send(name, b"x", timestamp_ms=given)
            for name in ("create-time", "append-time")
            for given in (123456, None)
        ]
        told = [future.result(WAIT_S).timestamp for future in futures]
    after = int(time.time() * 1000)
    found = [*read(broker, "create-time"), *read(broker, "append-time")]
    assert [record.timestamp for record in found] == told
    assert told[0] == 123456
    assert all(before <= at <= after for at in told[1:])


def test_records_of_a_key_share_a_partition_also_for_the_next_producer(broker):
    """And records that name a partition are there, whatever their key."""
    create(broker, "keys", partitions=5)
    where: dict[bytes, set[int]] = {}
    for _ in range(2):
        with made(broker) as producer:
            for n in range(40):
                key = b"k%d" % n
                where.setdefault(key, set()).add(producer.send("keys", b"", key).result().partition)
            assert producer.send("keys", b"", b"k0", partition=3).result().partition == 3
    assert {len(some) for some in where.values()} == {1}
    assert len(set.union(*where.values())) == 5


def test_what_cannot_be_sent_fails_alone(broker):
    """A record that is too large, one for a partition that does not exist, one that no serializer
    takes, one of a wrong type: its own future tells, and the others of the batch are written.
    """
    create(broker, "alone")
    with made(broker, max_request_size=5000, linger_ms=50, buffer_memory=1 << 20) as producer:
        first = producer.send("alone", b"1")
        wrong: list[tuple[Any, type[Exception]]] = [
            (producer.send("alone", b"x" * 6000), RecordTooLarge),
            (producer.send("alone", b"x", partition=4), ValueError),
            (producer.send("alone", b"x", partition=-1), ValueError),
            (producer.send("alone", 7), TypeError),
            (producer.send("alone", b"x", headers=[("a", 7)]), TypeError),
            (producer.send("alone", b"x", timestamp_ms=-5), ValueError),
        ]
        last = producer.send("alone", b"2")
        assert (first.result(WAIT_S).offset, last.result(WAIT_S).offset) == (0, 1)
        for future, error in wrong:
            assert isinstance(future.exception(WAIT_S), error), future.exception()


def test_a_topic_that_does_not_exist_is_waited_for_no_longer_than_max_block_ms(broker):
    """The error names the topic; a topic that is created meanwhile takes its records."""
    with made(broker, max_block_ms=300) as producer:
        began = time.monotonic()
        with pytest.raises(ClientError, match="not-there"):
            producer.send("not-there", b"x").result(WAIT_S)
        with pytest.raises(ClientError, match="not-there"):
            producer.partitions_for("not-there")
        assert time.monotonic() - began < WAIT_S / 2
        create(broker, "not-there")
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                assert producer.send("not-there", b"x").result(WAIT_S).offset == 0
                return
            except ClientError:
                assert time.monotonic() < deadline


def test_a_topic_that_was_deleted_and_recreated_takes_records_again(broker):
    """Of a producer that has written to the old one: numbers of batches begin anew there."""
    create(broker, "again")
    with (
        made(broker, metadata_max_age_ms=200) as producer,
        KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin,
    ):
        for _ in range(3):
            producer.send("again", b"old").result(WAIT_S)
        admin.delete_topics(["again"])
        create(broker, "again")
        future = producer.send("again", b"new")
        assert future.result(WAIT_S).offset == 0
    assert [record.value for record in read(broker, "again")] == [b"new"]


def test_a_topic_that_grows_takes_records_in_its_new_partitions(broker):
    """Within the age of metadata, for a producer that knew fewer."""
    create(broker, "grows")
    with (
        made(broker, metadata_max_age_ms=200) as producer,
        KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin,
    ):
        assert producer.send("grows", b"").result(WAIT_S).partition == 0
        admin.create_partitions({"grows": 3})
        deadline = time.monotonic() + WAIT_S
        where = set()
        while where != {0, 1, 2}:
            assert time.monotonic() < deadline, where
            where.add(producer.send("grows", b"", b"%d" % len(where)).result(WAIT_S).partition)
            for n in range(20):
                where.add(producer.send("grows", b"", b"%d" % n).result(WAIT_S).partition)


def test_without_acknowledgement_a_future_tells_no_offset(broker):
    """With acks=0 it ends when the record is sent; the records arrive in order."""
    create(broker, "no-acks")
    with made(broker, acks=0) as producer:
        told = [producer.send("no-acks", b"%d" % n) for n in range(20)]
        assert {future.result(WAIT_S).offset for future in told} == {-1}
    deadline = time.monotonic() + WAIT_S
    while len(found := read(broker, "no-acks")) < 20:
        assert time.monotonic() < deadline
    assert [int(record.value) for record in found] == list(range(20))


def test_a_closed_producer_leaves_no_connection(broker):
    """What it has asked for metadata with is closed, too, not only freed some time later."""
    create(broker, "no-connection")
    gc.collect()  # what others have left
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for settings in ({}, {"transactional_id": "no-connection"}):
            producer = made(broker, **settings)
            assert producer.partitions_for("no-connection") == {0}
            if settings:
                producer.init_transactions()
            producer.close()
            del producer
        gc.collect()
    assert [str(one.message) for one in found] == []


def test_who_waits_for_a_topic_is_told_that_the_producer_was_closed(broker):
    """A thread in ``send`` for a topic that is not there does not wait for ``max.block.ms``."""
    waits = threading.Event()

    class Interceptor:
        def on_send(self, record: Any) -> None:
            waits.set()

    producer = made(broker, interceptor_classes=[Interceptor()])
    told: list[Exception] = []

    def wait() -> None:
        try:
            producer.send("never-there", b"x").result(WAIT_S)
        except Exception as error:
            told.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert waits.wait(WAIT_S)
    producer.close(0)
    thread.join(WAIT_S)
    assert [type(error) for error in told] == [ClientClosed]


@pytest.mark.parametrize("close", [None, 0.0])
def test_what_was_sent_has_ended_when_close_returns(broker, close):
    """All of it: written, or with an error if ``close`` may not wait; then nothing is taken."""
    name = f"closes-{close}"
    create(broker, name)
    producer = made(broker, linger_ms=60_000)
    producer.partitions_for(name)
    futures = [producer.send(name, b"%d" % n) for n in range(100)]
    producer.close(close)
    assert all(future.done() for future in futures)
    written = [int(record.value) for record in read(broker, name)]
    if close is None:
        assert written == list(range(100))
        assert [future.result().offset for future in futures] == written
    else:
        failed = [n for n, future in enumerate(futures) if future.exception() is not None]
        assert sorted(written + failed) == list(range(100))
        assert all(isinstance(futures[n].exception(), ClientError) for n in failed)
    producer.close()
    with pytest.raises(ClientClosed):
        producer.send(name, b"late")


# -- transactions


def values(broker: Broker, name: str) -> list[bytes]:
    return [record.value for record in read(broker, name, isolation_level="read_committed")]


def test_calls_in_a_wrong_order_are_refused_and_change_nothing(broker):
    """Each says what it needs; the transaction that is open goes on."""
    create(broker, "order")
    with made(broker) as plain:
        for call in (plain.init_transactions, plain.begin_transaction, plain.commit_transaction):
            with pytest.raises((TransactionState, SettingRefused), match=r"transactional\.id"):
                call()
    with made(broker, transactional_id="order") as producer:
        for call in (producer.begin_transaction, producer.commit_transaction):
            with pytest.raises(TransactionState):
                call()
        producer.init_transactions()
        for call in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(TransactionState):
                call()
        with pytest.raises(TransactionState):
            producer.send("order", b"outside")
        with pytest.raises(TransactionState):
            producer.send_many("order", [b"outside"])
        with pytest.raises(TransactionState):
            producer.send_offsets_to_transaction({("order", 0): 1}, "group")
        producer.begin_transaction()
        with pytest.raises(TransactionState):
            producer.begin_transaction()
        producer.send("order", b"inside")
        producer.commit_transaction()
    assert values(broker, "order") == [b"inside"]


def test_offsets_of_a_transaction_that_is_aborted_are_not_committed(broker):
    """Neither alone nor beside records, and those committed before stay."""
    create(broker, "offsets")
    at = ("offsets", 0)
    with made(broker, transactional_id="offsets") as producer:
        producer.init_transactions()
        for offset, ends in (
            (5, producer.commit_transaction),
            (9, producer.abort_transaction),
        ):
            for with_record in (True, False):
                producer.begin_transaction()
                if with_record:
                    producer.send("offsets", b"%d" % offset)
                producer.send_offsets_to_transaction({at: offset}, "offsets-group")
                ends()
                assert committed(broker, "offsets-group", at) == 5
    assert values(broker, "offsets") == [b"5"]


def test_offsets_that_cannot_be_committed_are_refused(broker):
    """Values of wrong types by the call; a member that its group does not have by the broker: then
    the transaction can only be aborted, and the next one is committed.
    """
    create(broker, "wrong-offsets")
    at = ("wrong-offsets", 0)
    with made(broker, transactional_id="wrong-offsets") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for offsets, group, error in (
            ({at: "1"}, "g", TypeError),
            ({at: -1}, "g", ValueError),
            ({"wrong-offsets": 1}, "g", TypeError),
            ([at], "g", TypeError),
            ({at: 1}, None, TypeError),
            ({at: 1}, 7, TypeError),
        ):
            with pytest.raises(error):
                producer.send_offsets_to_transaction(offsets, group)
                raise AssertionError((offsets, group))
        producer.send("wrong-offsets", b"1")
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send("wrong-offsets", b"2")
        with pytest.raises(RejectedError) as raised:
            producer.send_offsets_to_transaction({at: 7}, GroupMetadata("nobody", 3, "me", None))
        assert raised.value.code in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
        )
        with pytest.raises(ClientError):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("wrong-offsets", b"3")
        producer.commit_transaction()
    assert values(broker, "wrong-offsets") == [b"1", b"3"]


def test_a_commit_sends_what_lingers(broker):
    """All batches of all partitions are written before the end of the transaction, however long
    they might have waited for more records.
    """
    create(broker, "lingers", partitions=3)
    settings = {"transactional_id": "lingers", "linger_ms": 60_000, "batch_size": 500}
    with made(broker, **settings) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        futures = [producer.send("lingers", b"%d" % n, partition=n % 3) for n in range(300)]
        producer.commit_transaction()
        assert all(future.done() and future.exception() is None for future in futures)
    assert sorted(map(int, values(broker, "lingers"))) == list(range(300))


def test_a_successor_aborts_what_its_predecessor_has_left_open(broker):
    """A program that was restarted goes on under its ``transactional.id``: what the one before has
    not committed is never read, and what is committed then is read at once.
    """
    create(broker, "left-open")
    old = made(broker, transactional_id="left-open")
    old.init_transactions()
    old.begin_transaction()
    old.send("left-open", b"old").result(WAIT_S)
    with made(broker, transactional_id="left-open") as new:
        new.init_transactions()
        new.begin_transaction()
        new.send("left-open", b"new")
        new.commit_transaction()
        assert values(broker, "left-open") == [b"new"]
    with pytest.raises(ClientError):
        old.commit_transaction()
    old.close(0)
    assert values(broker, "left-open") == [b"new"]


def test_a_record_that_no_serializer_takes_leaves_the_transaction_usable(broker):
    """It was never part of it: the program may leave it out, and commit the others."""
    create(broker, "serializes")

    def serialize(value: str) -> bytes:
        return value.encode("ascii")

    settings = {"transactional_id": "serializes", "value_serializer": serialize}
    with made(broker, **settings) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("serializes", "a")
        with pytest.raises(ClientError):
            producer.send("serializes", "\u00e9").result(WAIT_S)
        producer.send("serializes", "b")
        producer.commit_transaction()
    assert values(broker, "serializes") == [b"a", b"b"]


def test_a_chain_of_transactions_copies_each_record_once(broker):
    """Consume, transform and produce, with the offsets in the transaction; the program ends in
    the middle of one, and its successor copies what is left.
    """
    create(broker, "chain-in", "chain-out")
    with made(broker) as producer:
        producer.send_many("chain-in", [b"%d" % n for n in range(100)]).result(WAIT_S)
    for commits in (3, 100):
        consumer = KafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            group_id="chain",
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            max_poll_records=10,
        )
        writer = made(broker, transactional_id="chain")
        writer.init_transactions()
        consumer.subscribe(["chain-in"])
        deadline = time.monotonic() + WAIT_S
        while committed(broker, "chain", ("chain-in", 0)) != 100:
            assert time.monotonic() < deadline
            records = consumer.poll(0.2)
            if not records:
                continue
            writer.begin_transaction()
            for record in records:
                writer.send("chain-out", b"<%s>" % record.value)
            writer.flush()
            if not commits:
                break
            commits -= 1
            group = consumer.group_metadata()
            writer.send_offsets_to_transaction(consumer.positions(), group)
            writer.commit_transaction()
        writer.close(0)
        consumer.close()
    assert values(broker, "chain-out") == [b"<%d>" % n for n in range(100)]
    with pytest.raises((ClientClosed, ConsumerState)):
        consumer.poll(0)
