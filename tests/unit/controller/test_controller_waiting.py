"""What a controller says that it waits for."""

from __future__ import annotations

import pytest
from support.controller.controlled import Controlled

from kbroker.controller.replicas import waiting as module
from kbroker.controller.replicas.waiting import waiting
from kbroker.controller.state.state import DeletionBegun, LogsDeleted, PartitionState

pytestmark = pytest.mark.unit


@pytest.fixture
def cluster() -> Controlled:
    """Broker 0 leads both partitions of ``t``, of which the second has no other replica."""
    made = Controlled()
    made.register(0, 1, 2)
    states = {0: PartitionState(0, 3, [0, 1], [0, 1]), 1: PartitionState(0, 0, [0], [0])}
    made.create_topic("t", [0, 1], [0], states=states)
    made.start()
    return made


def lines(cluster: Controlled) -> list[tuple[str, str, str]]:
    return [tuple(row) for row in waiting(cluster.state)]


def test_nothing_waits_in_a_cluster_that_is_left_alone(cluster: Controlled) -> None:
    assert lines(cluster) == []


def test_deletion_waits_for_brokers_and_first_for_those_that_are_gone(cluster: Controlled) -> None:
    cluster.state.enter(DeletionBegun("t"))
    assert lines(cluster) == [("deletion", "t", "brokers 0, 1 to delete its replicas")]
    cluster.state.remove_broker(1)
    reason = "broker 1, not registered, to delete its replicas"
    assert lines(cluster) == [("deletion", "t", reason)]
    cluster.state.enter(LogsDeleted("t"))
    reason = "its nodes to be removed from the metadata store"
    assert lines(cluster) == [("deletion", "t", reason)]


def test_reassignment_waits_for_replicas_to_be_in_sync(cluster: Controlled) -> None:
    cluster.run(cluster.background.reassigning._alter({("t", 0): [1, 2]}))
    assert lines(cluster) == [("reassignment", "t-0", "broker 2 to be in sync")]
    cluster.state.remove_broker(2)
    reason = "broker 2 to be in sync; broker 2: not registered"
    assert lines(cluster) == [("reassignment", "t-0", reason)]


def test_controlled_shutdown_waits_for_heirs(cluster: Controlled) -> None:
    cluster.state.shutting_down.add(0)
    reason = "other replicas in sync of 1 partition, t-0 among them"
    assert lines(cluster) == [("controlled shutdown", "broker 0", reason)]
    cluster.state.shutting_down = {1}
    assert lines(cluster) == [("controlled shutdown", "broker 1", "itself to stop")]


def test_list_is_bounded(cluster: Controlled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_MAX", 1)
    cluster.state.shutting_down = {0, 1, 2}
    cluster.state.enter(DeletionBegun("t"))
    assert [kind for kind, *_ in lines(cluster)] == ["deletion", "controlled shutdown"]
