"""Reassignments and elections that a controller carries out: the store, the brokers, the tools."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.controller.controlled import Controlled

from kbroker.cluster.control_requests import (
    EPOCH_DURING_DELETE,
    ControlRequest,
    ControlResponse,
    LeaderAndIsr,
    StopReplica,
)
from kbroker.controller.replicas import leader_balance
from kbroker.controller.replicas.isr_requests import WantedIsr
from kbroker.controller.replicas.leader_balance import FIRST_CHECK_MS, imbalanced
from kbroker.controller.state.state import PartitionState
from kbroker.errors import ErrorCode
from kbroker.ipc.pending import Pending
from kbroker.metastore import paths
from kbroker.metastore.store import StoreOperation

pytestmark = pytest.mark.unit

KEY = ("t", 0)


def started(*, start: bool = True) -> Controlled:
    """Broker 0 leads partition 0 of ``t``, broker 1 partition 1."""
    made = Controlled()
    made.register(0, 1, 2, 3)
    states = {
        0: PartitionState(0, 3, [0, 1], [0, 1]),
        1: PartitionState(1, 0, [1, 0], [1, 0]),
    }
    made.create_topic("t", [0, 1], [1, 0], states=states)
    if start:
        made.start()
        made.forget()
    return made


@pytest.fixture
def cluster() -> Controlled:
    return started()


def document(cluster: Controlled) -> Any:
    return json.loads(cluster.ensemble.tree.get(paths.topic("t")).data)


def alter(cluster: Controlled, **targets: Any) -> dict[int, ErrorCode | None]:
    """``p0``, ``p1``: the replicas of these partitions."""
    wanted = {("t", int(name[1:])): replicas for name, replicas in targets.items()}
    outcome = cluster.background.reassigning.alter(wanted)
    cluster.ensemble.run_until(lambda: outcome.done)
    if outcome.error is not None:
        raise outcome.error
    return {key[1]: error and error.code for key, error in outcome.value.items()}


def sync(cluster: Controlled, isr: list[int]) -> None:
    """The leader says that these are in sync."""
    present = cluster.state.partition(KEY)
    assert present is not None
    wanted = WantedIsr("t", 0, present.leader_epoch, isr, present.partition_epoch)
    epoch = cluster.state.brokers[present.leader].epoch
    outcome = cluster.background.in_sync.alter(present.leader, epoch, [wanted])
    cluster.ensemble.run_until(lambda: outcome.done)
    assert outcome.error is None
    cluster.settle()


def test_new_replicas_are_told_and_the_old_stay_until_they_are_in_sync(cluster: Controlled) -> None:
    assert alter(cluster, p0=[2, 3]) == {0: None}
    assert document(cluster)["partitions"]["0"] == [2, 3, 0, 1]
    assert document(cluster)["adding_replicas"] == {"0": [2, 3]}
    assert document(cluster)["removing_replicas"] == {"0": [0, 1]}
    assert cluster.stored() == (0, 4, [0, 1])
    assert [cluster.leaders(b)[KEY] for b in range(4)] == [
        (0, [0, 1], False), (0, [0, 1], False), (0, [0, 1], True), (0, [0, 1], True),
    ]  # fmt: skip
    (row,) = cluster.told(2, type(cluster.sent[0][1]))[0].partitions
    assert (row.adding_replicas, row.removing_replicas) == ([2, 3], [0, 1])

    sync(cluster, [0, 1, 2])
    assert document(cluster)["partitions"]["0"] == [2, 3, 0, 1]
    sync(cluster, [0, 1, 2, 3])

    assert document(cluster)["partitions"] == {"0": [2, 3], "1": [1, 0]}
    assert (document(cluster)["adding_replicas"], document(cluster)["removing_replicas"]) == (
        {},
        {},
    )
    assert cluster.stored() == (2, 5, [2, 3])
    assert cluster.leaders(3)[KEY] == (2, [2, 3], False)
    assert cluster.stopped(0) == cluster.stopped(1) == [(KEY, True)]
    assert not cluster.background.reassigning.is_any


def test_document_that_is_too_large_for_the_store_is_rejected(cluster: Controlled) -> None:
    cluster.ensemble.request_bytes_max = 100
    assert alter(cluster, p0=[2, 3]) == {0: ErrorCode.INVALID_REQUEST}
    assert document(cluster)["partitions"]["0"] == [0, 1]


def test_ongoing_reassignments_are_listed(cluster: Controlled) -> None:
    listed = cluster.background.reassigning.listed
    assert list(listed()) == []
    alter(cluster, p0=[2, 1])
    ((key, one),) = listed()
    assert (key, one.replicas, one.adding, one.removing) == (KEY, [2, 1, 0], [2], [0])
    assert listed([("t", 1), ("u", 0)]) == []


def test_cancelled_reassignment_leaves_what_was(cluster: Controlled) -> None:
    alter(cluster, p0=[2, 1])
    assert alter(cluster, p0=None, p1=None) == {
        0: None,
        1: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    }
    assert sorted(document(cluster)["partitions"]["0"]) == [0, 1]
    assert document(cluster)["adding_replicas"] == {}
    assert cluster.stopped(2) == [(KEY, True)]
    assert cluster.stored() == (0, 5, [0, 1])


def test_in_sync_replica_goes_when_those_that_stay_have_answered(cluster: Controlled) -> None:
    alter(cluster, p0=[0, 1, 2])
    sync(cluster, [0, 2])
    cluster.silent = {0}
    outcome = cluster.background.reassigning.alter({KEY: None})
    cluster.settle()
    assert not outcome.done
    assert cluster.stored() == (0, 4, [0, 2])
    assert cluster.stopped(2) == []

    ((_, _, answer),) = cluster.unanswered
    answer.resolve(ControlResponse())
    cluster.ensemble.run_until(lambda: outcome.done)
    assert outcome.value == {KEY: None}
    assert cluster.stored() == (0, 5, [0])
    assert cluster.stopped(2) == [(KEY, True)]


def test_node_of_tools_waits_for_those_that_stay_in_sync(cluster: Controlled) -> None:
    alter(cluster, p0=[0, 1, 2])
    sync(cluster, [0, 2])
    cluster.silent = {0}
    ask_by_node(cluster, {KEY: [0, 1]})
    assert cluster.stored() == (0, 4, [0, 2])
    assert cluster.stopped(2) == []

    ((_, _, answer),) = cluster.unanswered
    answer.resolve(ControlResponse())
    cluster.settle()
    assert cluster.stored() == (0, 5, [0])
    assert cluster.stopped(2) == [(KEY, True)]


def test_last_replica_with_the_records_stays_when_the_leader_was_dead(cluster: Controlled) -> None:
    """The leader has failed, of which nobody knows yet when the reassignment is cancelled."""
    alter(cluster, p0=[0, 1, 2])
    sync(cluster, [0, 2])
    cluster.silent = {0}
    outcome = cluster.background.reassigning.alter({KEY: None})
    cluster.settle()
    cluster.leave(0)
    cluster.register(0)
    cluster.ensemble.run_until(lambda: outcome.done)
    assert outcome.value[KEY].code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    leader, _, isr = cluster.stored()
    assert (leader, isr) == (2, [2])
    assert cluster.stopped(2) == []


def test_next_controller_completes_what_was_begun() -> None:
    made = started(start=False)
    made.apply(
        StoreOperation(
            "set",
            paths.topic("t"),
            paths.encode_topic(
                None,
                {0: [2, 0, 1], 1: [1, 0]},
                {"adding_replicas": {"0": [2]}, "removing_replicas": {"0": [0, 1]}, "own": 1},
            ),
        )
    )
    made.start()
    assert made.background.reassigning.is_any
    sync(made, [0, 1, 2])
    assert made.stored()[0::2] == (2, [2])
    assert (document(made)["partitions"]["0"], document(made)["own"]) == ([2], 1)


def test_reassignment_that_is_complete_at_the_start_is_ended() -> None:
    made = started(start=False)
    rest = {"removing_replicas": {"0": [1]}}
    data = paths.encode_topic(None, {0: [0, 1], 1: [1, 0]}, rest)
    made.apply(StoreOperation("set", paths.topic("t"), data))
    made.start()
    made.settle()
    assert document(made)["partitions"]["0"] == [0]
    assert made.stored() == (0, 4, [0])


def ask_by_node(cluster: Controlled, wanted: dict[tuple[str, int], list[int]]) -> None:
    data = paths.encode_reassignment(wanted)
    cluster.apply(StoreOperation("create", paths.REASSIGN_PARTITIONS, data))
    cluster.settle()


def asked_by_node(cluster: Controlled) -> dict[tuple[str, int], list[int]] | None:
    if cluster.ensemble.tree.exists(paths.REASSIGN_PARTITIONS) is None:
        return None
    return paths.decode_reassignment(cluster.ensemble.tree.get(paths.REASSIGN_PARTITIONS).data)


def test_node_of_tools_is_carried_out_and_emptied_as_it_is(cluster: Controlled) -> None:
    ask_by_node(cluster, {KEY: [2, 1], ("t", 1): [0, 1], ("u", 0): [1]})
    assert asked_by_node(cluster) == {KEY: [2, 1]}  # the others are done, or impossible
    assert document(cluster)["partitions"] == {"0": [2, 1, 0], "1": [0, 1]}
    sync(cluster, [0, 1, 2])
    assert document(cluster)["partitions"]["0"] == [2, 1]
    assert asked_by_node(cluster) is None


def test_request_takes_the_place_of_the_node(cluster: Controlled) -> None:
    ask_by_node(cluster, {KEY: [2, 1]})
    alter(cluster, p0=[3, 1])
    assert asked_by_node(cluster) is None
    assert document(cluster)["partitions"]["0"] == [3, 1, 0]
    assert cluster.stopped(2) == [(KEY, True)]


def test_node_that_nobody_can_read_is_removed(cluster: Controlled) -> None:
    cluster.apply(StoreOperation("create", paths.REASSIGN_PARTITIONS, b"{"))
    cluster.settle()
    assert asked_by_node(cluster) is None
    ask_by_node(cluster, {KEY: [0]})
    assert document(cluster)["partitions"]["0"] == [0]


def test_topic_that_is_deleted_is_reassigned_no_longer(cluster: Controlled) -> None:
    ask_by_node(cluster, {KEY: [2, 1]})
    cluster.apply(StoreOperation("create", paths.delete_topic("t")))
    cluster.settle()
    cluster.apply(StoreOperation("set", paths.partition_state("t", 0), b"{}"))
    cluster.settle()
    assert not cluster.background.reassigning.is_any
    assert asked_by_node(cluster) is None
    assert alter(cluster, p1=[2]) == {1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_state_of_a_topic_that_is_deleted_is_told_to_nobody(cluster: Controlled) -> None:
    """A broker that has deleted its log already would take the replica as a new one."""
    ask_by_node(cluster, {KEY: [2, 1]})
    cluster.apply(StoreOperation("create", paths.delete_topic("t")))
    cluster.settle()
    cluster.forget()
    leader, leader_epoch, _ = cluster.stored()
    data = paths.encode_partition_state(leader, leader_epoch, [leader], 5)
    cluster.apply(StoreOperation("set", paths.partition_state("t", 0), data))
    cluster.settle()
    known = cluster.state.partition(KEY)
    assert known is not None and known.isr == [leader]
    assert [cluster.told(broker_id, LeaderAndIsr) for broker_id in range(4)] == [[], [], [], []]


def test_replica_removed_while_its_broker_was_away_is_deleted_when_it_returns(
    cluster: Controlled,
) -> None:
    """Its session has ended, not its process: it still has the log open, and maybe leads."""
    stale = ControlResponse(ErrorCode.STALE_BROKER_EPOCH)
    cluster.answers = lambda broker_id, _: stale if broker_id == 1 else ControlResponse()
    alter(cluster, p0=[0])
    cluster.answers = lambda *_: ControlResponse()
    cluster.forget()
    for _ in range(2):
        cluster.leave(1)
        cluster.register(1)
        cluster.settle()
        # Once it has responded, it is not asked again.
        assert cluster.stopped(1) == [(KEY, True)]
    assert not cluster.state.removed
    (request,) = cluster.told(1, StopReplica)
    assert request.sender.broker_epoch < cluster.state.brokers[1].epoch
    assert request.partitions[0].leader_epoch == EPOCH_DURING_DELETE


def test_replica_that_is_assigned_again_is_not_deleted(cluster: Controlled) -> None:
    stale = ControlResponse(ErrorCode.STALE_BROKER_EPOCH)
    cluster.answers = lambda broker_id, _: stale if broker_id == 1 else ControlResponse()
    alter(cluster, p0=[0])
    alter(cluster, p0=[0, 1])
    cluster.forget()
    cluster.leave(1)
    cluster.register(1)
    cluster.settle()
    assert KEY in cluster.leaders(1)
    assert cluster.stopped(1) == []


def test_change_of_another_client_in_between_is_kept(cluster: Controlled) -> None:
    """A tool has added a partition: the document is not what this controller knows."""
    data = paths.encode_topic(None, {0: [0, 1], 1: [1, 0], 2: [3]})
    outcome = cluster.background.reassigning.alter({KEY: [0]})
    cluster.apply(StoreOperation("set", paths.topic("t"), data))
    cluster.ensemble.run_until(lambda: outcome.done)
    assert document(cluster)["partitions"] == {"0": [0], "1": [1, 0], "2": [3]}
    cluster.settle()
    assert cluster.stored("t", 2) == (3, 0, [3])


# -- elections without a request --


def test_preferred_leaders_of_the_node_are_elected_and_it_goes() -> None:
    made = started(start=False)
    made.create_topic("u", [1, 0], states={0: PartitionState(0, 0, [0, 1], [1, 0])})
    made.start()
    rows = [{"topic": "u", "partition": 0}, {"topic": "none", "partition": 0}]
    data = json.dumps({"version": 1, "partitions": rows}).encode()
    made.apply(StoreOperation("create", paths.PREFERRED_ELECTION, data))
    made.settle()
    assert made.stored("u") == (1, 1, [0, 1])
    assert made.ensemble.tree.exists(paths.PREFERRED_ELECTION) is None


@pytest.mark.parametrize(("percentage", "leader"), [(49, 1), (50, 0)])
def test_imbalance_beyond_the_limit_is_mended(percentage: int, leader: int) -> None:
    """Broker 1 leads one of the two partitions that it should."""
    made = started(start=False)
    made.settings["leader.imbalance.per.broker.percentage"] = percentage
    made.create_topic("u", [1, 0], states={0: PartitionState(0, 0, [0, 1], [1, 0])})
    made.start()
    made.settle(FIRST_CHECK_MS + 500)
    assert made.stored("u")[0] == leader


def test_balance_that_awaits_a_broker_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broker 3, which is told of the first move, dies without a response, and led a partition."""
    monkeypatch.setattr(leader_balance, "MOVED_AT_ONCE", 1)
    made = started(start=False)
    for name in ("u", "v"):
        made.create_topic(name, [1, 0], states={0: PartitionState(0, 0, [0, 1], [1, 0])})
    made.create_topic("w", [3, 2], states={0: PartitionState(3, 0, [3, 2], [3, 2])})
    made.start()
    responsive = made.send

    def send(broker_id: int, request: ControlRequest) -> Pending[ControlResponse]:
        responded = responsive(broker_id, request)
        return Pending() if broker_id == 3 else responded

    made.send = send  # type: ignore[method-assign]
    made.settle(FIRST_CHECK_MS + 500)
    assert made.stored("u")[0] == 1 and made.stored("v")[0] == 0
    made.leave(3)
    made.settle()
    assert made.stored("w")[0] == 2


