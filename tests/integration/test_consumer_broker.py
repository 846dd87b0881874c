"""``KafkaConsumer`` against a real broker: alone and in groups of both protocols."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

pytest.importorskip("pyarrow")

from support.clients import client_topics as topics
from support.running.grids import some_of
from support.security.secured import PASSWORDS, Site, address_of

from kbroker.client import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import (
    AuthenticationFailed,
    ClientClosed,
    CommitFailed,
    ConsumerState,
    DeserializationFailed,
    NoOffsetForPartition,
    OffsetOutOfRange,
    RejectedError,
    Timeout,
    UnreachableError,
    WakeupError,
)
from kbroker.record.compression import CODEC_NAMES
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

SETTINGS = {
    "log.retention.ms": -1,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "num.partitions": 2,
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": 100,
    "auto.create.topics.enable": "false",
}
PROTOCOLS = ("classic", "consumer")
WAIT_S = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap, deadline=20) as made:
        yield made


@pytest.fixture
def made(broker: Broker) -> Iterator:
    """Consumers, which are closed at the end."""
    with ExitStack() as stack:

        def make(**settings) -> KafkaConsumer:
            settings.setdefault("auto_offset_reset", "earliest")
            if settings.get("group_protocol", "classic") == "classic":
                settings.setdefault("heartbeat_interval_ms", 100)
            consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, **settings)
            return stack.enter_context(consumer)

        yield make


def read(consumer: KafkaConsumer, count: int) -> list:
    found = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        found += consumer.poll(0.2)
    return found


def poll_until(condition, *consumers) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, [one.assignment() for one in consumers]
        for consumer in consumers:
            consumer.poll(0.05)


def numbers(records) -> list[int]:
    return sorted(int(record.value) for record in records)


@pytest.mark.parametrize("codec", some_of(CODEC_NAMES, ["none", "zstd"]))
def test_records_of_all_codecs_are_read_in_order(broker, cluster, made, codec):
    name = f"codec-{codec}"
    topics.create(cluster, name, 2)
    with KafkaProducer(
        bootstrap_servers=broker.bootstrap, compression_type=codec, batch_size=3000
    ) as producer:
        for n in range(2000):
            producer.send(name, b"%d" % n, b"k%d" % n, {"h": b"%d" % n}, timestamp_ms=1000 + n)
    consumer = made(max_poll_records=300)
    consumer.assign([(name, 0), (name, 1)])

    found = read(consumer, 2000)

    assert numbers(found) == list(range(2000))
    for record in found:
        assert record.key == b"k" + record.value
        assert record.headers == (("h", record.value),)
        assert record.timestamp == 1000 + int(record.value)
    for partition in (0, 1):
        offsets = [record.offset for record in found if record.partition == partition]
        assert offsets == list(range(len(offsets)))
        assert consumer.position((name, partition)) == len(offsets)


def test_columns_and_arrow_have_the_same_records(cluster, made):
    topics.create(cluster, "columns")
    topics.write(cluster, "columns", 3000, codec="lz4", batch_bytes=5000)
    consumer = made()
    consumer.assign([("columns", 0)])

    columns = consumer.poll_columns(WAIT_S)
    assert [int(value) for one in columns for value in one.values] == list(range(3000))
    assert [at for one in columns for at in one.offsets] == list(range(3000))
    assert consumer.position(("columns", 0)) == 3000

    consumer.seek(("columns", 0), 17)
    (batch, *_) = consumer.poll_arrow(WAIT_S, columns=["value", "offset"])
    assert batch.column(1).to_pylist()[:3] == [17, 18, 19]
    assert batch.column(0).to_pylist()[0] == b"17"
    assert consumer.position(("columns", 0)) == 3000
    # In the middle of what was fetched, one way continues where another one stopped.
    consumer.seek(("columns", 0), 0)
    assert [record.offset for record in consumer.poll(WAIT_S, 10)] == list(range(10))
    (batch, *_) = consumer.poll_arrow(WAIT_S, columns=["offset"])
    assert batch.column(0).to_pylist()[0] == 10


@pytest.mark.parametrize("codec", some_of(["none", "lz4", "zstd"], ["lz4"]))
def test_arrays_are_read_and_sent_on(broker, cluster, made, codec):
    """To another topic, with their keys and times, without an object for a record."""
    name = f"arrays-{codec}"
    for topic in (name, f"{name}-copy"):
        topics.create(cluster, topic)
    count = 20_000
    values = [None if n % 50 == 7 else b"%d" % n * (n % 9) for n in range(count)]
    keys = [None if n % 3 else b"k%d" % n for n in range(count)]
    settings = {"bootstrap_servers": broker.bootstrap, "compression_type": codec}
    with KafkaProducer(**settings) as producer:
        for at in range(0, count, 1000):
            part = slice(at, at + 1000)
            producer.send_many(name, values[part], keys[part], timestamp_ms=range(at, at + 1000))
    consumer = made(value_deserializer=lambda value: 1 / 0)
    consumer.assign([(name, 0)])

    with KafkaProducer(**settings) as producer:
        left = count
        while left:
            for columns in consumer.poll_columns(WAIT_S, arrays=True):
                found = columns.arrays
                producer.send_many(
                    f"{name}-copy", found.values, found.keys, timestamp_ms=found.timestamps
                ).result(WAIT_S)
                assert columns.values == [values[at] for at in found.offsets]
                left -= len(columns)
    consumer.seek((name, 0), 5)
    (without_keys, *_) = consumer.poll_columns(WAIT_S, 3, keys=False, arrays=True)
    copy = made()
    copy.assign([(f"{name}-copy", 0)])
    records = read(copy, count)

    assert consumer.position((name, 0)) == 8
    assert (without_keys.arrays.keys, without_keys.arrays.offsets.tolist()) == (None, [5, 6, 7])
    assert [(one.value, one.key, one.timestamp) for one in records] == list(
        zip(values, keys, range(count), strict=True)
    )


def test_seek_pause_and_bounds(broker, cluster, made):
    topics.create(cluster, "moves", 2)
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for n in range(100):
            producer.send("moves", b"%d" % n, partition=n % 2)
    consumer = made()
    consumer.assign([("moves", 0), ("moves", 1)])
    first, second = TopicPartition("moves", 0), TopicPartition("moves", 1)
    ends = consumer.end_offsets([first, second])
    assert sum(ends.values()) == 100
    assert consumer.beginning_offsets([first]) == {first: 0}
    assert consumer.partitions_for("moves") == {0, 1}
    assert consumer.list_topics()["moves"] == {0, 1}

    consumer.pause(first)
    assert consumer.paused() == {first}
    found = read(consumer, ends[second])
    assert {record.partition for record in found} == {1}
    assert consumer.poll(0.1) == []
    consumer.resume(first)
    assert len(read(consumer, ends[first])) == ends[first]
    assert consumer.current_lag(first) == 0

    consumer.seek_to_beginning(first)
    assert consumer.position(first) == 0
    consumer.seek_to_end()
    assert consumer.position(second) == ends[second]
    at = consumer.offsets_for_times({first: 0, second: 1 << 48})
    assert at[first].offset == 0
    assert at[second] is None
    with pytest.raises(ConsumerState):
        consumer.seek(("moves", 7), 0)
    with pytest.raises(RejectedError):
        consumer.partitions_for("absent", timeout=1)


def test_without_an_offset_and_without_a_policy_poll_raises(cluster, made):
    topics.create(cluster, "none")
    topics.write(cluster, "none", 10)
    consumer = made(auto_offset_reset="none", group_id="none")
    consumer.assign([("none", 0)])
    with pytest.raises(NoOffsetForPartition, match="none-0"):
        consumer.poll(WAIT_S)
    consumer.seek(("none", 0), 3)
    assert [record.offset for record in read(consumer, 7)] == list(range(3, 10))
    consumer.seek(("none", 0), 99)
    with pytest.raises(OffsetOutOfRange):
        read(consumer, 1)


def test_an_offset_out_of_range_is_reset_by_the_policy(cluster, made):
    topics.create(cluster, "range")
    topics.write(cluster, "range", 10)
    consumer = made()
    consumer.assign([("range", 0)])
    consumer.seek(("range", 0), 99)
    assert read(consumer, 10)[0].offset == 0


def test_a_record_that_cannot_be_deserialized_is_named_and_can_be_skipped(broker, cluster, made):
    topics.create(cluster, "poison")
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for value in (b"1", b"2", b"x", b"4"):
            producer.send("poison", value)
    consumer = made(value_deserializer=lambda data: int(data))
    consumer.assign([("poison", 0)])

    assert [record.value for record in read(consumer, 2)] == [1, 2]
    for _ in range(2):
        with pytest.raises(DeserializationFailed) as raised:
            consumer.poll(WAIT_S)
        assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("poison", 0, 2)
        assert isinstance(raised.value.__cause__, ValueError)
        assert consumer.position(("poison", 0)) == 2
    consumer.seek(("poison", 0), raised.value.next_offset)
    assert [record.value for record in read(consumer, 1)] == [4]


def test_read_committed_leaves_out_aborted_records_and_waits_for_open_ones(broker, cluster, made):
    topics.create(cluster, "committed")
    with KafkaProducer(
        bootstrap_servers=broker.bootstrap, transactional_id="read-committed"
    ) as producer:
        producer.init_transactions()
        for n, commits in enumerate((True, False, True)):
            producer.begin_transaction()
            producer.send("committed", b"%d" % n)
            producer.flush()
            if commits:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        producer.begin_transaction()
        producer.send("committed", b"9")
        producer.flush()
        reader = made(isolation_level="read_committed")
        reader.assign([("committed", 0)])
        everything = made()
        everything.assign([("committed", 0)])

        assert numbers(read(reader, 2)) == [0, 2]
        assert reader.poll(0.2) == []
        assert numbers(read(everything, 4)) == [0, 1, 2, 9]
        producer.commit_transaction()
    assert numbers(read(reader, 1)) == [9]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_share_partitions_and_continue_where_others_stopped(cluster, made, protocol):
    name = f"shared-{protocol}"
    topics.create(cluster, name, 4)
    topics.write(cluster, name, 400)
    settings = {"group_id": name, "group_protocol": protocol, "enable_auto_commit": False}
    first, second = made(**settings), made(**settings)
    first.subscribe([name])
    assert numbers(read(first, 400)) == list(range(400))
    first.commit_sync()

    second.subscribe([name])
    poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
    assert not first.assignment() & second.assignment()
    topics.write(cluster, name, 100, first=400)
    found: list = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < 100 and time.monotonic() < deadline:
        found += first.poll(0.05) + second.poll(0.05)
    assert numbers(found) == list(range(400, 500))
    second.commit_sync()

    second.close()
    poll_until(lambda: len(first.assignment()) == 4, first)
    committed = first.committed([(name, n) for n in range(4)])
    assert sum(row.offset for row in committed.values() if row) <= 500


@pytest.mark.parametrize(
    "strategy",
    some_of(
        ["range", "roundrobin", "sticky", "cooperative-sticky"], ["range", "cooperative-sticky"]
    ),
)
def test_listeners_hear_of_partitions_that_come_and_go(cluster, made, strategy):
    name = f"heard-{strategy}"
    topics.create(cluster, name, 4)
    settings = {"group_id": name, "partition_assignment_strategy": strategy}
    heard: list[tuple[str, set]] = []

    class Listener:
        def on_partitions_assigned(self, partitions):
            heard.append(("assigned", {one.partition for one in partitions}))

        def on_partitions_revoked(self, partitions):
            heard.append(("revoked", {one.partition for one in partitions}))

    first, second = made(**settings), made(**settings)
    first.subscribe([name], listener=Listener())
    poll_until(lambda: len(first.assignment()) == 4, first)
    second.subscribe([name])
    poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
    kept = {one.partition for one in first.assignment()}

    assert heard[0] == ("assigned", {0, 1, 2, 3})
    if strategy == "cooperative-sticky":
        # What it keeps is never revoked.
        assert ("revoked", {0, 1, 2, 3} - kept) in heard
        assert not any(what == "revoked" and some & kept for what, some in heard)
    else:
        assert heard[1] == ("revoked", {0, 1, 2, 3})
        assert ("assigned", kept) in heard


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pattern_takes_topics_in_that_are_created_later(cluster, made, protocol):
    prefix = f"matched-{protocol}"
    topics.create(cluster, f"{prefix}-a")
    consumer = made(group_id=prefix, group_protocol=protocol, metadata_max_age_ms=200)
    consumer.subscribe(pattern=f"{prefix}-.*")
    poll_until(lambda: len(consumer.assignment()) == 1, consumer)
    topics.create(cluster, f"{prefix}-b", 2)
    poll_until(lambda: len(consumer.assignment()) == 3, consumer)
    assert consumer.subscription() == {f"{prefix}-a", f"{prefix}-b"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_that_does_not_poll_loses_its_partitions(cluster, made, protocol):
    name = f"late-{protocol}"
    topics.create(cluster, name, 2)
    topics.write(cluster, name, 10)
    settings = {
        "group_id": name,
        "group_protocol": protocol,
        "max_poll_interval_ms": 700,
        "enable_auto_commit": False,
    }
    if protocol == "classic":
        settings["session_timeout_ms"] = 6000
    lost: list = []

    class Listener:
        def on_partitions_lost(self, partitions):
            lost.extend(partitions)

    late, other = made(**settings), made(**{**settings, "max_poll_interval_ms": 60_000})
    late.subscribe([name], listener=Listener())
    poll_until(lambda: len(late.assignment()) == 2, late)
    other.subscribe([name])
    poll_until(lambda: len(other.assignment()) == 2, other)
    with pytest.raises((CommitFailed, RejectedError)):
        late.commit_sync({(name, 0): 1})
    poll_until(lambda: len(late.assignment()) == len(other.assignment()) == 1, late, other)
    assert {one.partition for one in lost} == {0, 1}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_static_member_has_its_partitions_again(cluster, made, protocol):
    name = f"static-{protocol}"
    topics.create(cluster, name, 4)
    settings = {"group_id": name, "group_protocol": protocol}
    first = made(**settings, group_instance_id="one")
    second = made(**settings, group_instance_id="two")
    first.subscribe([name])
    second.subscribe([name])
    poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
    had, generation = second.assignment(), first.group_metadata().generation_id
    second.close()
    again = made(**settings, group_instance_id="two")
    again.subscribe([name])
    poll_until(lambda: len(again.assignment()) == 2, first, again)
    assert again.assignment() == had
    if protocol == "classic":
        assert first.group_metadata().generation_id == generation


def test_positions_are_committed_automatically_and_on_close(cluster, made):
    topics.create(cluster, "auto")
    topics.write(cluster, "auto", 50)
    consumer = made(group_id="auto", auto_commit_interval_ms=100, max_poll_records=20)
    consumer.subscribe(["auto"])
    assert len(read(consumer, 20)) == 20
    other = made(group_id="auto")
    key = TopicPartition("auto", 0)
    poll_until(lambda: (other.committed([key])[key] or (0,))[0] >= 20, consumer)
    topics.write(cluster, "auto", 1)
    read(consumer, 1)
    at = consumer.position(key)
    consumer.close()
    assert other.committed([key]) == {key: OffsetAndMetadata(at, "", 0)}
    with pytest.raises(ClientClosed):
        consumer.poll(0)


def test_commits_by_hand_call_back_in_order(cluster, made):
    topics.create(cluster, "by-hand")
    topics.write(cluster, "by-hand", 3)
    told: list = []

    class Interceptor:
        def on_consume(self, records):
            return records[1:]

        def on_commit(self, offsets):
            told.append(offsets[key].offset)

    consumer = made(group_id="by-hand", enable_auto_commit=False, interceptor_classes=[Interceptor])
    consumer.assign([("by-hand", 0)])
    key = TopicPartition("by-hand", 0)
    assert [record.offset for record in consumer.poll(WAIT_S)] == [1, 2]
    done: list = []
    for n in range(3):
        consumer.commit_async({key: (n, f"note {n}")}, lambda *given: done.append(given))
    consumer.commit_sync({key: 7})
    assert [offsets[key].offset for offsets, error in done if error is None] == [0, 1, 2]
    assert consumer.committed([key])[key].offset == 7
    assert told == [0, 1, 2, 7]
    with pytest.raises(ValueError, match="negative"):
        consumer.commit_sync({key: -1})


def test_offsets_of_a_transaction_count_only_for_a_member(broker, cluster, made):
    topics.create(cluster, "exactly")
    topics.write(cluster, "exactly", 4)
    consumer = made(group_id="exactly", enable_auto_commit=False)
    consumer.subscribe(["exactly"])
    assert len(read(consumer, 4)) == 4
    key = TopicPartition("exactly", 0)
    with KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="exactly") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({key: 3}, consumer.group_metadata())
        producer.commit_transaction()
        assert consumer.committed([key])[key].offset == 3

        was = consumer.group_metadata()
        producer.begin_transaction()
        gone = was._replace(generation_id=was.generation_id - 1)
        with pytest.raises(RejectedError, match="ILLEGAL_GENERATION"):
            producer.send_offsets_to_transaction({key: 4}, gone)
        producer.abort_transaction()
    assert consumer.committed([key])[key].offset == 3


def test_wakeup_ends_a_poll_and_another_thread_is_refused(cluster, made):
    topics.create(cluster, "woken")
    consumer = made()
    consumer.assign([("woken", 0)])
    consumer.poll(0)
    timer = threading.Timer(0.2, consumer.wakeup)
    refused: list = []

    def intrude() -> None:
        try:
            consumer.poll(0)
        except ConsumerState as error:
            refused.append(error)

    intruder = threading.Timer(0.1, intrude)
    for thread in (timer, intruder):
        thread.start()
    with pytest.raises(WakeupError):
        consumer.poll(WAIT_S)
    intruder.join()
    assert len(refused) == 1
    assert consumer.poll(0) == []


def test_members_read_over_tls_and_log_in(tmp_path):
    site = Site(tmp_path)
    with Broker({**SETTINGS, **site.settings("PLAINTEXT", "SSL", "SASL_SSL")}) as broker:
        for protocol in ("SSL", "SASL_SSL"):
            members_read(broker, site, protocol)


def members_read(broker, site, protocol):
    topic = f"over-{protocol}"
    host, port = address_of(broker, protocol)
    settings = {
        "bootstrap_servers": f"{host}:{port}",
        "security_protocol": protocol,
        "ssl_ca_location": str(site.ca_file),
    }
    if protocol == "SASL_SSL":
        settings |= {"sasl_mechanism": "PLAIN", "sasl_username": "alice"}
        settings["sasl_password"] = PASSWORDS["alice"]
    host, port = address_of(broker, "PLAINTEXT")
    with Cluster(f"{host}:{port}", deadline=20) as cluster:
        topics.create(cluster, topic)
    with KafkaProducer(**settings) as producer:
        producer.send_many(topic, [b"x" * 1000] * 3000, partition=0).result(60)
    with KafkaConsumer(auto_offset_reset="earliest", group_id="g", **settings) as consumer:
        consumer.subscribe([topic])
        found = read(consumer, 3000)
        consumer.commit_sync()
    assert [record.offset for record in found] == list(range(3000))
    assert {record.value for record in found} == {b"x" * 1000}
    if protocol == "SASL_SSL":
        with KafkaConsumer(**{**settings, "sasl_password": "wrong"}) as consumer:
            consumer.assign([(topic, 0)])
            with pytest.raises(AuthenticationFailed):
                consumer.poll(3600)


def test_brokers_that_cannot_be_reached_are_named():
    consumer = KafkaConsumer(bootstrap_servers="127.0.0.1:1,127.0.0.1:2", group_id="nobody")
    try:
        consumer.assign([("t", 0)])
        for call in (
            lambda: consumer.poll(1.0),
            lambda: consumer.partitions_for("t", timeout=1),
            lambda: consumer.position(("t", 0), timeout=1),
            lambda: consumer.commit_sync({("t", 0): 1}, timeout=1),
        ):
            began = time.monotonic()
            with pytest.raises((UnreachableError, Timeout)) as raised:
                call()
            assert "127.0.0.1:1" in str(raised.value)
            assert "127.0.0.1:2" in str(raised.value)
            assert time.monotonic() - began < WAIT_S
    finally:
        consumer.close(0.1)
