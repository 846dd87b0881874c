"""Two brokers, of which one is killed: with one replica in sync of two that min.insync.replicas
wants, coordinators acknowledge nothing and no marker is written; afterwards all continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.clients.coordinator_client import Client, code_in, commit_request, response_to_join
from support.clients.wire_client import WireClient

from kbroker.coordinator.partitioner import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from kbroker.protocol.messages.end_txn import EndTxnRequest
from kbroker.protocol.messages.init_producer_id import InitProducerIdRequest
from kbroker.protocol.messages.sync_group import SyncGroupRequest
from kbroker.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from kbroker.testing import Broker, Cluster, wait_until

pytestmark = pytest.mark.integration

PATIENCE_S = 90
NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    settings = {
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.min.isr": 2,
        "min.insync.replicas": 2,
        "num.io.threads": 1,
    }
    with Cluster(2, settings) as started:
        yield started


def leader(cluster: Cluster, topic: str) -> Broker:
    found = [one for one in cluster.partitions(topic).values() if one.leader >= 0]
    assert len(found) == 1, found
    return cluster.brokers[found[0].leader]


def init_request(name: str) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)


def end_request(name: str, started: Any) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=name,
        producer_id=started.producer_id,
        producer_epoch=started.producer_epoch,
        committed=True,
    )


def add_request(name: str, started: Any) -> AddPartitionsToTxnRequest:
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0])
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=started.producer_id,
        v3_and_below_producer_epoch=started.producer_epoch,
        v3_and_below_topics=[topic],
    )


def added(response: Any) -> int:
    (topic,) = response.results_by_topic_v3_and_below
    return int(topic.results_by_partition[0].partition_error_code)


def marker_code(wire: WireClient, started: Any) -> int:
    """Of a marker that an administrator, or another broker's coordinator, has written."""
    cls = WriteTxnMarkersRequest
    marker = cls.WritableTxnMarker(
        producer_id=started.producer_id,
        producer_epoch=started.producer_epoch,
        transaction_result=False,
        topics=[cls.WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
    )
    (told,) = wire.call(cls(markers=[marker]), 1).markers
    return int(told.topics[0].partitions[0].error_code)


def settled(wire: WireClient, request: Any, version: int) -> Any:
    """The response of a coordinator that has loaded its partition."""
    found: list[Any] = []

    def is_loaded() -> bool:
        found.append(wire.call(request, version))
        loading = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
        return code_in(found[-1]) not in loading

    wait_until(is_loaded, PATIENCE_S, "the coordinator serves")
    return found[-1]


def is_only_replica(cluster: Cluster, topic: str, broker: int) -> bool:
    found = cluster.partitions(topic)
    return bool(found) and all(
        (one.leader, set(one.in_sync)) == (broker, {broker}) for one in found.values()
    )


def test_coordinators_need_as_many_replicas_as_produces_do(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (created,) = admin.create_topics([NewTopic("t", 1, 2)]).values()
    created.result(PATIENCE_S)
    Client(cluster.brokers[0])  # both internal topics are there
    for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "t"):
        cluster.wait_in_sync(topic, timeout=PATIENCE_S)
    assert Client(leader(cluster, OFFSETS_TOPIC)).commit(5) == 0
    transactions = Client(leader(cluster, TRANSACTIONS_TOPIC))
    started = transactions.ask(init_request("x"), 2)
    assert added(transactions.ask(add_request("x", started), 2)) == 0
    idle = transactions.ask(init_request("idle"), 2)
    kept, lost = 0, 1

    cluster.kill(lost)
    for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "t"):
        wait_until(
            lambda t=topic: is_only_replica(cluster, t, kept), PATIENCE_S, f"{topic} has one"
        )
    client = Client(cluster.brokers[kept])
    wire = client.wire
    commit = commit_request(6, "g")
    assert code_in(settled(wire, commit, 7)) == NOT_AVAILABLE
    assert client.fetch() == (5, 0), "what was committed can be read"
    for _ in range(3):
        assert settled(wire, init_request("idle"), 2).error_code == NOT_AVAILABLE
        assert settled(wire, init_request("new"), 2).error_code == NOT_AVAILABLE
    assert settled(wire, end_request("x", started), 2).error_code == NOT_AVAILABLE
    assert marker_code(wire, started) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert sync_of_a_new_group(client) == NOT_AVAILABLE

    cluster.restart(lost)
    for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "t"):
        cluster.wait_in_sync(topic, timeout=PATIENCE_S)
    assert Client(leader(cluster, OFFSETS_TOPIC)).commit(6) == 0
    transactions = Client(leader(cluster, TRANSACTIONS_TOPIC))
    assert transactions.ask(end_request("x", started), 2).error_code == 0
    again = transactions.ask(init_request("idle"), 2)
    assert (again.producer_id, again.producer_epoch) == (
        idle.producer_id,
        idle.producer_epoch + 1,
    )
    started_again = transactions.ask(init_request("x"), 2)
    assert started_again.producer_id == started.producer_id, "its transaction is complete"


def sync_of_a_new_group(client: Client) -> int:
    """The error of a leader that sends the assignment of its group."""
    client.join(group="other")
    joined = response_to_join(client)
    assert joined.error_code == 0
    cls = SyncGroupRequest
    request = cls(
        group_id="other",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[cls.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")],
    )
    return int(client.wire.call(request, 2).error_code)
