"""Groups and transactions of three brokers on one real ZooKeeper, with coordinators and partitions
on all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaException
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic
from support.brokers.zookeeper import ZooKeeperServer
from support.clients.wire_client import WireClient
from support.running.grids import some_of

from kbroker.coordinator.partitioner import OFFSETS_TOPIC, coordinator_partition
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.create_topics import CreateTopicsRequest
from kbroker.protocol.messages.describe_groups import DescribeGroupsRequest
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.protocol.messages.init_producer_id import InitProducerIdRequest
from kbroker.protocol.messages.list_groups import ListGroupsRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

PARTITIONS = 6
INTERNAL_PARTITIONS = 12
NAMES = (f"n-{number}" for number in count())
IDS = (1, 2, 3)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module")
def brokers(
    zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Broker]]:
    """Three brokers; the first is the controller."""
    settings = {
        "zookeeper.connect": f"{zookeeper.connect}/coordinators",
        "zookeeper.session.timeout.ms": 6000,
        "num.partitions": PARTITIONS,
        "offsets.topic.num.partitions": INTERNAL_PARTITIONS,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": INTERNAL_PARTITIONS,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                Broker(
                    settings,
                    broker_id=number,
                    log_dirs=str(tmp_path_factory.mktemp(f"broker-{number}")),
                )
            )
            for number in IDS
        ]


def ask(broker: Broker, request: Any, version: int) -> Any:
    with WireClient((broker.host, broker.port)) as client:
        return client.call(request, version)


def coordinators(broker: Broker, keys: list[str], key_type: int = 0) -> dict[str, tuple[int, int]]:
    """Error and broker of each coordinator."""
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys)
    found = ask(broker, request, 4).coordinators
    return {entry.key: (entry.error_code, entry.node_id) for entry in found}


def groups_by_coordinator(broker: Broker) -> dict[int, str]:
    """A group for each broker as coordinator."""
    keys = [f"g-{next(NAMES)}" for _ in range(4 * INTERNAL_PARTITIONS)]
    wait_until(
        lambda: all(code == 0 for code, _ in coordinators(broker, keys).values()), 30, "all found"
    )
    return {node: key for key, (_, node) in coordinators(broker, keys).items()}


@pytest.fixture
def topic(brokers: list[Broker]) -> str:
    name = next(NAMES)
    admin = KafkaAdminClient(bootstrap_servers=brokers[1].bootstrap)
    try:
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])
    finally:
        admin.close()
    return name


def write(broker: Broker, topic: str, texts: list[str]) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    try:
        sent = [
            producer.send(topic, text.encode(), partition=number % PARTITIONS)
            for number, text in enumerate(texts)
        ]
        for future in sent:
            future.get(timeout=60)
    finally:
        producer.close()


def test_offsets_topic_is_created_by_the_broker_that_is_asked_first(brokers: list[Broker]) -> None:
    groups = groups_by_coordinator(brokers[2])
    assert sorted(groups) == list(IDS)
    wanted = {key: (0, node) for node, key in groups.items()}
    for broker in brokers:  # the others hear of it a moment later
        wait_until(lambda broker=broker: coordinators(broker, list(wanted)) == wanted, 30, "heard")
    (internal,) = ask(brokers[0], MetadataRequest(topics=[_named(OFFSETS_TOPIC)]), 9).topics
    leaders = {entry.partition_index: entry.leader_id for entry in internal.partitions}
    for node, key in groups.items():
        assert leaders[coordinator_partition(key, INTERNAL_PARTITIONS)] == node


def _named(name: str) -> Any:
    return MetadataRequest.MetadataRequestTopic(name=name)


def test_topic_that_a_client_names_is_created_by_any_broker(brokers: list[Broker]) -> None:
    name = next(NAMES)
    (found,) = ask(brokers[2], MetadataRequest(topics=[_named(name)]), 9).topics
    assert (found.error_code, len(found.partitions)) in {
        (0, PARTITIONS), (ErrorCode.LEADER_NOT_AVAILABLE, 0)
    }  # fmt: skip
    write(brokers[1], name, ["a", "b", "c"])


def test_only_the_controller_creates_topics_for_clients(brokers: list[Broker]) -> None:
    name = next(NAMES)
    new = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[new], timeout_ms=10_000)
    codes = [ask(broker, request, 5).topics[0].error_code for broker in reversed(brokers)]
    assert codes == [ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER, 0]


@pytest.mark.parametrize("coordinator", some_of(IDS, [3]))
def test_group_of_kafka_python_reads_through_any_broker(
    brokers: list[Broker], topic: str, coordinator: int
) -> None:
    group = groups_by_coordinator(brokers[0])[coordinator]
    texts = [f"{number:03}" for number in range(60)]
    write(brokers[0], topic, texts)
    found: list[str] = []
    for bootstrap, wanted in ((brokers[1], 30), (brokers[2], len(texts))):
        consumer = KafkaConsumer(
            topic,
            group_id=group,
            bootstrap_servers=bootstrap.bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=10,
        )
        try:

            def read(consumer: Any = consumer, wanted: int = wanted) -> bool:
                for records in consumer.poll(timeout_ms=500).values():
                    found.extend(record.value.decode() for record in records)
                return len(found) >= wanted

            wait_until(read, 60, f"{wanted} records are read")
            consumer.commit()
        finally:
            consumer.close()
    assert sorted(found) == texts


def test_group_of_librdkafka_reads_through_any_broker(brokers: list[Broker], topic: str) -> None:
    texts = [f"{number:03}" for number in range(30)]
    write(brokers[1], topic, texts)
    for coordinator, group in groups_by_coordinator(brokers[1]).items():
        consumer = ConfluentConsumer(
            {
                "bootstrap.servers": brokers[coordinator % len(IDS)].bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        found: list[str] = []

        def read(consumer: Any = consumer, found: list[str] = found) -> bool:
            for message in consumer.consume(50, timeout=0.5):
                assert message.error() is None
                found.append(message.value().decode())
            return len(found) >= len(texts)

        try:
            consumer.subscribe([topic])
            wait_until(read, 60, "all records are read")
            assert len(consumer.commit(asynchronous=False)) == PARTITIONS
        finally:
            consumer.close()
        assert sorted(found) == texts


def read_committed(broker: Broker, topic: str, last: str) -> list[str]:
    """All records up to one that was written after everything else."""
    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": next(NAMES),
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    found: list[str] = []

    def read() -> bool:
        for message in consumer.consume(100, timeout=0.5):
            assert message.error() is None, message.error()
            found.append(message.value().decode())
        return found.count(last) == PARTITIONS

    try:
        consumer.assign([ConfluentPartition(topic, number, 0) for number in range(PARTITIONS)])
        wait_until(read, 60, "the last records are read")
    finally:
        consumer.close()
    return sorted(text for text in found if text != last)


def transactional(broker: Broker, transactional_id: str) -> Any:
    producer = ConfluentProducer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 30_000,
        }
    )
    producer.init_transactions(60)
    return producer


def transactions_by_coordinator(broker: Broker) -> dict[int, str]:
    keys = [f"t-{next(NAMES)}" for _ in range(4 * INTERNAL_PARTITIONS)]

    def are_found() -> bool:
        return all(code == 0 for code, _ in coordinators(broker, keys, 1).values())

    wait_until(are_found, 30, "all found")
    return {node: key for key, (_, node) in coordinators(broker, keys, 1).items()}


def committed(broker: Broker, group: str, topic: str) -> list[int]:
    """librdkafka gives up soon if a coordinator has not loaded its groups yet."""
    consumer = ConfluentConsumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    found: list[int] = []

    def are_fetched() -> bool:
        asked = [ConfluentPartition(topic, number) for number in range(PARTITIONS)]
        with suppress(KafkaException):
            found.extend(one.offset for one in consumer.committed(asked, 60))
        return bool(found)

    try:
        wait_until(are_fetched, 60, "the offsets are fetched")
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("coordinator", some_of(IDS, [1]))
def test_transaction_is_read_as_a_whole_from_all_brokers(
    brokers: list[Broker], topic: str, coordinator: int
) -> None:
    """Its partitions and the offsets of its groups are on all three brokers."""
    groups = groups_by_coordinator(brokers[0])
    producer = transactional(
        brokers[coordinator % 3], transactions_by_coordinator(brokers[0])[coordinator]
    )
    sources = [ConfluentPartition(topic, number, 5) for number in range(PARTITIONS)]
    for ends, commit in (("aborted", False), ("committed", True), ("lost", False)):
        producer.begin_transaction()
        for number in range(PARTITIONS):
            producer.produce(topic, ends.encode(), partition=number)
        for group in groups.values():
            consumer = ConfluentConsumer(
                {"bootstrap.servers": brokers[0].bootstrap, "group.id": group}
            )
            metadata = consumer.consumer_group_metadata()
            for source in sources:
                source.offset = {"aborted": 5, "committed": 7, "lost": 9}[ends]
            producer.send_offsets_to_transaction(sources, metadata, 60)
            consumer.close()
        producer.flush(60)
        if commit:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    producer.begin_transaction()
    for number in range(PARTITIONS):
        producer.produce(topic, b"last", partition=number)
    producer.commit_transaction(60)
    assert read_committed(brokers[0], topic, "last") == ["committed"] * PARTITIONS
    for group in groups.values():
        assert committed(brokers[1], group, topic) == [7] * PARTITIONS


@pytest.mark.slow
def test_group_continues_when_its_coordinator_comes_back(brokers: list[Broker], topic: str) -> None:
    group = groups_by_coordinator(brokers[0])[3]
    bootstrap = ",".join(broker.bootstrap for broker in brokers)
    consumer = ConfluentConsumer({"bootstrap.servers": bootstrap, "group.id": group})
    wanted = [ConfluentPartition(topic, number, 5 + number) for number in range(PARTITIONS)]
    try:
        consumer.commit(offsets=wanted, asynchronous=False)
        brokers[2].kill_all()
        wait_until(lambda: coordinators(brokers[0], [group])[group][1] == -1, 60, "it is gone")
        brokers[2].start()
        assert committed(brokers[0], group, topic) == [5 + n for n in range(PARTITIONS)]
        consumer.commit(offsets=wanted[:1], asynchronous=False)
    finally:
        consumer.close()


@pytest.mark.parametrize("killed", some_of([1, 2], [1]), ids=["coordinator", "leader"])
def test_transaction_is_completed_when_a_broker_comes_back(
    brokers: list[Broker], topic: str, killed: int
) -> None:
    """The coordinator, or a leader of some of its partitions."""
    bootstrap = ",".join(broker.bootstrap for broker in brokers)
    name = transactions_by_coordinator(brokers[0])[2]
    producer = ConfluentProducer(
        {"bootstrap.servers": bootstrap, "transactional.id": name, "transaction.timeout.ms": 60_000}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(PARTITIONS):
        producer.produce(topic, b"one", partition=number)
    producer.flush(60)
    brokers[killed].kill_all()
    brokers[killed].start()
    producer.commit_transaction(60)
    producer.begin_transaction()
    for number in range(PARTITIONS):
        producer.produce(topic, b"last", partition=number)
    producer.commit_transaction(60)
    assert read_committed(brokers[0], topic, "last") == ["one"] * PARTITIONS


def test_producer_gets_an_id_while_zookeeper_is_away(
    brokers: list[Broker], zookeeper: ZooKeeperServer
) -> None:
    zookeeper.hold()
    try:
        found = [ask(broker, InitProducerIdRequest(transactional_id=None), 4) for broker in brokers]
    finally:
        zookeeper.release()
    assert [response.error_code for response in found] == [0, 0, 0]
    assert len({response.producer_id for response in found}) == 3


def test_each_broker_has_the_groups_that_it_coordinates(brokers: list[Broker], topic: str) -> None:
    groups = groups_by_coordinator(brokers[0])
    for group in groups.values():
        consumer = ConfluentConsumer({"bootstrap.servers": brokers[0].bootstrap, "group.id": group})
        try:
            consumer.commit(offsets=[ConfluentPartition(topic, 0, 1)], asynchronous=False)
        finally:
            consumer.close()
    everybody = set(groups.values())
    for number, broker in zip(IDS, brokers, strict=True):
        listed = {entry.group_id for entry in ask(broker, ListGroupsRequest(), 4).groups}
        assert listed & everybody == {groups[number]}
        request = DescribeGroupsRequest(groups=sorted(everybody))
        described = {entry.group_id: entry.error_code for entry in ask(broker, request, 5).groups}
        elsewhere = int(ErrorCode.NOT_COORDINATOR)
        assert described == {g: 0 if g == groups[number] else elsewhere for g in everybody}
    admin = AdminClient({"bootstrap.servers": brokers[1].bootstrap})
    found = {entry.group_id for entry in admin.list_consumer_groups().result().valid}
    assert everybody <= found
    for future in admin.delete_consumer_groups(sorted(everybody)).values():
        future.result(60)
    found = {entry.group_id for entry in admin.list_consumer_groups().result().valid}
    assert not everybody & found


def test_restarted_controller_process_knows_what_its_broker_leads(
    brokers: list[Broker], topic: str
) -> None:
    """It continues session and registration, so the controller of the cluster does not notice."""
    found = ask(brokers[0], MetadataRequest(topics=[]), 9)
    broker = next(
        b for b, number in zip(brokers, IDS, strict=True) if number != found.controller_id
    )
    groups = groups_by_coordinator(brokers[0])
    before = len(broker.log_text)

    broker.kill("controller")
    text = "continuing with what the previous controller process knew"
    wait_until(lambda: text in broker.log_text[before:], 30, "it is back")

    write(broker, topic, [f"{number:03}" for number in range(60)])
    (internal,) = ask(broker, MetadataRequest(topics=[_named(OFFSETS_TOPIC)]), 9).topics
    assert [entry.leader_id for entry in internal.partitions if entry.leader_id < 0] == []
    for group in groups.values():
        assert committed(broker, group, topic) == [-1001] * PARTITIONS
    assert "no longer in the metadata" not in broker.log_text[before:]
