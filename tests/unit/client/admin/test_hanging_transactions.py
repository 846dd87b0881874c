"""How hanging transactions are looked for: in few requests, of brokers of ours and of Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker

from kbroker.client.admin.partitions import delete_records
from kbroker.client.admin.transactions import describe_producers, hanging_transactions
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import RejectedError
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.delete_records import DeleteRecordsResponse
from kbroker.protocol.messages.describe_producers import DescribeProducersResponse
from kbroker.protocol.messages.list_transactions import ListTransactionsResponse
from kbroker.protocol.messages.metadata import MetadataResponse

pytestmark = pytest.mark.unit

TOPICS = 50
NOW_MS = 1_000_000


class Brokers:
    """Broker 0 of ours and broker 1 of Kafka, each with a replica of every partition: 0 leads that
    of ``led`` topics, 1 the others. open_in: by broker, topics with an open transaction.
    """

    def __init__(self, led: int) -> None:
        self.names = [f"topic-{number:02}" for number in range(TOPICS)]
        self.leaders = {name: int(at >= led) for at, name in enumerate(self.names)}
        self.open_in: dict[int, set[str]] = {0: set(), 1: set()}
        self.error = 0
        # By broker, how many partitions each DescribeProducers request names.
        self.asked: list[tuple[int, int]] = []
        self.metadata_requests = 0
        self.made = [
            FakeBroker(
                {
                    ApiKey.METADATA: self.metadata,
                    ApiKey.DESCRIBE_PRODUCERS: lambda request, state, node=node: self.producers(
                        node, request
                    ),
                    ApiKey.LIST_TRANSACTIONS: lambda request, state: ListTransactionsResponse(),
                    ApiKey.DELETE_RECORDS: self.delete_records,
                },
                {int(key): key.versions for key in ApiKey if key < 70},
            )
            for node in (0, 1)
        ]

    def metadata(self, request: Any, state: Any) -> Any:
        row = MetadataResponse.MetadataResponseTopic
        part = MetadataResponse.MetadataResponsePartition
        self.metadata_requests += 1
        names = self.names if request.topics is None else [one.name for one in request.topics]
        return MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(
                    node_id=node, host="127.0.0.1", port=broker.port
                )
                for node, broker in enumerate(self.made)
            ],
            topics=[
                row(
                    name=name,
                    partitions=[part(partition_index=0, leader_id=self.leaders[name],
                                     replica_nodes=[0, 1], isr_nodes=[0, 1])],
                )
                for name in names
            ],
        )  # fmt: skip

    def producers(self, node: int, request: Any) -> Any:
        self.asked.append((node, sum(len(one.partition_indexes) for one in request.topics)))
        is_late_only = node == 0 and request.late_before >= 0
        if is_late_only:
            assert request.late_before == NOW_MS
        names = self.open_in[0] if is_late_only else {one.name for one in request.topics}
        return DescribeProducersResponse(
            topics=[self._topic(node, name) for name in sorted(names)], only_late=is_late_only
        )

    def _topic(self, node: int, name: str) -> Any:
        row = DescribeProducersResponse.PartitionResponse(partition_index=0, error_code=self.error)
        if name in self.open_in[node] and not self.error:
            row.active_producers = [
                DescribeProducersResponse.ProducerState(
                    producer_id=7 + node, last_timestamp=5, current_txn_start_offset=3
                )
            ]
        return DescribeProducersResponse.TopicResponse(name=name, partitions=[row])

    def delete_records(self, request: Any, state: Any) -> Any:
        cls = DeleteRecordsResponse
        return cls(
            topics=[
                cls.DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=[cls.DeleteRecordsPartitionResult(partition_index=0)],
                )
                for topic in request.topics
            ]
        )


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Iterator[tuple[Brokers, Cluster]]:
    brokers = Brokers(getattr(request, "param", TOPICS))
    with ExitStack() as stack:
        for broker in brokers.made:
            stack.enter_context(broker)
        yield brokers, stack.enter_context(Cluster(brokers.made[0].bootstrap, deadline=5))


def found(cluster: Cluster, node: int | None = None) -> list[tuple[str, int]]:
    rows = hanging_transactions(cluster, None, NOW_MS, node)
    return sorted((key[0], row.producer_id) for key, row in rows)


def test_broker_of_ours_is_asked_once_for_all_its_partitions(made: tuple[Brokers, Cluster]) -> None:
    """Ten thousand partitions took a request for the leader of each topic, and a row each."""
    brokers, cluster = made
    brokers.open_in[0] = {"topic-03", "topic-40"}

    assert found(cluster, 0) == [("topic-03", 7), ("topic-40", 7)]
    assert brokers.asked == [(0, 0)]
    assert brokers.metadata_requests <= 2


@pytest.mark.parametrize("made", [30], indirect=True)
def test_brokers_of_kafka_are_asked_for_what_they_lead(made: tuple[Brokers, Cluster]) -> None:
    brokers, cluster = made
    brokers.open_in = {0: {"topic-03"}, 1: {"topic-03", "topic-40"}}

    assert found(cluster) == [("topic-03", 7), ("topic-40", 8)]
    assert brokers.asked == [(0, 0), (1, 0), (1, TOPICS - 30)]


def test_broker_of_kafka_is_asked_for_all_its_replicas_if_it_is_named(
    made: tuple[Brokers, Cluster],
) -> None:
    brokers, cluster = made
    brokers.open_in[1] = {"topic-03"}

    assert found(cluster, 1) == [("topic-03", 8)]
    assert brokers.asked == [(1, 0), (1, TOPICS)]


@pytest.mark.parametrize("made", [0], indirect=True)
def test_what_a_follower_has_yet_to_copy_the_end_of_does_not_hang(
    made: tuple[Brokers, Cluster],
) -> None:
    brokers, cluster = made
    brokers.open_in[0] = {"topic-03"}

    assert found(cluster) == []


def test_transaction_in_a_topic_that_may_not_be_read_is_an_error(
    made: tuple[Brokers, Cluster],
) -> None:
    brokers, cluster = made
    brokers.open_in[0] = {"topic-03"}
    brokers.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED

    with pytest.raises(RejectedError, match="topic-03-0"):
        found(cluster, 0)


@pytest.mark.parametrize("made", [30], indirect=True)
@pytest.mark.parametrize("asks", [describe_producers, delete_records])
def test_leaders_of_unknown_topics_are_asked_for_at_once(
    made: tuple[Brokers, Cluster], asks: Any
) -> None:
    brokers, cluster = made
    keys = [(name, 0) for name in brokers.names]

    assert asks(cluster, dict.fromkeys(keys, 0)).keys() == set(keys)
    assert brokers.metadata_requests <= 2
