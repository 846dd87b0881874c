"""Committed offsets over real processes: every version, kills, restarts, an expiry, a deletion."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.wire_client import WireClient
from support.running.grids import some_of

from kbroker.errors import ErrorCode
from kbroker.protocol.messages.create_topics import CreateTopicsRequest
from kbroker.protocol.messages.delete_topics import DeleteTopicsRequest
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

SETTINGS = {
    "num.io.threads": 2,
    "offsets.topic.num.partitions": 2,
    "offsets.retention.check.interval.ms": 100,
}
NOTHING = -1


class Client:
    """Commits and fetches partition 0 of a topic; retries while the coordinator is away."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.wire = WireClient((broker.host, broker.port))

    def reconnect(self) -> None:
        self.wire.close()
        self.wire = WireClient((self.broker.host, self.broker.port))

    def create_topic(self, name: str) -> None:
        cls = CreateTopicsRequest
        topic = cls.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        self.wire.call(cls(topics=[topic], timeout_ms=10_000), 4)

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.broker.metrics_url}/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        values = [line.split()[-1] for line in lines if line.split()[0].split("{")[0] == name]
        assert values, name
        return sum(map(float, values))

    def topic_id(self, name: str) -> bytes:
        cls = MetadataRequest
        response = self.wire.call(cls(topics=[cls.MetadataRequestTopic(name=name)]), 12)
        return bytes(response.topics[0].topic_id)

    def commit(
        self, group: str, offset: int, version: int = 8, topic: str = "t", **more: Any
    ) -> int:
        cls = OffsetCommitRequest
        entry = cls.OffsetCommitRequestTopic(
            name=topic if version < 10 else "",
            topic_id=self.topic_id(topic) if version >= 10 else bytes(16),
            partitions=[
                cls.OffsetCommitRequestPartition(
                    partition_index=0, committed_offset=offset, committed_metadata="m"
                )
            ],
        )
        response = self.wire.call(cls(group_id=group, topics=[entry], **more), version)
        return int(response.topics[0].partitions[0].error_code)

    def committed(self, group: str, offset: int, version: int = 8, **more: Any) -> None:
        """Commit until it is accepted."""
        self.wire.call(FindCoordinatorRequest(key=group), 1)
        wait_until(lambda: self.commit(group, offset, version, **more) == 0, 30, "it is committed")

    def fetch(self, group: str, version: int = 7, topic: str = "t") -> int:
        """The offset; NOTHING if there is none. Raises AssertionError for any error."""
        cls = OffsetFetchRequest
        if version < 8:
            asked = cls.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
            response = self.wire.call(cls(group_id=group, topics=[asked]), version)
        else:
            entry = cls.OffsetFetchRequestTopics(
                name=topic if version < 10 else "",
                topic_id=self.topic_id(topic) if version >= 10 else bytes(16),
                partition_indexes=[0],
            )
            asked = cls.OffsetFetchRequestGroup(group_id=group, topics=[entry])
            response = self.wire.call(cls(groups=[asked]), version).groups[0]
        assert response.error_code == 0, response
        (partition,) = response.topics[0].partitions
        assert partition.error_code == 0, response
        return int(partition.committed_offset)

    def fetched(self, group: str, **more: Any) -> int:
        """The offset, as soon as the coordinator is available."""
        found: list[int] = []

        def is_told() -> bool:
            try:
                found.append(self.fetch(group, **more))
            except AssertionError:
                return False
            except OSError:
                self.reconnect()
                return False
            return True

        wait_until(is_told, 30, "the coordinator tells the offset")
        return found[-1]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def shared() -> Iterator[Client]:
    """Of a broker whose processes all live."""
    with Broker(SETTINGS) as running:
        client = Client(running)
        yield client
        client.wire.close()


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    client = Client(broker)
    client.create_topic("t")
    yield client
    client.wire.close()


def test_every_version_commits_and_fetches(client: Client) -> None:
    for version in range(1, 11):
        client.committed(f"g{version}", 100 + version, version)
    for version in range(1, 11):
        for group in range(1, 11):
            assert client.fetch(f"g{group}", version) == 100 + group

    assert client.metric("kbroker_committed_offsets") == 10


def test_metrics_tell_how_long_commits_and_loads_took(client: Client) -> None:
    for number in range(8):
        client.committed(f"g{number}", number)

    def counted() -> bool:
        return client.metric("kbroker_offset_commit_requests_total") >= 8

    wait_until(counted, 30, "the commits are counted")
    assert client.metric("kbroker_offset_commit_microseconds_total") > 0
    assert client.metric("kbroker_coordinator_loads_total") == 2
    for index in range(2):
        client.broker.kill("io", index)
    assert client.fetched("g1") == 1
    wait_until(lambda: client.metric("kbroker_coordinator_loads_total") == 4, 30, "loads counted")
    assert client.metric("kbroker_coordinator_load_microseconds_total") > 0


def test_version_0_is_a_store_of_its_own(client: Client) -> None:
    client.committed("g", 7)
    assert client.commit("g", 5, 0) == 0
    assert client.commit("a/b", 5, 0) == ErrorCode.INVALID_GROUP_ID

    assert client.fetch("g") == 7
    with pytest.raises(AssertionError, match="error_code=3"):
        client.fetch("other", 0)
    client.broker.restart()
    client.reconnect()

    assert client.fetched("g", version=0) == 5
    assert client.fetched("g") == 7


@pytest.mark.parametrize("rounds", some_of([1, 3], [1]))
def test_offsets_survive_kills_of_their_coordinators(client: Client, rounds: int) -> None:
    for round_ in range(rounds):
        for number in range(8):
            client.committed(f"g{number}", round_ * 100 + number)
        for index in range(2):
            client.broker.kill("io", index)

        found = [client.fetched(f"g{number}") for number in range(8)]

        assert found == [round_ * 100 + number for number in range(8)]
    client.broker.kill_all()
    client.broker.start()
    client.reconnect()
    last = [(rounds - 1) * 100 + number for number in range(8)]
    assert [client.fetched(f"g{number}") for number in range(8)] == last


def test_offset_with_a_short_life_expires(shared: Client) -> None:
    client = shared
    client.create_topic("t")
    client.committed("short", 1, 2, retention_time_ms=1)
    client.committed("long", 2, 2)

    wait_until(lambda: client.fetch("short") == NOTHING, 30, "the offset has expired")

    assert client.fetch("long") == 2


def test_deleted_topic_takes_its_offsets_along(shared: Client) -> None:
    """The last of the shared broker: it leaves another topic of the same name."""
    client = shared
    client.create_topic("t")  # unless it is there
    client.create_topic("u")
    client.committed("g", 1)
    client.committed("g", 2, topic="u")

    client.wire.call(DeleteTopicsRequest(topic_names=["t"], timeout_ms=10_000), 4)
    wait_until(lambda: client.fetch("g") == NOTHING, 30, "the offset is gone")
    client.create_topic("t")

    assert client.fetch("g") == NOTHING
    assert client.fetch("g", topic="u") == 2
