"""A page of topics of brokers that page them, and of those that do not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker

from kbroker.client.admin.topics import search_topics
from kbroker.client.connections.cluster import Cluster
from kbroker.console.operation import page_of
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsResponse
from kbroker.protocol.messages.metadata import MetadataResponse

pytestmark = pytest.mark.unit

NAMES = [f"topic-{number:03}" for number in range(250)]
# Two responses: the second one has the rest of this topic.
WIDE = "topic-101"


class Paging(FakeBroker):
    """pages: whether it pages topics; what it was asked is in ``asked``."""

    def __init__(self, pages: bool, names: list[str]) -> None:
        super().__init__({}, {int(key): key.versions for key in ApiKey if key < 80})
        self.pages = pages
        self.names = names
        self.asked: list[tuple[str, int, int]] = []
        self.answers[ApiKey.DESCRIBE_TOPIC_PARTITIONS] = self.topics

    def metadata(self, request: Any, state: Any) -> Any:
        row, part = MetadataResponse.MetadataResponseTopic, MetadataResponse
        partition = part.MetadataResponsePartition(
            partition_index=0, leader_id=0, replica_nodes=[0], isr_nodes=[0]
        )
        response = super().metadata(request, state)
        if request.topics is None:
            response.topics = [row(name=name, partitions=[partition]) for name in self.names]
        return response

    def topics(self, request: Any, state: Any) -> Any:
        cls = DescribeTopicPartitionsResponse
        if not self.pages:
            return cls()
        self.asked.append((request.search, request.skip, request.topic_limit))
        names = [name for name in self.names if request.search in name]
        response = cls(total=len(names))
        for name in names[request.skip : request.skip + request.topic_limit]:
            first = 0
            if request.cursor is not None:
                if name < request.cursor.topic_name:
                    continue
                first = int(name == request.cursor.topic_name)
            numbers = range(first, 2 if name == WIDE else 1)
            response.topics.append(
                cls.DescribeTopicPartitionsResponseTopic(
                    name=name, partitions=[self._partition(number) for number in numbers[:1]]
                )
            )
            if name == WIDE and not first:
                response.next_cursor = cls.Cursor(topic_name=name, partition_index=1)
                break
        return response

    @staticmethod
    def _partition(number: int) -> Any:
        return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition(
            partition_index=number, leader_id=0, replica_nodes=[0], isr_nodes=[0]
        )


@pytest.fixture(params=[True, False], ids=["ours", "Kafka's"])
def made(request: pytest.FixtureRequest) -> Iterator[tuple[Paging, Cluster]]:
    with Paging(request.param, NAMES) as broker, Cluster(broker.bootstrap) as cluster:
        assert isinstance(broker, Paging)
        yield broker, cluster


def page(cluster: Cluster, **values: Any) -> tuple[list[str], str | None, int]:
    topics = search_topics(cluster, values.pop("search", ""), internal=False)
    asked = {"skip": 0, "limit": 100, "cursor": "", **values}
    rows, after = page_of(topics, asked, lambda topic: topic.name)
    return [topic.name for topic in rows], after, len(topics)


def test_pages_are_those_of_all_topics(made: tuple[Paging, Cluster]) -> None:
    broker, cluster = made
    first = page(cluster)
    second = page(cluster, cursor=first[1])
    last = page(cluster, skip=240)
    found = page(cluster, search="-24")

    assert first[0] == NAMES[:100]
    assert second[0] == NAMES[100:200]
    assert (last[0], last[1]) == (NAMES[240:], None)
    assert found[0] == NAMES[240:]
    assert [first[2], second[2], last[2], found[2]] == [250, 250, 250, 10]
    if broker.pages:
        assert max(limit for *_, limit in broker.asked) == 100
        assert ("", 240, 100) in broker.asked
        assert not [one for one in broker.requests if getattr(one, "topics", ()) is None]


def test_page_goes_on_behind_its_last_row_if_others_have_come(made: tuple[Paging, Cluster]) -> None:
    broker, cluster = made
    _, after, _ = page(cluster)
    broker.names = ["a", "b", *NAMES]

    assert page(cluster, cursor=after)[0] == NAMES[100:200]


def test_topic_with_more_partitions_than_a_response_is_whole() -> None:
    with Paging(True, NAMES) as broker, Cluster(broker.bootstrap) as cluster:
        rows = search_topics(cluster, "", internal=False)[100:103]

    assert [(row.name, [one.partition for one in row.partitions]) for row in rows] == [
        ("topic-100", [0]),
        (WIDE, [0, 1]),
        ("topic-102", [0]),
    ]
