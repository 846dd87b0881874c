"""Three brokers of Apache Kafka, with as much of ``kbroker.testing.Cluster`` as a comparison needs.

with KafkaCluster("2.7.2") as cluster:
    cluster.kill_at_once(0)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from support.brokers.kafka_servers import (
    REPLICATED,
    Kafka,
    Kafka27,
    Kafka39,
    Kafka39Voter,
    join_quorum,
)
from support.clients.wire_client import WireClient

from kbroker.protocol.messages.describe_quorum import DescribeQuorumRequest
from kbroker.testing import wait_until
from kbroker.testing.metadata import PartitionView, are_in_sync, membership, partition_states

BROKERS = 3
READY_S = 120.0


class KafkaCluster:
    """release: a key of ``RELEASES``. place: in ZooKeeper, if the release needs one. Sessions and
    timeouts are Kafka's defaults. ``directory`` is removed at the end.
    """

    def __init__(self, release: str, place: str) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="kafka-cluster-")
        self.directory = Path(self._place.name)
        self.brokers = RELEASES[release](self.directory, place)
        for broker in self.brokers:
            broker.config |= REPLICATED
        with ThreadPoolExecutor(BROKERS) as pool:
            list(pool.map(lambda broker: broker.start(), self.brokers))
        self.wait_ready()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for broker in self.brokers:
            broker.kill()
        self._place.cleanup()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def controller(self) -> int:
        """With KRaft that is the quorum's leader: Metadata names any broker there."""
        address = self._running()[0]
        if not isinstance(self.brokers[0], Kafka39):
            return membership(address).controller
        host, _, port = address.rpartition(":")
        metadata = DescribeQuorumRequest.PartitionData(partition_index=0)
        topic = DescribeQuorumRequest.TopicData(
            topic_name="__cluster_metadata", partitions=[metadata]
        )
        with WireClient((host, int(port))) as client:
            answer = client.call(DescribeQuorumRequest(topics=[topic]), 0)
        return int(answer.topics[0].partitions[0].leader_id)

    def partitions(self, topic: str) -> dict[int, PartitionView]:
        return partition_states(self._running()[0], topic)

    def wait_ready(self) -> None:
        """Wait until every running broker sees exactly the running ones."""

        def agree() -> bool:
            running = [broker.running for broker in self.brokers]
            ids = {number for number, runs in enumerate(running) if runs}
            for address in self._running():
                seen = membership(address).brokers
                assert seen == ids, f"{sorted(seen)} are registered"
            return True

        wait_until(agree, READY_S, "all brokers know each other")

    def wait_in_sync(self, topic: str) -> None:
        wait_until(
            lambda: are_in_sync(self._running(), topic),
            READY_S,
            f"the replicas of {topic} are in sync",
        )

    def kill_at_once(self, *brokers: int) -> None:
        for broker in brokers:
            self.brokers[broker].kill()

    def _running(self) -> list[str]:
        return [broker.bootstrap for broker in self.brokers if broker.running]


def _with_zookeeper(directory: Path, place: str) -> list[Kafka]:
    return [Kafka27(directory / str(n), place, broker_id=str(n)) for n in range(BROKERS)]


def _with_kraft(directory: Path, _: str) -> list[Kafka]:
    servers = [Kafka39Voter(directory / str(n), node_id=str(n)) for n in range(BROKERS)]
    join_quorum(servers, servers)
    return [*servers]


RELEASES: dict[str, Callable[[Path, str], list[Kafka]]] = {
    "2.7.2": _with_zookeeper,
    "3.9.1": _with_kraft,
}
