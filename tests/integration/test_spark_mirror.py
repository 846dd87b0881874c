"""The mirror job in one process, between topics of brokers, with kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.clients.markers import await_markers
from support.clients.topics import add_partitions, create_topic, delete_topic
from support.running.grids import some_of
from support.spark.load_records import produce, value_of

from kbroker.client.batches import transactions
from kbroker.client.batches.fetch import RangeFetch, RecordSet
from kbroker.client.connections.cluster import Cluster
from kbroker.spark import pool
from kbroker.spark.direct import InlineRunner
from kbroker.spark.load.commits import LoadError
from kbroker.spark.load.source import BrokerSource
from kbroker.spark.mirror import cli as mirror_cli
from kbroker.spark.mirror import partition_copy, places
from kbroker.spark.mirror.cli import main, mirror_once
from kbroker.spark.mirror.partition_copy import MirrorWork
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def target():  # type: ignore[no-untyped-def]
    with Broker({"log.retention.ms": -1}) as broker:
        yield broker


def copy(source: Broker, target: Broker, topic: str, *more: str) -> int:
    where = ["--from", source.bootstrap, "--to", target.bootstrap, "--topics", topic]
    return main([*where, "--master", "none", *more])


def settle(target: Broker) -> None:
    """Wait until the offsets of the last pass are decided: the next one would not wait for them."""
    with Cluster(target.bootstrap) as cluster:
        await_markers(cluster, "__consumer_offsets")


def read(broker: Broker, topic: str, partitions: int) -> list[list[tuple]]:  # type: ignore[type-arg]
    """(key, value, headers, timestamp) of committed records by partition, in order."""
    with Cluster(broker.bootstrap) as cluster:
        await_markers(cluster, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, one, 0) for one in range(partitions)])
    found: list[list[tuple]] = [[] for _ in range(partitions)]  # type: ignore[type-arg]
    ended: set[int] = set()
    while len(ended) < partitions:
        record = consumer.poll(30)
        assert record is not None
        if record.error():
            ended.add(record.partition())
        else:
            found[record.partition()].append(
                (record.key(), record.value(), record.headers(), record.timestamp()[1])
            )
    consumer.close()
    return found


def test_mirror_keeps_records_partitions_and_batches(
    kbroker_broker: Broker, target: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    for broker in (kbroker_broker, target):
        create_topic(broker.bootstrap, "copied", 2)
    produce(kbroker_broker.bootstrap, "copied", [1200, 50])

    first = copy(kbroker_broker, target, "copied")
    said = capsys.readouterr().out
    produce(kbroker_broker.bootstrap, "copied", [300], first=1200)
    second = copy(kbroker_broker, target, "copied")

    assert (first, second) == (0, 0)
    assert "1,250 records" in said and "0 rewritten" in said
    assert read(target, "copied", 2) == read(kbroker_broker, "copied", 2)


def test_mirror_leaves_aborted_records_behind(kbroker_broker: Broker, target: Broker) -> None:
    for broker in (kbroker_broker, target):
        create_topic(broker.bootstrap, "decided", 1)
    producer = Producer({"bootstrap.servers": kbroker_broker.bootstrap, "transactional.id": "m"})
    producer.init_transactions(30)
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction) * 3):
        producer.begin_transaction()
        producer.produce("decided", value=b"%d" % number)
        producer.flush(30)  # an abort drops unsent records
        end(30)

    copy(kbroker_broker, target, "decided")

    assert [one[1] for one in read(target, "decided", 1)[0]] == [b"0", b"2", b"4"]


def test_mirror_of_nothing_but_aborted_records_continues_behind_them(
    kbroker_broker: Broker, target: Broker
) -> None:
    """A whole fetch without anything to copy: no transaction is open then."""
    for broker in (kbroker_broker, target):
        create_topic(broker.bootstrap, "undone", 1)
    producer = Producer({"bootstrap.servers": kbroker_broker.bootstrap, "transactional.id": "u"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("undone", value=b"never")
    producer.flush(30)  # an abort drops unsent records
    producer.abort_transaction(30)

    first = copy(kbroker_broker, target, "undone")
    produce(kbroker_broker.bootstrap, "undone", [3])
    second = copy(kbroker_broker, target, "undone")

    assert (first, second) == (0, 0)
    assert [one[1] for one in read(target, "undone", 1)[0]] == [value_of(0, n) for n in range(3)]


def test_mirror_into_a_topic_that_grew_continues_where_it_was(
    kbroker_broker: Broker, target: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(kbroker_broker.bootstrap, "grows", 2)
    create_topic(target.bootstrap, "grows", 1)
    produce(kbroker_broker.bootstrap, "grows", [5, 5])
    copy(kbroker_broker, target, "grows")
    add_partitions(target.bootstrap, "grows", 2)
    monkeypatch.setattr(pool, "_POOL", pool.ClusterPool())  # as the next process

    copy(kbroker_broker, target, "grows")

    assert sum(map(len, read(target, "grows", 2))) == 10


class Counting(InlineRunner):
    """tasks: the number of tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = 0

    def run(self, tasks, work, label):  # type: ignore[no-untyped-def]
        self.tasks += len(tasks)
        return super().run(tasks, work, label)


