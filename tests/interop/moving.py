"""The contents of a data directory before it moves to another broker, and reading them back.

Every codec, transactions committed, aborted and open, a compacted topic with tombstones, records
deleted at the front, a consumer group, an idempotent producer, topic settings.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from kbroker.testing import wait_until

T = TypeVar("T")

# What a broker says that has its name in the metadata and is not ready.
STARTING = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_LEADER_FOR_PARTITION,
}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# Negative hashes: with the sign bit cleared, another of three partitions would have these names.
GROUP = "moved-group"
LEFT_OPEN = "still-open"
COMPACTED = "compacted"
SETTINGS = {"retention.ms": "-1", "max.message.bytes": "1234567"}
OLD = {"format-0": "0.9.0", "format-1": "0.10.2"}


class Partition(NamedTuple):
    """A partition as clients see it: its bounds, and a line for each record."""

    low: int
    high: int
    all_records: list[Any]
    committed: list[int]


@contextmanager
def admin(bootstrap: str) -> Iterator[AdminClient]:
    """Futures are void once their client is closed: wait inside the block."""
    yield (client := AdminClient({"bootstrap.servers": bootstrap}))
    del client


def create(bootstrap: str, topics: Mapping[str, tuple[int, Mapping[str, str]]]) -> None:
    """``{name: (partitions, settings)}``."""
    wanted = [
        NewTopic(name, count, 1, config=dict(config)) for name, (count, config) in topics.items()
    ]
    with admin(bootstrap) as client:
        # A Kafka that has just started may not know its controller, and librdkafka asks once.
        wait_until(lambda: client.list_topics(timeout=5).controller_id >= 0, 20, "a controller")
        for done in client.create_topics(wanted, operation_timeout=20).values():
            done.result()
        wait_until(
            lambda: topics.keys() <= client.list_topics(timeout=5).topics.keys(),
            20,
            "the topics are there",
        )


def producer(bootstrap: str, **config: Any) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 1,
            **{key.replace("_", "."): value for key, value in config.items()},
        }
    )


def send(
    bootstrap: str,
    topic: str,
    values: Iterable[bytes | None],
    *,
    keys: Iterable[bytes | None] = (),
    partition: int = 0,
    **config: Any,
) -> None:
    """Each value in its own batch, so that segments have many."""
    client = producer(bootstrap, **config)
    rest = iter(keys)
    for number, value in enumerate(values):
        headers = [("number", b"%d" % number), ("none", None)] if topic not in OLD else None
        client.produce(topic, value, next(rest, None), partition, headers=headers)
        if number % 3 == 2:
            assert client.flush(20) == 0
    assert client.flush(20) == 0


def transaction(bootstrap: str, name: str, topic: str, end: str, count: int = 3) -> Producer:
    """A transaction that is to be committed, aborted, or left ``open``."""
    # One that is left open outlives a slow machine: the broker ends it no sooner than this.
    client = producer(bootstrap, transactional_id=name, transaction_timeout_ms=900_000)
    client.init_transactions(20)
    client.begin_transaction()
    for number in range(count):
        client.produce(topic, f"{name} {end} {number}".encode(), partition=0)
    assert client.flush(20) == 0
    if end == "commit":
        client.commit_transaction(20)
    elif end == "abort":
        client.abort_transaction(20)
    return client


def fill(bootstrap: str, *, broker_id: int, old_formats: bool, rounds: int = 1) -> list[Any]:
    """Fill a new broker. Returns clients that must live until the broker stops."""
    segments = {"segment.bytes": "20000"}
    topics: dict[str, tuple[int, dict[str, str]]] = {
        "codecs": (len(CODECS), {**SETTINGS, **segments}),
        "transactions": (1, {"segment.bytes": "16384"}),
        COMPACTED: (
            1,
            {"cleanup.policy": "compact", "segment.ms": "300", "min.cleanable.dirty.ratio": "0.01"},
        ),
        "cut": (1, segments),
        "empty": (2, {}),
    }
    if old_formats:
        for name, version in OLD.items():
            topics[name] = (4, {"message.format.version": version, **segments})
    create(bootstrap, topics)
    for turn in range(rounds):
        fill_round(bootstrap, turn, old_formats)
    with admin(bootstrap) as client:
        for done in client.delete_records([TopicPartition("cut", 0, 25)]).values():
            done.result()
    commit_offsets(bootstrap, {("codecs", n): 5 + n for n in range(len(CODECS))})
    change = ConfigResource(
        ResourceType.BROKER,
        str(broker_id),
        incremental_configs=[
            ConfigEntry(
                "log.cleaner.backoff.ms",
                "14321",
                incremental_operation=AlterConfigOpType.SET,
            )
        ],
    )
    with admin(bootstrap) as client:
        for done in client.incremental_alter_configs([change]).values():
            done.result()
    return [transaction(bootstrap, LEFT_OPEN, "transactions", "open")]


def fill_round(bootstrap: str, turn: int, old_formats: bool) -> None:
    for number, codec in enumerate(CODECS):
        values = [b"%d %d " % (turn, n) + os.urandom(40).hex().encode() * 9 for n in range(60)]
        send(
            bootstrap, "codecs", values, partition=number, compression_type=codec,
            enable_idempotence=True,
        )  # fmt: skip
    for number in range(6):
        end = "abort" if number % 3 == 0 else "commit"
        transaction(bootstrap, f"ended-{number % 2}", "transactions", end)
    for again in range(4):
        keys = [b"key %d" % n for n in range(12)]
        values = [None if n == 7 else b"%d %d %d" % (turn, again, n) for n in range(12)]
        send(bootstrap, COMPACTED, values, keys=keys)
    send(bootstrap, "cut", [b"%d cut %d" % (turn, n) * 40 for n in range(60)])
    if old_formats:
        for name in OLD:
            for number, codec in enumerate(CODECS[:4]):
                values = [b"%s %d " % (codec.encode(), n) + b"abcdef" * 60 for n in range(50)]
                keys = [b"k%d" % (n % 7) for n in range(50)]
                send(bootstrap, name, values, keys=keys, partition=number, compression_type=codec)


def once_settled(call: Callable[[], T]) -> T:
    """The result of a broker that has just started, once it leads and has loaded everything."""

    def attempt() -> tuple[T]:
        try:
            return (call(),)
        except KafkaException as error:
            if error.args[0].code() not in STARTING:
                raise
            raise AssertionError(str(error)) from error

    return wait_until(attempt, 60, "the broker has settled")[0]


def commit_offsets(bootstrap: str, offsets: Mapping[tuple[str, int], int]) -> None:
    rows = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
    wanted = [ConsumerGroupTopicPartitions(GROUP, rows)]

    def commit() -> None:
        with admin(bootstrap) as client:
            for done in client.alter_consumer_group_offsets(wanted).values():
                done.result()

    def committed() -> bool:
        once_settled(commit)
        return committed_offsets(bootstrap) == dict(offsets)

    wait_until(committed, 20, "the offsets are committed")


def committed_offsets(bootstrap: str, group: str = GROUP) -> dict[tuple[str, int], int]:
    """The committed offsets of a group in all partitions.

    A consumer asks for them: librdkafka 2.16.1 crashes where an admin client does and the response
    is NOT_COORDINATOR.
    """

    def listed() -> list[TopicPartition]:
        with closing(reader(bootstrap, "read_committed", group)) as client:
            topics = client.list_topics(timeout=10).topics
            places = [TopicPartition(name, n) for name in topics for n in topics[name].partitions]
            return list(client.committed(places, timeout=20))

    rows = once_settled(listed)
    return {(row.topic, row.partition): row.offset for row in rows if row.offset >= 0}


def topic_ids(bootstrap: str) -> dict[str, str]:
    with admin(bootstrap) as client:
        names = list(client.list_topics(timeout=10).topics)
        found = client.describe_topics(TopicCollection(names))
        return {name: str(done.result().topic_id) for name, done in found.items()}


def topic_settings(bootstrap: str, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The topic-level configs of each topic."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    own = 1  # Source.DYNAMIC_TOPIC
    with admin(bootstrap) as client:
        return {
            resource.name: {
                entry.name: entry.value for entry in done.result().values() if entry.source == own
            }
            for resource, done in client.describe_configs(resources).items()
        }


def bounds_of(client: Consumer, place: tuple[str, int]) -> tuple[int, int]:
    low, high = client.get_watermark_offsets(TopicPartition(*place), timeout=20)
    return low, high


def read_all(bootstrap: str) -> dict[tuple[str, int], Partition]:
    """Everything in every partition, internal topics too."""
    every = reader(bootstrap, "read_uncommitted")
    places = [
        (name, number)
        for name, topic in sorted(every.list_topics(timeout=20).topics.items())
        for number in sorted(topic.partitions)
    ]
    bounds = {place: once_settled(partial(bounds_of, every, place)) for place in places}
    starts = {place: low for place, (low, _) in bounds.items()}
    rows = records(every, starts)
    every.close()
    only_committed = reader(bootstrap, "read_committed")
    seen = records(only_committed, starts)
    only_committed.close()
    return {
        place: Partition(*bounds[place], rows[place], [row[0] for row in seen[place]])
        for place in places
    }


class Seen:
    """A broker's responses to its clients. with_ids: Kafka 2.7 has no topic ids."""

    def __init__(self, bootstrap: str, with_ids: bool = True) -> None:
        self.records = read_all(bootstrap)
        self.records[COMPACTED, 0] = newest_of_each_key(self.records[COMPACTED, 0])
        self.offsets = committed_offsets(bootstrap)
        self.settings = topic_settings(bootstrap, {name for name, _ in self.records})
        self.ids = topic_ids(bootstrap) if with_ids else {}


