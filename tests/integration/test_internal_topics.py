"""The topics of coordinators: created when first needed, as configured."""

from __future__ import annotations

from typing import Any

import pytest
from support.clients.wire_client import WireClient, batch_of

from kbroker.errors import ErrorCode
from kbroker.protocol.messages.describe_configs import DescribeConfigsRequest
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

SETTINGS = {
    "offsets.topic.num.partitions": 3,
    "offsets.topic.segment.bytes": 1_000_000,
    "transaction.state.log.num.partitions": 5,
    "transaction.state.log.segment.bytes": 2_000_000,
}
TOPIC_TYPE, DYNAMIC_TOPIC = 2, 1
OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


def topics_of(client: WireClient) -> dict[str, tuple[bool, int]]:
    """Whether each topic is internal, and its number of partitions."""
    found = client.call(MetadataRequest(topics=None), 9).topics
    return {topic.name: (topic.is_internal, len(topic.partitions)) for topic in found}


def settings_of(client: WireClient, topic: str) -> dict[str, Any]:
    """The configs that the topic was created with."""
    cls = DescribeConfigsRequest
    resource = cls.DescribeConfigsResource(resource_type=TOPIC_TYPE, resource_name=topic)
    (result,) = client.call(cls(resources=[resource]), 4).results
    return {c.name: c.value for c in result.configs if c.config_source == DYNAMIC_TOPIC}


def test_internal_topics_are_created_on_first_use() -> None:
    with Broker(SETTINGS) as broker, WireClient((broker.host, broker.port)) as client:
        assert topics_of(client) == {}
        for key_type in (0, 1):
            request = FindCoordinatorRequest(key="k", key_type=key_type)
            assert client.call(request, 1).error_code == 0

        assert topics_of(client) == {OFFSETS: (True, 3), TRANSACTIONS: (True, 5)}
        assert settings_of(client, OFFSETS) == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": "1000000",
        }
        assert settings_of(client, TRANSACTIONS) == {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": "1",
            "segment.bytes": "2000000",
            "unclean.leader.election.enable": "false",
        }
        for topic in (OFFSETS, TRANSACTIONS):
            response = client.produce(topic, {0: batch_of([b"value"])})[0]
            assert response.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("auto_create", ["true", "false"])
def test_internal_topics_need_no_automatic_creation(auto_create: str) -> None:
    settings = {**SETTINGS, "auto.create.topics.enable": auto_create}
    with Broker(settings) as broker, WireClient((broker.host, broker.port)) as client:
        assert client.call(FindCoordinatorRequest(key="k"), 1).error_code == 0
        assert list(topics_of(client)) == [OFFSETS]


def test_topic_that_is_not_created_by_itself_is_in_the_log_with_the_reason() -> None:
    """Metadata has no field for a message, and clients retry silently."""
    settings = {**SETTINGS, "partition.table.slots": 2, "default.replication.factor": 3}
    with Broker(settings) as broker, WireClient((broker.host, broker.port)) as client:
        for _ in range(2):
            response = client.call(FindCoordinatorRequest(key="k"), 1)
            assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="plain")])
            (topic,) = client.call(asked, 9).topics
            assert topic.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        said = [line for line in broker.log_text.splitlines() if "cannot create" in line]

    internal, plain = said  # once each, for clients ask many times a second
    assert f"WARNING [controller-0] cannot create topic {OFFSETS}" in internal
    assert "partition.table.slots" in internal
    assert "cannot create topic plain" in plain and "Replication factor 3" in plain