def mirror_of(source: Broker, target: Broker, topic: str) -> tuple[BrokerSource, MirrorWork]:
    work = MirrorWork("mirror", source.bootstrap, {}, target.bootstrap, {})
    return BrokerSource(source.bootstrap, {}, (topic,)), work


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Offsets committed by mirrors from now on."""
    found: list[int] = []
    commit = transactions.commit_offsets

    def watched(cluster, identity, group, offsets):  # type: ignore[no-untyped-def]
        commit(cluster, identity, group, offsets)
        found.extend(offset for offset, _ in offsets.values())

    monkeypatch.setattr(transactions, "commit_offsets", watched)
    return found


@pytest.mark.parametrize(("source_count", "target_count"), [(4, 4), (4, 2)])
def test_mirror_that_finds_nothing_new_begins_no_task_and_no_transaction(
    kbroker_broker: Broker, target: Broker, stored: list[int], source_count: int, target_count: int
) -> None:
    """A thousand partitions took 20 s each time, and a start of Spark."""
    topic = f"quiet-{source_count}-{target_count}"
    create_topic(kbroker_broker.bootstrap, topic, source_count)
    create_topic(target.bootstrap, topic, target_count)
    produce(kbroker_broker.bootstrap, topic, [5] * source_count)
    source, work = mirror_of(kbroker_broker, target, topic)

    counts, tasks = [], []
    for news in ([], [], [3, 1]):
        produce(kbroker_broker.bootstrap, topic, news, first=5)
        runner = Counting()
        counts.append(mirror_once(source, runner, work))
        tasks.append(runner.tasks)
        settle(target)

    assert (counts, tasks) == ([5 * source_count, 0, 4], [source_count, 0, 2])
    assert sorted(stored) == [5] * source_count + [6, 8]
    assert sum(map(len, read(target, topic, target_count))) == 5 * source_count + 4


def test_mirror_without_anything_new_says_so(
    kbroker_broker: Broker, target: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    for broker in (kbroker_broker, target):
        create_topic(broker.bootstrap, "calm", 1)
    produce(kbroker_broker.bootstrap, "calm", [5])

    copy(kbroker_broker, target, "calm")
    first = capsys.readouterr().out
    settle(target)
    copy(kbroker_broker, target, "calm")

    assert first.startswith("calm: 5 records, ") and "nothing new" not in first
    assert capsys.readouterr().out == "nothing new\n"


@pytest.mark.parametrize(
    ("kept_minutes", "age_s", "renews"),
    some_of(
        [(10080, 3600, False), (10080, 7 * 3600, True), (60, 600, False), (60, 1200, True)],
        [(60, 600, False), (60, 1200, True)],
    ),
)
@pytest.mark.slow
def test_mirror_renews_an_offset_long_before_it_expires(
    kbroker_broker: Broker,
    stored: list[int],
    monkeypatch: pytest.MonkeyPatch,
    kept_minutes: int,
    age_s: int,
    renews: bool,
) -> None:
    """Offsets of a group without members expire by their commit time, and a partition without one
    is copied again from its beginning.
    """
    topic = f"aged-{kept_minutes}-{age_s}"
    create_topic(kbroker_broker.bootstrap, topic, 1)
    produce(kbroker_broker.bootstrap, topic, [5])
    with Broker({"offsets.retention.minutes": kept_minutes}) as target:
        create_topic(target.bootstrap, topic, 1)
        then = SimpleNamespace(time_ns=lambda: time.time_ns() - age_s * 10**9)
        monkeypatch.setattr(places, "time", then)
        copy(kbroker_broker, target, topic)
        monkeypatch.setattr(places, "time", time)

        codes = []
        for _ in range(2):
            settle(target)
            codes.append(copy(kbroker_broker, target, topic))

        assert codes == [0, 0]
        assert stored == ([5, 5] if renews else [5])
        assert len(read(target, topic, 1)[0]) == 5


@pytest.mark.parametrize("pending", [5, 9])
def test_mirror_neither_waits_for_an_offset_that_is_undecided_nor_takes_it_for_its_own(
    kbroker_broker: Broker, target: Broker, pending: int
) -> None:
    """A mirror that was killed just before its commit: the partition's task aborts its
    transaction.
    """
    topic = f"undecided-{pending}"
    for broker in (kbroker_broker, target):
        create_topic(broker.bootstrap, topic, 1)
    produce(kbroker_broker.bootstrap, topic, [5])
    assert copy(kbroker_broker, target, topic) == 0
    produce(kbroker_broker.bootstrap, topic, [pending - 5], first=5)
    source, work = mirror_of(kbroker_broker, target, topic)
    bounds = source.bounds()
    topic_id = bounds[topic, 0].topic_id
    with Cluster(target.bootstrap, deadline=20) as cluster:
        killed = transactions.init_producer(cluster, f"kbroker-mirror.mirror.{topic}.0")
        offset = (pending, places.metadata_of(work.source, topic_id))
        transactions.commit_offsets(cluster, killed, "kbroker-mirror.mirror", {(topic, 0): offset})

        same = places.up_to_date(cluster, "mirror", bounds)

    assert same == ({(topic, 0)} if pending == 5 else set())
    assert mirror_once(source, InlineRunner(), work) == pending - 5
    assert len(read(target, topic, 1)[0]) == pending


def test_mirror_gives_damage_no_new_checksum(
    kbroker_broker: Broker, target: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for broker in (kbroker_broker, target):
        create_topic(broker.bootstrap, "damaged", 1)
    produce(kbroker_broker.bootstrap, "damaged", [5], codec="none")

    class Damaging(RangeFetch):
        def __iter__(self) -> Iterator[RecordSet]:
            for found in super().__iter__():
                found.records[100] ^= 1
                yield found

    monkeypatch.setattr(partition_copy, "RangeFetch", Damaging)
    refused = copy(kbroker_broker, target, "damaged")

    assert refused == 1
    assert read(target, "damaged", 1) == [[]]


def test_follower_refuses_a_topic_that_was_recreated(
    kbroker_broker: Broker, target: Broker
) -> None:
    for broker in (kbroker_broker, target):
        create_topic(broker.bootstrap, "anew", 1)
    produce(kbroker_broker.bootstrap, "anew", [20])
    source, work = mirror_of(kbroker_broker, target, "anew")
    done: dict[tuple[str, int], tuple[str, int]] = {}
    assert mirror_once(source, InlineRunner(), work, done) == 20
    delete_topic(kbroker_broker.bootstrap, "anew")
    with Cluster(kbroker_broker.bootstrap) as cluster:
        wait_until(lambda: not cluster.topics(["anew"]), 20, "the topic is gone")
    create_topic(kbroker_broker.bootstrap, "anew", 1)
    produce(kbroker_broker.bootstrap, "anew", [3])

    with pytest.raises(LoadError, match="up to offset 20, a topic that was recreated has 0 to"):
        mirror_once(source, InlineRunner(), work, done)


def test_partition_that_the_target_does_not_take_leaves_the_others_to_be_copied(
    kbroker_broker: Broker, target: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after the other, the largest first: without Spark all later ones failed with it, in every
    run.
    """
    create_topic(kbroker_broker.bootstrap, "large", 3)
    create_topic(target.bootstrap, "large", 3, {"max.message.bytes": "5000"})
    producer = Producer({"bootstrap.servers": kbroker_broker.bootstrap})
    for partition, size in enumerate((100, 20_000, 200)):
        producer.produce("large", bytes(size), partition=partition)
    producer.flush()

    refused = copy(kbroker_broker, target, "large")

    said = capsys.readouterr()
    assert refused == 1
    assert "1 partition of 3 cannot be copied: produce to large-1: MESSAGE_TOO_LARGE" in said.err
    assert "large: 2 records" in said.out
    assert [len(one) for one in read(target, "large", 3)] == [1, 0, 1]


