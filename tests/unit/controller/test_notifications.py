"""Notifications of brokers through nodes of the store: read, handled, and deleted."""

from __future__ import annotations

import logging

import pytest
from support.controller.controlled import Controlled

from kbroker.cluster.control_requests import (
    ControlRequest,
    ControlResponse,
    LeaderAndIsr,
    UpdateMetadata,
)
from kbroker.controller.state.state import PartitionState
from kbroker.errors import ErrorCode
from kbroker.metastore import paths
from kbroker.metastore.store import StoreOperation

pytestmark = pytest.mark.unit

FIRST, SECOND = ("t", 0), ("t", 1)


def cluster_of_two() -> Controlled:
    """Broker 0 leads partition 0 of ``t``, broker 1 partition 1; both have replicas of both."""
    made = Controlled()
    made.register(0, 1)
    states = {
        0: PartitionState(0, 3, [0, 1], [0, 1]),
        1: PartitionState(1, 3, [1, 0], [1, 0]),
    }
    made.create_topic("t", [0, 1], [1, 0], states=states)
    return made


@pytest.fixture
def cluster() -> Controlled:
    made = cluster_of_two()
    made.start()
    made.forget()
    return made


def report(cluster: Controlled, path: str, document: bytes) -> None:
    cluster.apply(StoreOperation("create", path, document, sequential=True))


def write_isr(cluster: Controlled, number: int, leader: int, isr: list[int]) -> None:
    """As the leader does in a protocol without AlterIsr."""
    document = paths.encode_partition_state(leader, 3, isr, 5)
    cluster.apply(StoreOperation("set", paths.partition_state("t", number), document))


def left(cluster: Controlled) -> list[str]:
    tree = cluster.ensemble.tree
    return [*tree.children(paths.ISR_CHANGES), *tree.children(paths.LOG_DIR_EVENTS)]


# -- in-sync replicas --


def test_in_sync_replicas_that_leaders_have_written_are_told_to_all(cluster: Controlled) -> None:
    write_isr(cluster, 0, 0, [0])
    write_isr(cluster, 1, 1, [1])
    report(cluster, paths.isr_change(), paths.encode_isr_change([FIRST]))
    report(cluster, paths.isr_change(), paths.encode_isr_change([SECOND, ("gone", 4)]))
    cluster.settle()

    for broker_id in (0, 1):
        told = {
            row.key: (row.isr, row.partition_epoch)
            for request in cluster.told(broker_id, UpdateMetadata)
            for row in request.partitions
        }
        assert told == {FIRST: ([0], 1), SECOND: ([1], 1)}
        assert cluster.told(broker_id, LeaderAndIsr) == []
    assert left(cluster) == []


def test_next_write_of_the_controller_is_based_on_what_the_leader_has_written(
    cluster: Controlled,
) -> None:
    write_isr(cluster, 0, 0, [0])
    report(cluster, paths.isr_change(), paths.encode_isr_change([FIRST]))
    cluster.settle()
    cluster.leave(0)
    cluster.settle()

    # Nobody else was in sync.
    assert cluster.stored() == (-1, 4, [0])


def test_notifications_from_before_a_failover_are_taken_and_deleted() -> None:
    cluster = cluster_of_two()
    report(cluster, paths.isr_change(), paths.encode_isr_change([FIRST]))
    report(cluster, paths.log_dir_event(), paths.encode_log_dir_event(1))
    cluster.start()

    assert left(cluster) == []


@pytest.mark.parametrize("document", [b"", b"{}", b'{"partitions":[{"topic":"t"}]}', b"[1]"])
def test_notification_that_nobody_can_read_is_deleted(
    cluster: Controlled, document: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        report(cluster, paths.isr_change(), document)
        report(cluster, paths.log_dir_event(), document)
        cluster.settle()

    assert left(cluster) == []
    assert caplog.text.count("ignoring the notification") == 2


def test_notifications_are_deleted_however_many_there_are(cluster: Controlled) -> None:
    for _ in range(250):
        report(cluster, paths.isr_change(), paths.encode_isr_change([FIRST]))
    cluster.settle(5_000)

    assert left(cluster) == []


# -- log directories --


def test_broker_with_a_failed_log_directory_is_asked_which_replicas_are_in_it(
    cluster: Controlled,
) -> None:
    def answer(broker_id: int, request: ControlRequest) -> ControlResponse:
        if broker_id == 0 and isinstance(request, LeaderAndIsr):
            epochs = {row.key: row.leader_epoch for row in request.partitions}
            code = ErrorCode.KAFKA_STORAGE_ERROR
            if epochs.get(FIRST) == 3:
                other = ErrorCode.STALE_CONTROLLER_EPOCH
                return ControlResponse(partitions={FIRST: code, SECOND: other})
        return ControlResponse()

    cluster.answers = answer
    report(cluster, paths.log_dir_event(), paths.encode_log_dir_event(0))
    cluster.settle()

    assert cluster.stored("t", 0) == (1, 4, [1])
    assert cluster.stored("t", 1) == (1, 3, [1, 0])  # in the other directory
    assert cluster.known(1)[FIRST] == (1, [0])
    assert cluster.stopped(0) == [(FIRST, False)]
    assert left(cluster) == []

    cluster.forget()
    report(cluster, paths.log_dir_event(), paths.encode_log_dir_event(0))
    cluster.settle()

    (request,) = cluster.told(0, LeaderAndIsr)
    assert [row.key for row in request.partitions] == [SECOND], "the first is known to be offline"


def test_replica_that_works_again_may_lead_again(cluster: Controlled) -> None:
    cluster.state.offline_replicas[0] = {FIRST}
    cluster.leave(1)  # has LeaderAndIsr sent, and broker 0 has no error for it
    cluster.settle()

    assert cluster.state.offline_replicas[0] == set()
    assert cluster.known(0)[FIRST] == (0, [1])


def test_event_of_a_broker_that_is_gone_is_deleted(cluster: Controlled) -> None:
    report(cluster, paths.log_dir_event(), paths.encode_log_dir_event(7))
    cluster.settle()

    assert left(cluster) == [] and cluster.told(0, LeaderAndIsr) == []
