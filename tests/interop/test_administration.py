"""Topics, configs, records and the cluster, through each admin client."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from interop.conftest import ADMINS, clients, has_topic_ids, java_names, nodes_of
from support.drivers import AdminDriver, ClientError, Message, payloads
from support.drivers.access import Access

from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.interop

UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
INVALID_TOPIC = 17
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_CONFIG = 40
OFFSET_OUT_OF_RANGE = 1


def code_of(call: Callable[..., object], *arguments: Any) -> int:
    """The error code of a failed call."""
    with pytest.raises(ClientError) as failed:
        call(*arguments)
    return failed.value.code


@pytest.mark.parametrize("driver", ADMINS, indirect=True)
def test_topic_is_created_with_partitions_and_settings(driver: AdminDriver, topic: str) -> None:
    driver.create_topic(topic, 3, {"retention.ms": "12345", "cleanup.policy": "compact"})
    assert driver.partitions(topic) == 3
    config = driver.topic_config(topic)
    assert config["retention.ms"] == "12345"
    assert config["cleanup.policy"] == "compact"
    assert config["segment.bytes"] == "1073741824"


@pytest.mark.parametrize("driver", ADMINS, indirect=True)
def test_creation_is_refused_with_the_reason(driver: AdminDriver, made: str) -> None:
    assert code_of(driver.create_topic, made) == TOPIC_ALREADY_EXISTS
    assert code_of(driver.create_topic, "no/slash") == INVALID_TOPIC
    assert code_of(driver.create_topic, made + "-n", 0) == INVALID_PARTITIONS
    bad = {"retention.ms": "soon"}
    assert code_of(driver.create_topic, made + "-c", 1, bad) == INVALID_CONFIG


@pytest.mark.parametrize("driver", ADMINS, indirect=True)
def test_deleted_topic_is_gone_and_can_be_recreated(driver: AdminDriver, topic: str) -> None:
    """The new topic of that name starts empty."""
    driver.create_topic(topic)
    driver.produce(topic, payloads(10))
    driver.delete_topic(topic)
    assert code_of(driver.delete_topic, topic) == UNKNOWN_TOPIC_OR_PARTITION
    driver.create_topic(topic)
    assert driver.offset(topic, "latest") == 0
    driver.produce(topic, [Message(b"anew")])
    assert [(found.offset, found.value) for found in driver.fetch(topic, 1)] == [(0, b"anew")]


@pytest.mark.parametrize("driver", ADMINS, indirect=True)
def test_added_partitions_are_written_and_read(driver: AdminDriver, made: str) -> None:
    driver.create_partitions(made, 4)
    wait_until(lambda: driver.partitions(made) == 4)
    driver.produce(made, [Message(b"there")], partition=3)
    assert [found.value for found in driver.fetch(made, 1, partition=3)] == [b"there"]
    assert code_of(driver.create_partitions, made, 2) == INVALID_PARTITIONS
    unknown = made + "-unknown"
    assert code_of(driver.create_partitions, unknown, 2) == UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("driver", ADMINS, indirect=True)
def test_altered_setting_takes_effect(driver: AdminDriver, made: str) -> None:
    driver.alter_topic_config(made, "max.message.bytes", "1000")

    def is_told() -> bool:
        return driver.topic_config(made)["max.message.bytes"] == "1000"

    def is_refused() -> bool:
        try:
            driver.produce(made, [Message(b"x" * 2000)])
        except ClientError as error:
            assert error.code == MESSAGE_TOO_LARGE
            return True
        return False

    # Brokers of a cluster hear of it one after the other.
    wait_until(is_told, what="the setting is described")
    wait_until(is_refused, what="a large message is refused")
    driver.produce(made, [Message(b"x" * 500)])


@pytest.mark.parametrize("driver", ADMINS, indirect=True)
def test_bad_setting_is_refused(driver: AdminDriver, made: str) -> None:
    before = driver.topic_config(made)
    if driver.name == "kafka-python":  # it hands out the text alone
        with pytest.raises(ClientError, match="InvalidConfig"):
            driver.alter_topic_config(made, "retention.ms", "soon")
    else:
        assert code_of(driver.alter_topic_config, made, "retention.ms", "soon") == INVALID_CONFIG
    assert driver.topic_config(made) == before


@pytest.mark.parametrize("driver", ADMINS, indirect=True)
def test_broker_settings_are_described(driver: AdminDriver, broker: Broker) -> None:
    config = driver.broker_config(0)
    assert config["log.dirs"] == str(broker.data_dir)
    assert config["num.io.threads"] == "2"
    assert len(config) > 150


@pytest.mark.parametrize("driver", ADMINS, indirect=True)
def test_deleted_records_move_the_beginning(driver: AdminDriver, made: str) -> None:
    driver.produce(made, payloads(100))
    assert driver.delete_records(made, 40) == 40
    assert driver.offset(made, "earliest") == 40
    assert [found.offset for found in driver.fetch(made, 60)] == list(range(40, 100))
    assert code_of(driver.delete_records, made, 101) == OFFSET_OUT_OF_RANGE
    assert driver.delete_records(made, -1) == 100
    assert driver.offset(made, "earliest") == 100


@pytest.mark.parametrize("driver", ADMINS, indirect=True)
def test_cluster_is_described(driver: AdminDriver, broker: Broker) -> None:
    found = driver.cluster()
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", found["id"])
    assert found["controller"] in nodes_of(broker)
    assert found["brokers"] == nodes_of(broker)


@pytest.mark.parametrize("driver", ADMINS, indirect=True)
def test_unknown_topic_is_reported_as_such(driver: AdminDriver, topic: str) -> None:
    assert code_of(driver.delete_topic, topic) == UNKNOWN_TOPIC_OR_PARTITION
    if driver.name != "kafka-python":  # it answers with no settings and drops the error
        assert code_of(driver.topic_config, topic) == UNKNOWN_TOPIC_OR_PARTITION
    if driver.name != "aiokafka":  # it has no way to ask without creating the topic
        assert code_of(driver.partitions, topic) == UNKNOWN_TOPIC_OR_PARTITION


# -- what only some clients have


@pytest.mark.parametrize("driver", clients(*java_names()), indirect=True)
def test_topic_id_names_the_topic_for_java(driver: Any, broker: Broker, made: str) -> None:
    topic_id = driver.call("describe_topic", topic=made)["id"]
    assert driver.call("describe_topic_id", id=topic_id)["name"] == made
    driver.call("delete_topic_id", id=topic_id)
    assert code_of(driver.partitions, made) == UNKNOWN_TOPIC_OR_PARTITION
    driver.create_topic(made)
    if has_topic_ids(broker):
        assert driver.call("describe_topic", topic=made)["id"] != topic_id


@pytest.mark.parametrize("driver", clients(*java_names()), indirect=True)
def test_log_directories_tell_sizes_to_java(driver: Any, broker: Broker, made: str) -> None:
    driver.produce(made, payloads(100))
    path = broker.data_dir / f"{made}-0" / "00000000000000000000.log"
    assert driver.call("log_dirs")[f"{made}-0"] == path.stat().st_size


def test_log_directories_tell_sizes_to_kafka_python(
    driver_of: Callable[[str], AdminDriver], broker: Broker, access: Access, made: str
) -> None:
    """Of each replica."""
    from kafka import KafkaAdminClient

    driver_of("confluent-kafka").produce(made, payloads(100))
    path = broker.data_dir / f"{made}-0" / "00000000000000000000.log"
    admin = KafkaAdminClient(**access.kafka_python())
    try:
        responses = admin.describe_log_dirs()
        (described,) = admin.describe_topics([made])
    finally:
        admin.close()
    sizes = [
        partition["partition_size"]
        for response in responses
        for directory in response["log_dirs"]
        for found in directory["topics"]
        for partition in found["partitions"]
        if found["name"] == made
    ]
    assert sizes == [path.stat().st_size] * access.replicas
    assert UUID(described["topic_id"]).int != 0


def test_topic_id_is_told_to_librdkafka(
    driver_of: Callable[[str], AdminDriver], access: Access, made: str
) -> None:
    from confluent_kafka import TopicCollection
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(access.librdkafka())
    found = admin.describe_topics(TopicCollection([made]))[made].result(20)
    assert found.topic_id is not None and len(str(found.topic_id)) == 22
    (only,) = found.partitions
    isr = [node.id for node in only.isr]
    assert (only.id, sorted(isr)) == (0, list(range(access.replicas)))
    assert only.leader.id in isr
