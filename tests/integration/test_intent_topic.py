"""The topic of exactly-once writes, on brokers of any age."""

from __future__ import annotations

from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker, Respond

from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import RejectedError
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.protocol.messages.describe_configs import DescribeConfigsResponse
from kbroker.protocol.messages.find_coordinator import FindCoordinatorResponse
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.protocol.messages.offset_commit import OffsetCommitResponse
from kbroker.protocol.messages.offset_fetch import OffsetFetchResponse
from kbroker.spark.intents import Intents

pytestmark = pytest.mark.integration


@pytest.fixture
def old() -> Any:
    """A broker before Kafka 2.4, which requires a number of replicas.

    ``settings``: its own. ``made``: how many replicas the topic was made with."""
    settings: dict[str, str] = {}
    made: list[int] = []

    def create(request: Any, state: dict[str, Any]) -> Any:
        (topic,) = request.topics
        refused = topic.replication_factor < 1
        code = ErrorCode.INVALID_REPLICATION_FACTOR if refused else ErrorCode.NONE
        if not refused:
            made.append(topic.replication_factor)
        row = CreateTopicsResponse.CreatableTopicResult(name=topic.name, error_code=int(code))
        return CreateTopicsResponse(topics=[row])

    def configs(request: Any, state: dict[str, Any]) -> Any:
        cls = DescribeConfigsResponse
        rows = [
            cls.DescribeConfigsResourceResult(name=name, value=value)
            for name, value in settings.items()
        ]
        return cls(results=[cls.DescribeConfigsResult(configs=rows)])

    def metadata(request: Any, state: dict[str, Any]) -> Any:
        response: Any = broker.metadata(request, state)
        cls = MetadataResponse
        if made and request.topics:
            part = cls.MetadataResponsePartition(partition_index=0, leader_id=0)
            response.topics = [cls.MetadataResponseTopic(name="intents", partitions=[part])]
        return response

    answers: dict[int, Respond] = {
        ApiKey.METADATA: metadata,
        ApiKey.CREATE_TOPICS: create,
        ApiKey.DESCRIBE_CONFIGS: configs,
        ApiKey.FIND_COORDINATOR: lambda *_: FindCoordinatorResponse(
            node_id=0, host="127.0.0.1", port=broker.port
        ),
        ApiKey.OFFSET_FETCH: lambda *_: OffsetFetchResponse(),
        ApiKey.OFFSET_COMMIT: lambda *_: OffsetCommitResponse(),
    }
    versions = {int(key): key.versions for key in ApiKey if key < 40}
    versions[CreateTopicsRequest.API_KEY] = (0, 3)
    with FakeBroker(answers, versions) as broker:
        broker.settings, broker.made = settings, made  # type: ignore[attr-defined]
        yield broker


def test_intent_topic_gets_as_many_replicas_as_an_old_broker_makes_by_default(old: Any) -> None:
    """Kafka 1.1 rejected "the broker's default": exactly-once writes were impossible with it."""
    old.settings["default.replication.factor"] = "3"

    with Cluster(old.bootstrap, deadline=30) as cluster:
        Intents(cluster, "intents", "p").mark_aborted("w", "attempt")

    assert old.made == [3]


def test_intent_topic_that_nobody_can_make_is_told_by_name(old: Any) -> None:
    with Cluster(old.bootstrap, deadline=30) as cluster, pytest.raises(RejectedError) as caught:
        Intents(cluster, "intents", "p").mark_aborted("w", "attempt")

    assert caught.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "create topic intents for exactly-once writes" in str(caught.value)
