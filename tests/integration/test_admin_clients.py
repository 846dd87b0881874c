"""Administration by real clients, on a real broker: results are true, also after a crash."""

from itertools import count

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient
from kafka.admin import NewTopic as KafkaPythonTopic
from kafka.structs import TopicPartition
from support.clients.wire_client import WireClient, batch_of
from support.running.grids import some_of

from kbroker.errors import ErrorCode
from kbroker.testing.waiting import wait_until

pytestmark = pytest.mark.integration


NAMES = (f"administered-{number}" for number in count())


@pytest.fixture
def admin(kbroker):
    return AdminClient({"bootstrap.servers": kbroker.bootstrap})


@pytest.fixture
def shared(kbroker_broker):
    """Of the broker that tests share."""
    return AdminClient({"bootstrap.servers": kbroker_broker.bootstrap})


@pytest.fixture
def name():
    """Of a topic that there is not yet."""
    return next(NAMES)


def create(admin, name, partitions=1, factor=1, **options):
    topic = NewTopic(name, partitions, factor, **options)
    return admin.create_topics([topic], operation_timeout=30)[name].result(60)


def partitions_of(admin, name):
    topics = admin.list_topics(name, timeout=30).topics
    return sorted(topics[name].partitions) if topics[name].error is None else None


def code_of(function, *args, **options):
    with pytest.raises(KafkaException) as caught:
        function(*args, **options)
    return caught.value.args[0].code(), caught.value.args[0].str()


def settings_of(admin, kind, name):
    resource = ConfigResource(kind, name)
    return admin.describe_configs([resource])[resource].result(60)


def change(admin, kind, name, key, value, operation=AlterConfigOpType.SET):
    entry = ConfigEntry(key, value, incremental_operation=operation)
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)


def produce(kbroker, topic, count=1):
    producer = Producer({"bootstrap.servers": kbroker.bootstrap})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=0)
    assert producer.flush(30) == 0


def end_offset(kbroker, topic):
    consumer = KafkaConsumer(bootstrap_servers=kbroker.bootstrap)
    try:
        return consumer.end_offsets([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
    finally:
        consumer.close()


def test_created_topic_serves_at_once_and_survives_a_restart(kbroker, admin):
    create(admin, "t", 3, config={"retention.ms": "60000"})
    assert partitions_of(admin, "t") == [0, 1, 2]
    produce(kbroker, "t", 5)
    assert settings_of(admin, ResourceType.TOPIC, "t")["retention.ms"].value == "60000"
    kbroker.stop()
    kbroker.start()
    assert partitions_of(admin, "t") == [0, 1, 2]
    assert end_offset(kbroker, "t") == 5


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ({"name": "a b"}, ErrorCode.INVALID_TOPIC_EXCEPTION, "letters"),
        ({"name": "t"}, ErrorCode.TOPIC_ALREADY_EXISTS, "exists"),
        ({"name": "u", "factor": 3}, ErrorCode.INVALID_REPLICATION_FACTOR, "start more brokers"),
        ({"name": "u", "config": {"x": "1"}}, ErrorCode.INVALID_CONFIG, "x"),
        (
            {"name": "u", "partitions": 50_000},
            ErrorCode.INVALID_PARTITIONS,
            "partition.table.slots",
        ),
    ],
)
def test_refused_creation_says_what_to_do(kbroker_broker, arguments, code, words):
    admin = AdminClient({"bootstrap.servers": kbroker_broker.bootstrap})
    if partitions_of(admin, "t") is None:
        create(admin, "t")
    found, text = code_of(create, admin, **arguments)
    assert found == code
    assert words in text


def test_recreated_topic_begins_again(kbroker_broker, shared, name):
    for _ in range(3):
        create(shared, name, 2)
        produce(kbroker_broker, name, 4)
        assert end_offset(kbroker_broker, name) == 4
        shared.delete_topics([name], operation_timeout=30)[name].result(60)
        assert name not in shared.list_topics(timeout=30).topics