def reader(bootstrap: str, isolation: str, group: str = "reader") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "check.crcs": True,
            "fetch.wait.max.ms": 20,
        }
    )


def records(
    client: Consumer, starts: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], list[Any]]:
    """(offset, timestamp, key, value digest, headers) of each record, up to the log end offsets."""
    client.assign([TopicPartition(*place, start) for place, start in starts.items()])
    rows: dict[tuple[str, int], list[Any]] = {place: [] for place in starts}
    unfinished = set(starts)
    while unfinished:
        message = client.poll(20)
        assert message is not None, f"nothing comes from {sorted(unfinished)}"
        place = (message.topic(), message.partition())
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, f"{place}: {error}"
            unfinished.discard(place)
            continue
        rows[place].append(
            (
                message.offset(),
                message.timestamp(),
                message.key(),
                digest(message.value()),
                message.headers(),
            )
        )
    return rows


def newest_of_each_key(partition: Partition) -> Partition:
    """The records that a cleaner must keep, however often it runs."""
    newest = {row[2]: row for row in partition.all_records}
    rows = sorted(newest.values(), key=lambda row: row[0])
    kept = {row[0] for row in rows}
    return partition._replace(
        all_records=rows, committed=[offset for offset in partition.committed if offset in kept]
    )


def digest(value: bytes | None) -> str | None:
    return None if value is None else hashlib.sha1(value).hexdigest()[:12]


