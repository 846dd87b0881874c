"""confluent-kafka's admin client (librdkafka) against a real broker."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from kbroker.errors import ErrorCode
from kbroker.testing.broker import Broker

pytestmark = pytest.mark.integration

TIMEOUT_S = 60


@pytest.fixture
def admin(kbroker_broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": kbroker_broker.bootstrap})


def only(futures: dict[Any, Any]) -> Any:
    """The result of the only future."""
    (future,) = futures.values()
    return future.result(TIMEOUT_S)


def refused_with(futures: dict[Any, Any]) -> tuple[int, str]:
    """Code and message of the only future, which must fail."""
    with pytest.raises(KafkaException) as failure:
        only(futures)
    error = failure.value.args[0]
    return error.code(), error.str()


def create(admin: AdminClient, name: str, partitions: int = 1, **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    only(admin.create_topics([NewTopic(name, partitions, 1, config=settings)]))


def described(admin: AdminClient, kind: str, name: str) -> dict[str, Any]:
    settings: dict[str, Any] = only(admin.describe_configs([ConfigResource(kind, name)]))
    return settings


def test_admin_topic_lives_from_creation_to_deletion(admin: AdminClient) -> None:
    create(admin, "ck-life", 2)
    assert len(admin.list_topics(timeout=TIMEOUT_S).topics["ck-life"].partitions) == 2
    only(admin.create_partitions([NewPartitions("ck-life", 4)]))
    topic = only(admin.describe_topics(TopicCollection(["ck-life"])))
    assert [partition.id for partition in topic.partitions] == [0, 1, 2, 3]
    assert [replica.id for replica in topic.partitions[0].isr] == [0]
    only(admin.delete_topics(["ck-life"]))
    assert "ck-life" not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_admin_refusals_have_kafkas_codes_and_say_why(admin: AdminClient) -> None:
    create(admin, "ck-refused")
    code, text = refused_with(admin.create_topics([NewTopic("ck-refused", 1, 1)]))
    assert code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert "ck-refused" in text
    bad_setting = NewTopic("ck-bad", 1, 1, config={"retention.msx": "1"})
    code, text = refused_with(admin.create_topics([bad_setting]))
    assert code == ErrorCode.INVALID_CONFIG
    assert "retention.ms?" in text
    code, _ = refused_with(admin.create_topics([NewTopic("ck-bad", 1, 2)]))
    assert code == ErrorCode.INVALID_REPLICATION_FACTOR
    code, _ = refused_with(admin.create_topics([NewTopic("ck/bad", 1, 1)]))
    assert code == ErrorCode.INVALID_TOPIC_EXCEPTION
    code, _ = refused_with(admin.create_partitions([NewPartitions("ck-refused", 1)]))
    assert code == ErrorCode.INVALID_PARTITIONS
    code, _ = refused_with(admin.delete_topics(["ck-bad"]))
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_admin_settings_of_a_topic_change_one_by_one_or_all(admin: AdminClient) -> None:
    create(admin, "ck-set", retention_ms="1000")
    setting = described(admin, "topic", "ck-set")["retention.ms"]
    assert (setting.value, setting.source) == ("1000", 1)
    change = ConfigEntry("retention.ms", "2000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", "ck-set", incremental_configs=[change])
    only(admin.incremental_alter_configs([resource]))
    assert described(admin, "topic", "ck-set")["retention.ms"].value == "2000"
    with pytest.warns(DeprecationWarning):
        futures = admin.alter_configs(
            [ConfigResource("topic", "ck-set", set_config={"segment.bytes": "100000"})]
        )
    only(futures)
    settings = described(admin, "topic", "ck-set")
    assert settings["segment.bytes"].value == "100000"
    assert (settings["retention.ms"].value, settings["retention.ms"].source) == ("604800000", 5)


def test_admin_cleanup_policy_goes_by_its_older_name_too(admin: AdminClient) -> None:
    """In Kafka 0.8 the topic config has the broker's name for it."""
    create(admin, "ck-named", log_cleanup_policy="compact")
    assert described(admin, "topic", "ck-named")["cleanup.policy"].value == "compact"
    change = ConfigEntry(
        "log.cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource("topic", "ck-named", incremental_configs=[change])
    only(admin.incremental_alter_configs([resource]))
    found = described(admin, "topic", "ck-named")
    assert found["cleanup.policy"].value == "delete"
    assert "log.cleanup.policy" not in found
    bad = NewTopic("ck-misnamed", 1, 1, config={"log.retention": "1"})
    assert refused_with(admin.create_topics([bad]))[0] == ErrorCode.INVALID_CONFIG


def test_admin_settings_of_the_broker_change(admin: AdminClient) -> None:
    change = ConfigEntry("log.cleaner.threads", "2", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("broker", "0", incremental_configs=[change])
    only(admin.incremental_alter_configs([resource]))
    setting = described(admin, "broker", "0")["log.cleaner.threads"]
    assert (setting.value, setting.source) == ("2", 2)
    undo = ConfigEntry("log.cleaner.threads", None, incremental_operation=AlterConfigOpType.DELETE)
    resource = ConfigResource("broker", "0", incremental_configs=[undo])
    only(admin.incremental_alter_configs([resource]))
    assert described(admin, "broker", "0")["log.cleaner.threads"].source == 5
    fixed = ConfigEntry("log.dirs", "/x", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("broker", "0", incremental_configs=[fixed])
    code, _ = refused_with(admin.incremental_alter_configs([resource]))
    assert code == ErrorCode.INVALID_REQUEST


def test_admin_offsets_and_deleted_records(admin: AdminClient, kbroker_broker: Broker) -> None:
    create(admin, "ck-records", retention_ms="-1")  # its records are of 1970
    producer = Producer({"bootstrap.servers": kbroker_broker.bootstrap})
    for number in range(10):
        producer.produce("ck-records", b"%d" % number, timestamp=1000 + number)
    assert producer.flush(TIMEOUT_S) == 0
    place = TopicPartition("ck-records", 0)

    def offset(spec: OffsetSpec) -> int:
        found: int = only(admin.list_offsets({place: spec})).offset
        return found

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 10
    assert offset(OffsetSpec.max_timestamp()) == 9
    assert offset(OffsetSpec.for_timestamp(1004)) == 4
    assert offset(OffsetSpec.for_timestamp(9999)) == -1
    deleted = only(admin.delete_records([TopicPartition("ck-records", 0, 6)]))
    assert deleted.low_watermark == 6
    assert offset(OffsetSpec.earliest()) == 6
    code, _ = refused_with(admin.delete_records([TopicPartition("ck-records", 0, 11)]))
    assert code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_admin_topic_is_made_by_producing_to_it(kbroker_broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": kbroker_broker.bootstrap})
    producer.produce("ck-auto", b"first")
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer({"bootstrap.servers": kbroker_broker.bootstrap, "group.id": "none"})
    offsets = consumer.get_watermark_offsets(TopicPartition("ck-auto", 0), timeout=TIMEOUT_S)
    consumer.close()
    assert offsets == (0, 1)


def test_admin_cluster_and_acls(admin: AdminClient, kbroker_broker: Broker) -> None:
    cluster = admin.describe_cluster(include_authorized_operations=True).result(TIMEOUT_S)
    assert cluster.controller.id == 0
    assert [(node.host, node.port) for node in cluster.nodes] == [
        (kbroker_broker.host, kbroker_broker.port)
    ]
    assert AclOperation.CREATE in cluster.authorized_operations
    allow = AclBinding(
        ResourceType.TOPIC,
        "x",
        ResourcePatternType.LITERAL,
        "User:a",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    code, _ = refused_with(admin.create_acls([allow]))
    assert code == ErrorCode.SECURITY_DISABLED