@pytest.mark.parametrize("count", [20, 50])
def test_mirror_does_not_take_a_topic_recreated_for_the_one_it_copied(
    kbroker_broker: Broker, target: Broker, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    """As long as before, or longer: its offsets do not reveal it."""
    topic = f"again-{count}"
    for broker in (kbroker_broker, target):
        create_topic(broker.bootstrap, topic, 1)
    produce(kbroker_broker.bootstrap, topic, [20])
    assert copy(kbroker_broker, target, topic) == 0
    delete_topic(kbroker_broker.bootstrap, topic)
    with Cluster(kbroker_broker.bootstrap) as cluster:
        wait_until(lambda: not cluster.topics([topic]), 20, "the topic is gone")
    create_topic(kbroker_broker.bootstrap, topic, 1)
    produce(kbroker_broker.bootstrap, topic, [count])

    refused = copy(kbroker_broker, target, topic)
    said = capsys.readouterr().err
    allowed = copy(kbroker_broker, target, topic, "--allow-data-loss")
    again = copy(kbroker_broker, target, topic)

    assert (refused, allowed, again) == (1, 0, 0)
    assert f"mirrored up to offset 20, a topic that was recreated has 0 to {count}" in said
    assert len(read(target, topic, 1)[0]) == 20 + count


def test_mirror_into_a_cluster_without_the_topic_says_which(
    kbroker_broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(kbroker_broker.bootstrap, "nowhere", 1)
    produce(kbroker_broker.bootstrap, "nowhere", [20])

    with Broker({"auto.create.topics.enable": "false"}) as target:
        code = copy(kbroker_broker, target, "nowhere")

        assert code == 1
        said = f"there is no topic nowhere at {target.bootstrap}: create it there first"
        assert said in capsys.readouterr().err


def test_mirror_of_a_cluster_into_itself_is_refused(
    kbroker_broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(kbroker_broker.bootstrap, "itself", 1)
    produce(kbroker_broker.bootstrap, "itself", [20])

    code = copy(kbroker_broker, kbroker_broker, "itself")

    assert code == 1
    assert "topic itself would be copied into itself" in capsys.readouterr().err
    assert len(read(kbroker_broker, "itself", 1)[0]) == 20


def test_mirror_of_a_pattern_without_a_topic_ends_or_waits_for_one(
    kbroker_broker: Broker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first topic found reveals whether both sides are one cluster."""
    where = ["--from", kbroker_broker.bootstrap, "--to", kbroker_broker.bootstrap]
    command = [*where, "--pattern", "late-.*", "--master", "none"]

    def topic_comes(seconds: float) -> None:
        create_topic(kbroker_broker.bootstrap, "late-one", 1)

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=topic_comes)
    monkeypatch.setattr(mirror_cli, "time", clock)

    once = main(command)
    told = capsys.readouterr().err
    followed = main([*command, "--follow"])
    said = capsys.readouterr().err

    assert (once, followed) == (1, 1)
    assert told.endswith("has a name that fully matches late-.*\n")
    assert "fully matches late-.*; waiting for one\n" in said
    assert "topic late-one would be copied into itself" in said


def test_mirror_without_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty shell variable created another mirror, which copied everything again."""
    with pytest.raises(SystemExit) as ended:
        main(["--from", "a:1", "--to", "b:1", "--topics", "t", "--name", ""])

    assert ended.value.code == 2
    assert "argument --name: it is empty" in capsys.readouterr().err


def test_mirror_into_a_cluster_that_creates_the_topic_tells_that_partitions_change(
    kbroker_broker: Broker, target: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(kbroker_broker.bootstrap, "narrower", 3)
    produce(kbroker_broker.bootstrap, "narrower", [20, 20, 20])

    codes = copy(kbroker_broker, target, "narrower"), copy(kbroker_broker, target, "narrower")

    said = capsys.readouterr().err.splitlines()
    assert codes == (0, 0)
    assert [line.split("topic narrower ")[1] for line in said] == [
        f"does not exist at {target.bootstrap}, which may create it with another number of "
        "partitions",
        f"has 1 partition at {target.bootstrap} and 3 at {kbroker_broker.bootstrap}: records go by "
        "their keys",
    ]


def test_mirror_into_another_count_of_partitions_keeps_keys_together(
    kbroker_broker: Broker, target: Broker
) -> None:
    create_topic(kbroker_broker.bootstrap, "wider", 3)
    create_topic(target.bootstrap, "wider", 2)
    produce(kbroker_broker.bootstrap, "wider", [200, 200, 200])

    copy(kbroker_broker, target, "wider")
    copy(kbroker_broker, target, "wider")

    source = [one for rows in read(kbroker_broker, "wider", 3) for one in rows]
    found = read(target, "wider", 2)
    keys = [{one[0] for one in rows if one[0]} for rows in found]
    assert sorted(repr(one) for rows in found for one in rows) == sorted(map(repr, source))
    assert not keys[0] & keys[1]


def test_mirror_whose_place_was_deleted_says_which_offsets(
    kbroker_broker: Broker, target: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    from support.clients.topics import delete_records

    for broker in (kbroker_broker, target):
        create_topic(broker.bootstrap, "overtaken", 1)
    produce(kbroker_broker.bootstrap, "overtaken", [10])
    copy(kbroker_broker, target, "overtaken")
    produce(kbroker_broker.bootstrap, "overtaken", [30], first=10)
    delete_records(kbroker_broker.bootstrap, "overtaken", 0, 25)

    refused = copy(kbroker_broker, target, "overtaken")
    said = capsys.readouterr().err
    allowed = copy(kbroker_broker, target, "overtaken", "--allow-data-loss")

    assert (refused, allowed) == (1, 0)
    assert "overtaken partition 0: mirrored up to offset 10, the source has 25 to 40" in said
    assert len(read(target, "overtaken", 1)[0]) == 25


@pytest.mark.parametrize("rounds", some_of([2, 30], [2]))
@pytest.mark.timeout(600)
def test_mirror_killed_at_random_copies_each_record_once(
    kbroker_broker: Broker, target: Broker, rounds: int, tmp_path: Path
) -> None:
    """Small transactions, so that kills happen before, within and after them."""
    name = f"killed-{rounds}"
    for broker in (kbroker_broker, target):
        create_topic(broker.bootstrap, name, 1)
    produce(kbroker_broker.bootstrap, name, [20_000])
    program = (
        "import functools, sys; from kbroker.spark.mirror import cli, partition_copy; "
        "cli.MirrorWork = functools.partial(partition_copy.MirrorWork, transaction_bytes=20000); "
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    where = ["--from", kbroker_broker.bootstrap, "--to", target.bootstrap, "--topics", name]
    command = [sys.executable, "-c", program, *where, "--master", "none"]
    root = str(Path(__file__).resolve().parents[2])

    for number in range(rounds):
        process = subprocess.Popen(
            command, env=os.environ | {"PYTHONPATH": root}, start_new_session=True
        )
        try:
            process.wait(0.8 + 0.11 * (number % 7))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    begun = time.monotonic()
    assert copy(kbroker_broker, target, name) == 0

    assert [one[1] for one in read(target, name, 1)[0]] == [value_of(0, n) for n in range(20_000)]
    assert time.monotonic() - begun < 120