def test_all_leaders_are_moved_group_by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_balance, "MOVED_AT_ONCE", 1)
    made = started(start=False)
    for name in ("u", "v"):
        made.create_topic(name, [1, 0], states={0: PartitionState(0, 0, [0, 1], [1, 0])})
    made.start()
    made.settle(FIRST_CHECK_MS + 500)
    assert made.stored("u")[0] == made.stored("v")[0] == 1


def test_leaders_stay_while_a_partition_is_reassigned_or_balance_is_off() -> None:
    made = started(start=False)
    made.create_topic("u", [1, 0], states={0: PartitionState(0, 0, [0, 1], [1, 0])})
    made.start()
    alter(made, p0=[2, 1])
    made.settle(FIRST_CHECK_MS + 500)
    assert made.stored("u")[0] == 0
    alter(made, p0=None)
    made.settings["auto.leader.rebalance.enable"] = False
    made.settle(300_000)
    assert made.stored("u")[0] == 0
    made.settings["auto.leader.rebalance.enable"] = True
    made.settle(300_000)
    assert made.stored("u")[0] == 1


def test_preferred_leader_that_is_away_or_behind_is_not_wanted(cluster: Controlled) -> None:
    present = PartitionState(1, 0, [1], [0, 1])
    cluster.state.existing("t").partitions[0] = present
    assert list(imbalanced(cluster.state, 10)) == []
    cluster.state.existing("t").partitions[0] = present._replace(isr=[1, 0])
    assert list(imbalanced(cluster.state, 10)) == [KEY]
    cluster.state.remove_broker(0)
    assert list(imbalanced(cluster.state, 10)) == []
