"""kafka-python's admin client against a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    ResourcePatternFilter,
    ResourceType,
)

from kbroker.testing.broker import Broker

pytestmark = pytest.mark.integration


@pytest.fixture
def admin(kbroker_broker: Broker) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=kbroker_broker.bootstrap)
    yield client
    client.close()


def partitions_of(admin: Any, topic: str) -> list[int]:
    (described,) = admin.describe_topics([topic])
    assert described["error_code"] == 0
    return sorted(partition["partition_index"] for partition in described["partitions"])


def settings_of(admin: Any, kind: ConfigResourceType, name: str) -> dict[str, Any]:
    described = admin.describe_configs([ConfigResource(kind, name)], config_filter="all")
    settings: dict[str, Any] = described[kind.name.lower()][name]
    return settings


def test_admin_topic_lives_from_creation_to_deletion(admin: Any) -> None:
    admin.create_topics({"kp-life": {"num_partitions": 2, "replication_factor": 1}})
    assert "kp-life" in admin.list_topics()
    assert partitions_of(admin, "kp-life") == [0, 1]
    admin.create_partitions({"kp-life": 5})
    assert partitions_of(admin, "kp-life") == [0, 1, 2, 3, 4]
    admin.delete_topics(["kp-life"])
    assert "kp-life" not in admin.list_topics()


def test_admin_topic_is_described_and_deleted_by_its_id(admin: Any) -> None:
    admin.create_topics({"kp-id": {"num_partitions": 1, "replication_factor": 1}})
    (by_name,) = admin.describe_topics(["kp-id"])
    topic_id = UUID(str(by_name["topic_id"]))
    (by_id,) = admin.describe_topics([topic_id])
    assert by_id["name"] == "kp-id"
    admin.delete_topics([topic_id])
    assert "kp-id" not in admin.list_topics()


def test_admin_topic_that_exists_and_one_that_does_not_are_refused(admin: Any) -> None:
    admin.create_topics(["kp-twice"])
    with pytest.raises(kafka_errors.TopicAlreadyExistsError):
        admin.create_topics(["kp-twice"])
    with pytest.raises(kafka_errors.UnknownTopicOrPartitionError):
        admin.delete_topics(["kp-never"])
    with pytest.raises(kafka_errors.InvalidTopicError):
        admin.create_topics(["kp twice"])


def test_admin_validate_only_creates_nothing(admin: Any) -> None:
    admin.create_topics(["kp-dry"], validate_only=True)
    assert "kp-dry" not in admin.list_topics()


def test_admin_settings_of_a_topic_change(admin: Any) -> None:
    admin.create_topics({"kp-set": {"configs": {"retention.ms": "1000"}}})
    kind = ConfigResourceType.TOPIC
    assert settings_of(admin, kind, "kp-set")["retention.ms"]["value"] == "1000"
    admin.alter_configs([ConfigResource(kind, "kp-set", {"retention.ms": "2000"})])
    assert settings_of(admin, kind, "kp-set")["retention.ms"]["value"] == "2000"
    admin.reset_configs([ConfigResource(kind, "kp-set", ["retention.ms"])])
    assert settings_of(admin, kind, "kp-set")["retention.ms"]["value"] == "604800000"


def test_admin_settings_of_the_broker_are_described(admin: Any) -> None:
    settings = settings_of(admin, ConfigResourceType.BROKER, "0")
    assert settings["num.io.threads"]["value"] == "2"


def test_admin_offsets_and_deleted_records(admin: Any, kbroker_broker: Broker) -> None:
    stays = {"retention.ms": "-1"}  # its records are of 1970
    admin.create_topics(
        {"kp-records": {"num_partitions": 1, "replication_factor": 1, "configs": stays}}
    )
    producer = KafkaProducer(bootstrap_servers=kbroker_broker.bootstrap)
    for number in range(10):
        producer.send("kp-records", b"%d" % number, timestamp_ms=1000 + number).get(timeout=30)
    producer.close()
    place = TopicPartition("kp-records", 0)

    def offset(spec: int) -> int:
        found: int = admin.list_partition_offsets({place: spec})[place].offset
        return found

    assert (offset(-2), offset(-1), offset(-3), offset(1004)) == (0, 10, 9, 4)
    assert admin.delete_records({place: 6})[place]["low_watermark"] == 6
    assert (offset(-2), offset(-1), offset(1004)) == (6, 10, 6)
    with pytest.raises(kafka_errors.OffsetOutOfRangeError):
        admin.delete_records({place: 11})
    assert admin.delete_records({place: -1})[place]["low_watermark"] == 10


def test_admin_log_dirs_hold_the_partitions(admin: Any, kbroker_broker: Broker) -> None:
    admin.create_topics({"kp-dirs": {"num_partitions": 3, "replication_factor": 1}})
    (described,) = admin.describe_log_dirs({"kp-dirs": [0, 1, 2]})
    (directory,) = described["log_dirs"]
    assert directory["log_dir"] == str(kbroker_broker.data_dir)
    assert directory["total_bytes"] >= directory["usable_bytes"] > 0
    (topic,) = directory["topics"]
    assert sorted(p["partition_index"] for p in topic["partitions"]) == [0, 1, 2]


def test_admin_topic_partitions_come_page_by_page(admin: Any) -> None:
    admin.create_topics({"kp-pages": {"num_partitions": 3, "replication_factor": 1}})
    first = admin.describe_topic_partitions(["kp-pages"], response_partition_limit=2)
    assert len(first["topics"][0]["partitions"]) == 2
    rest = admin.describe_topic_partitions(["kp-pages"], cursor=first["next_cursor"])
    assert [p["partition_index"] for p in rest["topics"][0]["partitions"]] == [2]
    assert rest["next_cursor"] is None


def test_admin_cluster_and_acls(admin: Any, kbroker_broker: Broker) -> None:
    cluster = admin.describe_cluster()
    assert cluster["controller_id"] == 0
    assert [(b["host"], b["port"]) for b in cluster["brokers"]] == [
        (kbroker_broker.host, kbroker_broker.port)
    ]
    anything = ACLFilter(
        principal=None,
        host=None,
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
        resource_pattern=ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
    )
    with pytest.raises(kafka_errors.SecurityDisabledError):
        admin.describe_acls(anything)