def test_partitions_are_added(shared, name):
    create(shared, name, 1)
    shared.create_partitions([NewPartitions(name, 4)])[name].result(60)
    assert partitions_of(shared, name) == [0, 1, 2, 3]
    wanted = [NewPartitions(name, 2)]
    code, text = code_of(lambda: shared.create_partitions(wanted)[name].result(60))
    assert code == ErrorCode.INVALID_PARTITIONS
    assert "currently has 4 partition(s); 2 would not be an increase" in text


def test_topic_setting_counts_at_once(kbroker_broker, shared, name):
    create(shared, name)
    change(shared, ResourceType.TOPIC, name, "max.message.bytes", "200")
    entry = settings_of(shared, ResourceType.TOPIC, name)["max.message.bytes"]
    assert (entry.value, entry.source, entry.is_default) == ("200", 1, False)
    failures = []
    producer = Producer({"bootstrap.servers": kbroker_broker.bootstrap})
    producer.produce(name, b"x" * 1000, on_delivery=lambda error, _: failures.append(error))
    producer.flush(30)
    assert failures[0].code() == ErrorCode.MESSAGE_TOO_LARGE
    change(shared, ResourceType.TOPIC, name, "max.message.bytes", None, AlterConfigOpType.DELETE)
    produce(kbroker_broker, name)
    assert settings_of(shared, ResourceType.TOPIC, name)["max.message.bytes"].is_default


def test_more_replicas_in_sync_than_a_topic_has_are_not_asked_for(kbroker_broker, shared, name):
    """As in Kafka 3.9 and later. What has too few is refused: tests of clusters."""
    create(shared, name, config={"min.insync.replicas": "2"})
    with WireClient((kbroker_broker.host, kbroker_broker.port)) as client:
        written = [client.produce(name, {0: batch_of([b"x"])}, acks=acks)[0] for acks in (-1, 1)]
    assert [(row.error_code, row.base_offset) for row in written] == [(0, 0), (0, 1)]
    assert settings_of(shared, ResourceType.TOPIC, name)["min.insync.replicas"].value == "2"


def test_broker_setting_counts_for_topics_that_inherit_it(kbroker, admin):
    create(admin, "t")
    change(admin, ResourceType.BROKER, "0", "message.max.bytes", "3333")
    entry = settings_of(admin, ResourceType.TOPIC, "t")["max.message.bytes"]
    assert (entry.value, entry.source) == ("3333", 2)
    assert settings_of(admin, ResourceType.BROKER, "0")["message.max.bytes"].value == "3333"
    code, text = code_of(change, admin, ResourceType.BROKER, "0", "broker.id", "9")
    assert code == ErrorCode.INVALID_REQUEST
    assert "restart" in text


@pytest.mark.parametrize("times", some_of([2, 6], [2]))
def test_acknowledged_changes_survive_kill_9_of_the_controller(kbroker, admin, times):
    made = []
    for number in range(times):
        name = f"t{number}"
        create(admin, name, 2)
        made.append(name)
        kbroker.kill("controller")
        wait_until(lambda n=number: is_creatable(admin, f"probe{n}"), 60)
    topics = admin.list_topics(timeout=30).topics
    assert set(made) <= topics.keys()
    for name in made:
        produce(kbroker, name, 2)
        assert end_offset(kbroker, name) == 2


def is_creatable(admin, name):
    """Whether the controller is back; until then, clients get an error."""
    try:
        create(admin, name)
    except KafkaException as error:
        return error.args[0].code() == ErrorCode.TOPIC_ALREADY_EXISTS
    return True


def test_kafka_python_administers(kbroker_broker, name):
    admin = KafkaAdminClient(bootstrap_servers=kbroker_broker.bootstrap)
    try:
        admin.create_topics([KafkaPythonTopic(name, 2, 1)])
        assert name in admin.list_topics()
        admin.delete_topics([name])
        assert name not in admin.list_topics()
    finally:
        admin.close()
