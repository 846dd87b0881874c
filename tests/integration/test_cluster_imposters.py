"""Clients that say they are brokers: what they send changes no leader, no ISR and no high
watermark of a cluster, whatever it is told of epochs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from support.brokers.zookeeper import skip_without_zookeeper
from support.clients.control_client import Controller
from support.clients.wire_client import LATEST, WireClient, batch_of
from support.running.grids import some_of

from kbroker.cluster.control_requests import LEADER_DURING_DELETE, Sender
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.alter_partition import AlterPartitionRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.testing import Broker, Cluster, wait_until

pytestmark = pytest.mark.integration

TOPIC, STRANGER = "t", 77
PATIENCE_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    skip_without_zookeeper()
    with Cluster(2) as started:
        with closing(KafkaAdminClient(bootstrap_servers=started.bootstrap)) as admin:
            admin.create_topics([NewTopic(TOPIC, -1, -1, replica_assignments={0: [0, 1]})])
        started.wait_in_sync(TOPIC)
        yield started


class State(NamedTuple):
    leader: int
    leader_epoch: int
    in_sync: list[int]


def state(cluster: Cluster) -> State:
    broker = cluster.brokers[0]
    with closing(WireClient((broker.host, broker.port))) as client:
        row = client.metadata(TOPIC).topics[0].partitions[0]
    return State(row.leader_id, row.leader_epoch, sorted(row.isr_nodes))


@pytest.fixture
def leader(cluster: Cluster) -> Broker:
    return cluster.brokers[state(cluster).leader]


def produced(client: WireClient) -> None:
    assert client.produce(TOPIC, {0: batch_of([b"x"])})[0].error_code == 0


def fetched_as(client: WireClient, replica: int, offset: int) -> Any:
    cls = FetchRequest
    row = cls.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=offset, log_start_offset=0,
        partition_max_bytes=1 << 20,
    )  # fmt: skip
    topic = cls.FetchTopic(topic=TOPIC, partitions=[row])
    request = cls(replica_id=replica, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[topic])
    return client.call(request, 11).responses[0].partitions[0]


def test_replica_of_no_assignment_moves_no_high_watermark(cluster: Cluster, leader: Broker) -> None:
    """The other replica does not respond: nothing that is written now is committed."""
    other = cluster.brokers[1 - int(leader.config["broker.id"])]
    with closing(WireClient((leader.host, leader.port))) as client:
        before = client.offset(TOPIC, 0, LATEST)
        pids = [other.pid, *other.pids.values()]  # the supervisor first: it would restart them
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            produced(client)
            for offset in (before, before + 1, before + 1):
                row = fetched_as(client, STRANGER, offset)
            assert (row.error_code, row.high_watermark) == (0, before)
            assert client.offset(TOPIC, 0, LATEST) == before
        finally:
            for pid in reversed(pids):
                os.kill(pid, signal.SIGCONT)
        wait_until(lambda: client.offset(TOPIC, 0, LATEST) == before + 1, PATIENCE_S, "committed")
    cluster.wait_in_sync(TOPIC)


def test_alter_isr_of_no_broker_changes_nothing(cluster: Cluster) -> None:
    before = state(cluster)
    controller = cluster.brokers[cluster.controller]
    cls = AlterPartitionRequest
    data = cls.PartitionData(
        partition_index=0,
        leader_epoch=before.leader_epoch,
        new_isr=[before.leader],
        partition_epoch=0,
    )
    topics = [cls.TopicData(topic_name=TOPIC, partitions=[data])]
    with closing(WireClient((controller.host, controller.port))) as client:
        for broker_id, epoch in ((STRANGER, 0), (before.leader, -1), (before.leader, 1 << 40)):
            asked = cls(broker_id=broker_id, broker_epoch=epoch, topics=topics)
            assert client.call(asked, 0).error_code == ErrorCode.STALE_BROKER_EPOCH

    assert state(cluster) == before


@pytest.mark.parametrize("epoch", some_of([0, 1 << 20], [1 << 20]))
def test_controller_that_was_never_elected_changes_nothing(
    cluster: Cluster, leader: Broker, epoch: int
) -> None:
    """One with an early epoch, and one that nobody else knows."""
    before = state(cluster)
    imposter = Controller(leader, TOPIC, epoch)
    imposter.sender = Sender(STRANGER, epoch)
    later = before.leader_epoch + 5

    assert imposter.lead(later, STRANGER) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert imposter.tell(later, LEADER_DURING_DELETE) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert imposter.stop(-2, delete=True) is ErrorCode.STALE_CONTROLLER_EPOCH

    assert state(cluster) == before
    with closing(WireClient((leader.host, leader.port))) as client:
        produced(client)
    with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin:
        admin.create_topics([NewTopic(f"after-{epoch}", 1, 2)])
    cluster.wait_in_sync(f"after-{epoch}")
