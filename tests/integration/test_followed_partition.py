"""A real broker follows the test's leader, as ordered by the test's controller."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clients.control_client import Controller, controlled_broker
from support.clients.wire_client import WireClient, batch_of
from support.replication.scripted_leader import LedLog, ScriptedLeader

from kbroker.cluster.control_requests import LiveBroker
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

TOPIC, LEADER = "followed", 5
PATIENCE_S = 60


class Pair:
    """The broker, its leader, and their controller."""

    def __init__(self, broker: Broker, leader: ScriptedLeader) -> None:
        self.broker = broker
        self.leader = leader
        self.controller = Controller(broker, TOPIC)
        endpoint = ["PLAINTEXT", "127.0.0.1", leader.port, "PLAINTEXT"]
        self.controller.others = {LEADER: LiveBroker([endpoint], None)}

    @property
    def log(self) -> LedLog:
        return self.leader.log(TOPIC)

    def follow(self, leader_epoch: int) -> None:
        self.log.epoch = leader_epoch
        assert self.controller.tell(leader_epoch, LEADER) is ErrorCode.NONE
        assert self.controller.lead(leader_epoch, LEADER) is ErrorCode.NONE

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.log.append(3, size=200)
        self.leader.publish()

    def copied(self) -> bytes:
        directory = Path(self.broker.config["log.dirs"]) / f"{TOPIC}-0"
        return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))

    def await_copy(self) -> None:
        wait_until(lambda: self.copied() == self.log.data(), PATIENCE_S, "the logs are the same")


@pytest.fixture
def pair() -> Iterator[Pair]:
    with (
        ScriptedLeader() as leader,
        controlled_broker(num_io_threads=1, replica_fetch_backoff_ms=50) as broker,
    ):
        yield Pair(broker, leader)


def offsets_of(fetches: list[Any]) -> list[int]:
    return [p.fetch_offset for f in fetches for t in f.topics for p in t.partitions]


def produce(broker: Broker) -> ErrorCode:
    cls = ProduceRequest
    partition = cls.PartitionProduceData(index=0, records=batch_of([b"own"]))
    topics = [cls.TopicProduceData(name=TOPIC, partition_data=[partition])]
    with WireClient((broker.host, broker.port)) as client:
        response = client.call(cls(acks=1, timeout_ms=10_000, topic_data=topics), 8)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


def test_followed_log_is_the_leaders_through_kills_and_a_change_of_roles(pair: Pair) -> None:
    pair.append(5)
    pair.follow(1)
    pair.await_copy()
    assert produce(pair.broker) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    for end in (15, 135):
        asked = len(pair.leader.fetches)
        pair.append(20)
        pair.broker.kill("io")
        pair.append(20)
        pair.await_copy()
        assert min(offsets_of(pair.leader.fetches[asked:])) >= end

    assert pair.controller.lead(2) is ErrorCode.NONE
    wait_until(lambda: produce(pair.broker) is ErrorCode.NONE, PATIENCE_S, "leads")
    own = pair.copied()
    assert own.startswith(pair.log.data()) and len(own) > len(pair.log.data())

    # It led for an epoch that its next leader does not know.
    pair.follow(3)
    pair.append(2)
    pair.await_copy()
