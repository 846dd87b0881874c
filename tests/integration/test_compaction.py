"""Compaction in a running broker, as seen by clients, coordinators and metrics."""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from support.running.grids import some_of
from support.storage.message_sets import OldMessage, set_bytes, wrapper_bytes

from kbroker.record.compression import GZIP
from kbroker.testing import Broker
from kbroker.testing.waiting import wait_until

pytestmark = pytest.mark.integration

SETTINGS = {
    "log.cleaner.backoff.ms": 50,
    "log.cleaner.dedupe.buffer.size": 8 << 20,
    "offsets.topic.num.partitions": 2,
    "offsets.topic.segment.bytes": 4096,
    "transaction.state.log.num.partitions": 2,
}
TOPIC = {
    "cleanup.policy": "compact",
    "segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "0",
}


TABLES = (f"table-{number}" for number in count())


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(SETTINGS, directory=tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """For tests that damage and restart nothing, each with a table of its own."""
    with Broker(SETTINGS, directory=tmp_path_factory.mktemp("shared")) as running:
        yield running


@pytest.fixture
def table() -> str:
    return next(TABLES)


def create(broker: Broker, topic: str = "table", **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    new = NewTopic(topic, 1, 1, config={**TOPIC, **config})
    for future in admin.create_topics([new]).values():
        future.result(30)


def alter(broker: Broker, kind: ResourceType, name: str, **settings: str) -> None:
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in settings.items()
    ]
    change = ConfigResource(kind, name, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.incremental_alter_configs([change]).values():
        future.result(30)


def produce(
    broker: Broker, rounds: int, keys: int = 50, topic: str = "table", **config: object
) -> dict[bytes, bytes | None]:
    """Produce ``rounds`` values of every key, the last of each tenth being a tombstone; returns the
    last values.
    """
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 1, **config})
    last: dict[bytes, bytes | None] = {}
    for number in range(rounds):
        for key in range(keys):
            name = b"key-%d" % key
            is_last = number + 1 == rounds
            last[name] = None if is_last and key % 10 == 0 else b"%d-" % number + b"v" * 30
            producer.produce(topic, key=name, value=last[name])
        assert producer.flush(30) == 0
    return last


