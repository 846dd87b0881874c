"""Replicas are moved between log directories of a running broker under load."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clients.log_dir_moves import alter, cordon, move_all, replicas, set_rate
from support.clients.wire_client import WireClient, batch_of
from support.running.grids import some_of
from support.running.pace import hold
from support.running.threads import noted

from kbroker.errors import ErrorCode
from kbroker.protocol.messages.create_partitions import CreatePartitionsRequest
from kbroker.protocol.messages.create_topics import CreateTopicsRequest
from kbroker.protocol.messages.delete_topics import DeleteTopicsRequest
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

TOPIC = "moves"


@pytest.fixture(scope="module")
def dirs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    home = tmp_path_factory.mktemp("dirs")
    return [str(home / name) for name in ("a", "b")]


def broker_of(dirs: list[str]) -> Broker:
    return Broker({"log.dirs": ",".join(dirs), "log.segment.bytes": 1 << 20})


@pytest.fixture(scope="module")
def shared(dirs: list[str]) -> Iterator[Broker]:
    with broker_of(dirs) as started:
        yield started


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    """It has no topic, at first and for the next test."""
    yield shared
    if not shared.running:
        shared.start()
    with WireClient((shared.host, shared.port)) as client:
        set_rate(client, 1 << 40)
        cordon(client, client.metadata().brokers[0].node_id, "")
        names = sorted({name for name, _ in replicas(client)})
        delete(client, *names)
        wait_until(lambda: not replicas(client), 30, "no topic is there")


def delete(client: WireClient, *names: str) -> None:
    request = DeleteTopicsRequest(topic_names=list(names), timeout_ms=30_000)
    codes = [row.error_code for row in client.call(request, 5).responses]
    assert codes == [0] * len(names)


@pytest.fixture
def client(broker: Broker) -> Iterator[WireClient]:
    with WireClient((broker.host, broker.port)) as connected:
        yield connected


@pytest.mark.parametrize("version", some_of(range(3), [2]))
def test_replicas_are_moved_there_and_back_in_every_version(
    broker: Broker, client: WireClient, dirs: list[str], version: int
) -> None:
    client.create_topic(TOPIC, 4)
    for number in range(50):
        client.produce(TOPIC, {p: batch_of([b"%d" % number]) for p in range(4)})

    for _ in range(2):
        wanted = move_all(client, dirs, version)
        wait_until(lambda wanted=wanted: replicas(client) == wanted, 30, "all are moved")

    assert not replicas(client, future=True)
    for partition in range(4):
        values = [record.value for record in client.read_all(TOPIC, partition)]
        assert values == [b"%d" % number for number in range(50)]
    broker.stop()
    assert (Path(dirs[1]) / ".kafka_cleanshutdown").exists()
    broker.start()
    with WireClient((broker.host, broker.port)) as again:
        assert replicas(again) == wanted
        assert len(again.read_all(TOPIC, 3)) == 50


def test_move_continues_while_clients_produce_and_fetch(
    broker: Broker, client: WireClient, dirs: list[str]
) -> None:
    client.create_topic(TOPIC, 2)
    stop = threading.Event()
    acknowledged = [0]
    failures: list[Any] = []

    def produce() -> None:
        with WireClient((broker.host, broker.port)) as producer:
            while not stop.is_set():
                number = acknowledged[0]
                payload = [b"%d" % number, b"x" * 4000]
                answers = producer.produce(TOPIC, {p: batch_of(payload) for p in range(2)})
                failures.extend(a.error_code for a in answers.values() if a.error_code)
                acknowledged[0] += 1

    producing = threading.Thread(target=noted(produce, failures))
    producing.start()
    try:
        for _ in range(4):
            wanted = move_all(client, dirs)
            wait_until(lambda wanted=wanted: replicas(client) == wanted, 60, "all are moved")
        wait_until(lambda: acknowledged[0] > 50 or not producing.is_alive(), 60, "some are written")
    finally:
        stop.set()
        producing.join()

    assert not failures
    assert acknowledged[0] > 50
    for partition in range(2):
        values = [record.value for record in client.read_all(TOPIC, partition)][::2]
        assert values == [b"%d" % number for number in range(acknowledged[0])]


def test_partition_that_does_not_exist_is_made_where_it_was_wanted(
    client: WireClient, dirs: list[str]
) -> None:
    asked = {dirs[1]: {"later": [0, 1, 2, 3]}}
    assert set(alter(client, asked).values()) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    client.create_topic("later", 4)

    assert set(replicas(client).values()) == {dirs[1]}


def test_wrong_directory_is_refused_for_its_partition_alone(
    client: WireClient, dirs: list[str]
) -> None:
    client.create_topic(TOPIC, 2)
    places = replicas(client)

    codes = alter(client, {"/nowhere": {TOPIC: [0]}, places[TOPIC, 1]: {TOPIC: [1]}})

    assert codes == {(TOPIC, 0): ErrorCode.LOG_DIR_NOT_FOUND, (TOPIC, 1): 0}
    assert replicas(client) == places


def test_new_partitions_spread_evenly_over_directories_and_io_workers(
    client: WireClient, dirs: list[str]
) -> None:
    for number in range(6):
        client.create_topic(f"one-{number}", 1)
    client.create_topic("many", 7)
    client.create_topic("more", 7)

    places = list(replicas(client).values())

    assert [places.count(path) for path in dirs] == [10, 10]


@pytest.mark.parametrize("everything", [True, False])
def test_nothing_new_is_made_while_all_directories_are_cordoned(
    client: WireClient, dirs: list[str], everything: bool
) -> None:
    """As in Kafka 4.3 (KIP-1066); an assignment that names the broker is accepted."""
    broker_id = client.metadata().brokers[0].node_id
    client.create_topic("before", 1)
    cordon(client, broker_id, *(["*"] if everything else dirs))

    assert create(client, "refused") == ErrorCode.INVALID_REPLICATION_FACTOR
    assert enlarge(client, "before", 2) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert create(client, "named", broker_id) == 0
    cordon(client, broker_id, dirs[0])
    assert create(client, "refused") == 0
    assert enlarge(client, "before", 2) == 0

    assert replicas(client)["refused", 0] == dirs[1]


def create(client: WireClient, name: str, *brokers: int) -> int:
    cls = CreateTopicsRequest
    topic = cls.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    if brokers:
        topic.num_partitions = topic.replication_factor = -1
        replica = cls.CreatableReplicaAssignment(partition_index=0, broker_ids=list(brokers))
        topic.assignments = [replica]
    code: int = client.call(cls(topics=[topic], timeout_ms=30_000), 5).topics[0].error_code
    return code


def enlarge(client: WireClient, name: str, count: int) -> int:
    cls = CreatePartitionsRequest
    topic = cls.CreatePartitionsTopic(name=name, count=count, assignments=None)
    code: int = client.call(cls(topics=[topic], timeout_ms=30_000), 2).results[0].error_code
    return code


def test_throttle_holds_moves_back_and_is_lifted_while_they_run(
    client: WireClient, dirs: list[str]
) -> None:
    client.create_topic(TOPIC, 1)
    for _ in range(8):
        client.produce(TOPIC, {0: batch_of([b"x" * 100_000])})
    set_rate(client, 20_000)
    wanted = move_all(client, dirs)
    started = time.monotonic()
    wait_until(lambda: replicas(client, future=True) == wanted, 30, "the move is shown")
    while time.monotonic() < started + 1.5:
        assert replicas(client) != wanted
        hold(0.01)

    set_rate(client, 1 << 40)

    wait_until(lambda: replicas(client) == wanted, 30, "it is moved")


def test_deleted_topic_leaves_nothing_of_a_move(client: WireClient, dirs: list[str]) -> None:
    topic = "deleted"  # nothing of another test has this name
    client.create_topic(topic, 1)
    for _ in range(8):
        client.produce(topic, {0: batch_of([b"x" * 100_000])})
    set_rate(client, 1000)
    wanted = move_all(client, dirs)
    target = Path(wanted[topic, 0])
    wait_until(lambda: list(target.glob(f"{topic}-0.*-future")), 30, "the move has begun")

    delete(client, topic)

    wait_until(lambda: not list(target.glob(f"{topic}-0*")), 30, "it is gone")


def test_move_of_a_topic_that_was_deleted_meanwhile_leaves_nothing_at_the_next_start(
    broker: Broker, client: WireClient, dirs: list[str]
) -> None:
    """The directory was offline when the topic was deleted."""
    client.create_topic(TOPIC, 1)
    (home,) = replicas(client).values()
    broker.stop()
    (other,) = set(dirs) - {home}
    orphans = [Path(other) / f"{name}.{'0' * 32}-future" for name in ("gone-0", f"{TOPIC}-1")]
    for orphan in orphans:
        orphan.mkdir()
    goes_on = Path(other) / f"{TOPIC}-0.{'0' * 32}-future"
    goes_on.mkdir()

    broker.restart()

    wait_until(lambda: not any(path.exists() for path in [*orphans, goes_on]), 30, "all is gone")
    with WireClient((broker.host, broker.port)) as connected:
        wait_until(lambda: set(replicas(connected).values()) == {other}, 30, "the move has ended")


def test_internal_topic_is_moved_and_its_coordinator_continues(tmp_path: Path) -> None:
    """With a broker of its own: nobody deletes an internal topic."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    def committed() -> int | None:
        try:
            (found,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=30)
        except KafkaException:  # no coordinator until its log is open again
            return None
        return int(found.offset)

    def commits(offset: int) -> bool:
        try:
            consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
        except KafkaException:
            return False
        return True

    dirs = [str(tmp_path / name) for name in ("a", "b")]
    with broker_of(dirs) as broker, WireClient((broker.host, broker.port)) as client:
        client.create_topic(TOPIC, 1)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "moved"})
        try:
            consumer.commit(offsets=[TopicPartition(TOPIC, 0, 7)], asynchronous=False)
            wanted = move_all(client, dirs)
            wait_until(lambda: replicas(client) == wanted, 60, "all are moved")
            wait_until(lambda: commits(8), 60, "the coordinator serves again")
            broker.stop()
            broker.start()
            wait_until(lambda: committed() == 8, 60, "the offset is there")
        finally:
            consumer.close()