def log_bytes(log_dirs: Iterable[Path]) -> dict[str, bytes]:
    """Every ``.log`` file by its path, except KRaft's metadata log."""
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for log_dir in log_dirs
        for path in log_dir.glob("*/*.log")
        if not path.parent.name.startswith("__cluster_metadata")
    }


def every_file(log_dirs: Iterable[Path]) -> dict[str, bytes]:
    """Every file of data directories, without the unused ends of indexes."""
    return {
        str(path.relative_to(log_dir.parent)): path.read_bytes().rstrip(b"\0")
        for log_dir in log_dirs
        for path in log_dir.rglob("*")
        if path.is_file()
    }


def broker_settings(bootstrap: str, broker_id: int) -> dict[str, str]:
    """The dynamic settings of a broker."""
    dynamic = 2
    resource = ConfigResource(ResourceType.BROKER, str(broker_id))
    with admin(bootstrap) as client:
        (done,) = client.describe_configs([resource]).values()
        rows = done.result().values()
    return {entry.name: entry.value for entry in rows if entry.source == dynamic}


def log_start(log_dirs: Iterable[Path], topic: str) -> int:
    """The log start offset of partition 0 in the checkpoints on disk; 0 without a line."""
    for log_dir in log_dirs:
        for line in (log_dir / "log-start-offset-checkpoint").read_text().splitlines():
            if line.startswith(f"{topic} 0 "):
                return int(line.split()[2])
    return 0


def await_topics(bootstrap: str, names: Iterable[str]) -> None:
    """Wait until a broker that has just started leads every partition of these topics."""
    wanted = set(names)

    def led() -> bool:
        with admin(bootstrap) as client:
            found = client.list_topics(timeout=10).topics
        return wanted <= found.keys() and all(
            partition.leader >= 0
            for name in wanted
            for partition in found[name].partitions.values()
        )

    wait_until(led, 30, "every partition has a leader")


def await_compaction(bootstrap: str) -> None:
    """Wait until the cleaner has run; each record sent makes room for a new segment."""

    def compacted() -> bool:
        send(bootstrap, COMPACTED, [b"again"], keys=[b"key 1"])
        client = reader(bootstrap, "read_uncommitted")
        low, high = client.get_watermark_offsets(TopicPartition(COMPACTED, 0), timeout=20)
        rows = records(client, {(COMPACTED, 0): low})[COMPACTED, 0]
        client.close()
        return len(rows) < high - low - 20

    wait_until(compacted, 120, "the topic is compacted")