def read_all(broker: Broker, topic: str = "table", **config: object) -> list[tuple]:
    """(offset, key, value) of every record, read as a client does."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "r", "enable.auto.commit": False,
         "enable.partition.eof": True, "auto.offset.reset": "earliest", **config}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while True:
        message = consumer.poll(30)
        assert message is not None, "no end of the partition within 30 s"
        if message.error():
            break
        found.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return found


def metric(broker: Broker, name: str) -> float:
    with urllib.request.urlopen(f"{broker.metrics_url}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def log_bytes(broker: Broker, topic: str = "table") -> int:
    paths = Path(broker.data_dir, f"{topic}-0").glob("*.log")
    return sum(path.stat().st_size for path in paths)  # while nothing is compacted


def wait_for_end(broker: Broker, topic: str = "table") -> None:
    """Wait until all but the active segment of the topic is compacted."""
    path = Path(broker.data_dir, "cleaner-offset-checkpoint")

    def is_clean() -> bool:
        if not path.exists():
            return False
        done = [line.split() for line in path.read_text().splitlines()[2:]]
        bases = sorted(p.stem for p in Path(broker.data_dir, f"{topic}-0").glob("*.log"))
        return [topic, "0", str(int(bases[-1]))] in done

    wait_until(is_clean, timeout=60)


def test_compaction_leaves_the_last_value_of_each_key(shared, table):
    broker = shared
    create(broker, table)
    last = produce(broker, rounds=40, topic=table)
    written = 40 * sum(len(key) + 30 for key in last)  # at least; compaction is in progress
    wait_for_end(broker, table)
    records = read_all(broker, table)
    assert {key: value for _, key, value in records} == last
    assert [offset for offset, _, _ in records] == sorted({offset for offset, _, _ in records})
    assert log_bytes(broker, table) < written
    assert len(records) < 40 * 50 / 2
    wait_until(lambda: metric(broker, "kbroker_log_cleaner_runs_total") >= 1)
    assert metric(broker, "kbroker_log_cleaner_uncleanable_partitions") == 0


@pytest.mark.parametrize("codec", some_of(["gzip", "snappy", "lz4", "zstd"], ["zstd"]))
def test_compaction_of_compressed_batches_keeps_last_values(shared, table, codec):
    create(shared, table, **{"segment.bytes": "4000"})
    last = produce(shared, 30, topic=table, **{"compression.type": codec})
    wait_for_end(shared, table)
    assert {key: value for _, key, value in read_all(shared, table)} == last


def test_compaction_of_transactions_drops_what_was_aborted(shared, table):
    broker = shared
    create(broker, table, **{"segment.bytes": "4000"})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
    producer.init_transactions(30)
    for number in range(20):
        producer.begin_transaction()
        for key in range(10):
            name = b"k%d" % key if number % 2 else b"aborted-%d" % key
            producer.produce(table, key=name, value=b"%d" % number + b"x" * 40)
        assert producer.flush(30) == 0
        if number % 2:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    produce(broker, 4, topic=table)
    wait_for_end(broker, table)
    uncommitted = read_all(broker, table, **{"isolation.level": "read_uncommitted"})
    values = {
        key: value for _, key, value in uncommitted if key.startswith(b"k") and b"-" not in key
    }
    assert values == {b"k%d" % key: b"19" + b"x" * 40 for key in range(10)}
    assert not [key for _, key, _ in uncommitted if key.startswith(b"aborted")]
    producer.begin_transaction()
    producer.produce(table, key=b"k0", value=b"more")
    producer.commit_transaction(30)


def test_compaction_of_offsets_keeps_committed_offsets(broker):
    create(broker, "data", **{"cleanup.policy": "delete"})
    produce(broker, 2, topic="data")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    for offset in range(600):
        consumer.commit(offsets=[TopicPartition("data", 0, offset % 90)], asynchronous=False)
    consumer.commit(offsets=[TopicPartition("data", 0, 77)], asynchronous=False)
    path = Path(broker.data_dir, "cleaner-offset-checkpoint")
    wait_until(lambda: path.exists() and "__consumer_offsets" in path.read_text(), timeout=60)
    wait_until(lambda: metric(broker, "kbroker_log_cleaner_runs_total") >= 1, timeout=60)
    assert consumer.committed([TopicPartition("data", 0)], 30)[0].offset == 77
    consumer.close()
    for _ in range(2):
        broker.restart()
        again = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        assert again.committed([TopicPartition("data", 0)], 30)[0].offset == 77
        again.close()


def test_compaction_sets_a_damaged_partition_aside_and_continues(broker):
    create(broker, "bad", **{"cleanup.policy": "delete", "segment.bytes": "4000"})
    create(broker, "good")
    produce(broker, 10, topic="bad")
    first = Path(broker.data_dir, "bad-0", f"{0:020d}.log")
    data = bytearray(first.read_bytes())
    data[200] ^= 1
    first.write_bytes(data)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, "bad", incremental_configs=[entry])
    for future in admin.incremental_alter_configs([change]).values():
        future.result(30)
    wait_until(
        lambda: metric(broker, "kbroker_log_cleaner_uncleanable_partitions") == 1, timeout=20
    )
    wait_until(lambda: "bad-0 cannot be compacted" in broker.log_text)
    last = produce(broker, 40, topic="good")
    wait_for_end(broker, "good")
    assert {key: value for _, key, value in read_all(broker, "good")} == last


def test_compaction_of_a_deleted_topic_starts_again_with_the_next(shared, table):
    broker = shared
    create(broker, table)
    produce(broker, 40, topic=table)
    wait_for_end(broker, table)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([table])[table].result(30)
    path = Path(broker.data_dir, "cleaner-offset-checkpoint")
    wait_until(lambda: f"{table} 0" not in path.read_text(), timeout=60)
    create(broker, table)
    last = produce(broker, 40, topic=table)
    wait_for_end(broker, table)
    assert {key: value for _, key, value in read_all(broker, table)} == last


def test_compaction_leaves_what_a_restart_can_open(broker):
    create(broker)
    last = produce(broker, 40)
    wait_for_end(broker)
    records = read_all(broker)
    broker.restart()
    assert read_all(broker) == records
    broker.kill_all()
    broker.start()
    assert {key: value for _, key, value in read_all(broker)} == last


def test_compaction_by_several_threads_shares_a_throttle_that_can_be_changed(tmp_path):
    settings = {
        **SETTINGS,
        "log.cleaner.threads": 3,
        "log.cleaner.io.max.bytes.per.second": 100,  # minutes, while this looks
    }
    topics = [f"table-{number}" for number in range(5)]
    with Broker(settings, directory=tmp_path) as broker:
        last = {}
        for topic in topics:
            create(broker, topic)
            last[topic] = produce(broker, 20, topic=topic)
        wait_until(lambda: broker.log_text.count("compacting up to") == 3, timeout=60)
        assert "compacted offsets" not in broker.log_text

        rate = {"log.cleaner.io.max.bytes.per.second": "100000000"}
        alter(broker, ResourceType.BROKER, "0", **rate)
        for topic in topics:
            wait_for_end(broker, topic)
            assert {key: value for _, key, value in read_all(broker, topic)} == last[topic]


@pytest.mark.parametrize(
    ("held_back_by", "freed_by"),
    [
        ({"min.compaction.lag.ms": "3600000"}, {"min.compaction.lag.ms": "0"}),
        pytest.param(
            {"min.cleanable.dirty.ratio": "1"},
            {"max.compaction.lag.ms": "1"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"min.cleanable.dirty.ratio": "1"},
            {"min.cleanable.dirty.ratio": "0.01"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_compaction_follows_a_topic_setting_that_changes(shared, table, held_back_by, freed_by):
    broker, other = shared, f"{table}-other"
    create(broker, table, **held_back_by)
    last = produce(broker, 20, topic=table)
    create(broker, other)
    produce(broker, 20, topic=other)
    # The cleaner has checked both, and a log without new records is not checked again.
    wait_for_end(broker, other)
    assert len(read_all(broker, table)) == 20 * 50

    alter(broker, ResourceType.TOPIC, table, **freed_by)
    wait_for_end(broker, table)
    assert {key: value for _, key, value in read_all(broker, table)} == last


def test_messages_of_a_broker_before_this_one_are_compacted(broker: Broker) -> None:
    """Formats 0 and 1, below current batches."""
    create(broker)
    broker.stop()
    rows = [OldMessage(n, -1, b"key-%d" % (n % 7), b"old-%d" % n) for n in range(60)]
    data = set_bytes(0, rows[:20]) + wrapper_bytes(0, GZIP, rows[20:40])
    data += wrapper_bytes(1, GZIP, [row._replace(timestamp=1000) for row in rows[40:]])
    directory = broker.data_dir / "table-0"
    for path in directory.glob("0*"):
        path.unlink()
    (directory / f"{0:020}.log").write_bytes(data)
    (directory / f"{60:020}.log").write_bytes(b"")
    broker.restart()

    produce(broker, 2, keys=3)
    wait_until(lambda: len(read_all(broker)) == 7 + 6, 60, "the old messages are compacted")

    found = read_all(broker)
    kept = {row.key: (row.offset, row.value) for row in rows}
    assert {key: (offset, value) for offset, key, value in found if offset < 60} == kept
    assert "is set aside" not in broker.log_text


def test_start_far_from_the_last_run_compacts_nothing_until_its_clock_is_known(
    broker: Broker,
) -> None:
    """The machine may have started with a wrong clock, by which every tombstone is due."""
    create(broker, **{"min.cleanable.dirty.ratio": "1.0"})
    produce(broker, 40)
    assert broker.stop() == 0
    for path in broker.data_dir.iterdir():
        if path.is_file():
            os.utime(path, (time.time() - 86_400,) * 2)
    broker.start()

    alter(broker, ResourceType.TOPIC, "table", **{"min.cleanable.dirty.ratio": "0.01"})
    wait_until(lambda: "compaction is suspended" in broker.log_text, 20, "the cleaner says so")

    assert broker.stop() == 0
    assert "compacted offsets" not in broker.log_text
    broker.start()  # a moment later: now the directory is known
    wait_until(lambda: "compacted offsets" in broker.log_text, 20, "the log is compacted")
