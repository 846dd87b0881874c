"""What is said of a whole cluster, with and without its topics."""

from __future__ import annotations

from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker

from kbroker.client.admin.cluster import describe_cluster, summarize_cluster
from kbroker.client.connections.cluster import Cluster
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.describe_cluster import DescribeClusterResponse
from kbroker.protocol.messages.metadata import MetadataResponse

pytestmark = pytest.mark.unit

LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC = 5, 3


def partition(number: int, leader: int, replicas: list[int], isr: list[int]) -> Any:
    return MetadataResponse.MetadataResponsePartition(
        partition_index=number, leader_id=leader, replica_nodes=replicas, isr_nodes=isr
    )


class Broken(FakeBroker):
    """Leads some partitions, and knows of a broker that is gone."""

    def metadata(self, request: Any, state: dict[str, Any]) -> Any:
        row = MetadataResponse.MetadataResponseTopic
        return MetadataResponse(
            cluster_id="c",
            controller_id=2,
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=n, host="127.0.0.1", port=self.port)
                for n in (2, 1)
            ],
            topics=[
                row(name="z", partitions=[partition(0, 1, [1, 2], [1])]),
                row(name="__o", is_internal=True, partitions=[partition(0, 2, [2, 3], [2])]),
                row(
                    name="a",
                    error_code=LEADER_NOT_AVAILABLE,
                    partitions=[partition(1, -1, [3], [3]), partition(0, 1, [1], [1])],
                ),
                row(name="gone", error_code=UNKNOWN_TOPIC),
            ],
        )


def test_summary_is_that_of_all_topics() -> None:
    with Broken({}) as broker, Cluster(broker.bootstrap) as cluster:
        state, found = describe_cluster(cluster), summarize_cluster(cluster)

    assert (found.cluster_id, found.controller) == ("c", 2)
    assert [(row.node, row.leads, row.replicas) for row in found.brokers] == [(1, 2, 2), (2, 1, 2)]
    assert (found.topics, found.internal_topics, found.partitions) == (3, 1, 4)
    assert found.offline == [("a", 1)]
    assert found.under_replicated == [("__o", 0), ("z", 0)]
    assert found[:3] == state[:3]
    assert (found.offline, found.under_replicated) == (state.offline(), state.under_replicated())
    assert [topic.name for topic in state.topics] == ["__o", "a", "z"]


class Counting(Broken):
    """Of ours: counts them."""

    def describe_cluster(self, request: Any, state: dict[str, Any]) -> Any:
        assert request.include_partitions and request.include_fenced_brokers
        cls = DescribeClusterResponse
        row, trouble = cls.DescribeClusterBroker, cls.TroubledPartition
        return cls(
            cluster_id="c",
            controller_id=2,
            brokers=[
                row(broker_id=2, host="127.0.0.1", port=self.port, leads=1, replicas=2),
                row(broker_id=1, host="127.0.0.1", port=self.port, leads=2, replicas=2),
                row(broker_id=3, host="", port=-1, is_fenced=True, leads=0, replicas=2),
                row(broker_id=4, host="", port=-1, is_fenced=True, leads=0, replicas=0),
            ],
            topics=3,
            internal_topics=1,
            partitions=4,
            troubled=[
                trouble(topic="z", partition=0, leader=1, replicas=[1, 2], isr=[1]),
                trouble(topic="a", partition=1, leader=-1, replicas=[3], isr=[3]),
                trouble(topic="__o", partition=0, leader=2, replicas=[2, 3], isr=[2]),
            ],
        )


def test_summary_of_a_broker_that_counts_is_the_same_without_its_topics() -> None:
    versions = {int(key): key.versions for key in ApiKey if key < 70}
    with Broken({}) as other, Cluster(other.bootstrap) as cluster:
        expected = summarize_cluster(cluster)
    with Counting({}, versions) as broker, Cluster(broker.bootstrap) as cluster:
        broker.answers[ApiKey.DESCRIBE_CLUSTER] = broker.describe_cluster
        found = summarize_cluster(cluster)

    assert ApiKey.METADATA not in [key for key, _ in broker.headers]
    addressed = [row._replace(port=other.port) for row in found.brokers]
    assert found._replace(brokers=addressed) == expected
