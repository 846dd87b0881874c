"""AlterIsr, ControlledShutdown and ElectLeaders: effects and responses."""

from __future__ import annotations

from typing import Any

import pytest
from support.controller.controlled import Controlled

from kbroker.cluster.control_requests import ControlResponse, LeaderAndIsr, StopReplica
from kbroker.controller.replicas import shutdowns
from kbroker.controller.replicas.isr_requests import LEAVING_MS
from kbroker.controller.replicas.replica_admin import ReplicaAdmin
from kbroker.controller.state.state import PartitionState
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import ElectLeaders, IsrResult, NamedPartition, WantedIsr
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.metastore import paths
from kbroker.metastore.store import StoreOperation

pytestmark = pytest.mark.unit

KEY = ("t", 0)


@pytest.fixture
def cluster() -> Controlled:
    """Broker 0 leads partition 0 of ``t``, broker 1 partition 1; broker 2 leads one alone."""
    made = Controlled()
    made.register(0, 1, 2)
    states = {
        0: PartitionState(0, 3, [0, 1], [0, 1, 2]),
        1: PartitionState(1, 0, [1, 0], [1, 0]),
        2: PartitionState(2, 0, [2], [2]),
    }
    made.create_topic("t", [0, 1, 2], [1, 0], [2], states=states)
    made.start()
    made.forget()
    return made


def done(cluster: Controlled, outcome: Pending[Any]) -> Any:
    cluster.ensemble.run_until(lambda: outcome.done)
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


def alter(cluster: Controlled, *wanted: WantedIsr, broker_id: int = 0) -> list[IsrResult]:
    epoch = cluster.state.brokers[broker_id].epoch
    answers: list[IsrResult] = done(
        cluster, cluster.background.in_sync.alter(broker_id, epoch, wanted)
    )
    return answers


def code(cluster: Controlled, *wanted: Any, broker_id: int = 0) -> ErrorCode:
    (response,) = alter(cluster, WantedIsr("t", *wanted), broker_id=broker_id)
    return response.error


# -- AlterIsr --


def test_in_sync_replicas_are_what_their_leader_says(cluster: Controlled) -> None:
    (response,) = alter(cluster, WantedIsr("t", 0, 3, [0, 1, 2], 0))
    assert response.error is ErrorCode.NONE
    assert response.state is not None
    assert (response.state.isr, response.state.leader_epoch, response.state.partition_epoch) == (
        [0, 1, 2],
        3,
        1,
    )
    assert cluster.stored() == (0, 3, [0, 1, 2])
    assert cluster.told(0, LeaderAndIsr) == []  # the epoch is the same
    assert KEY in cluster.known(2)


def test_change_that_is_asked_for_again_returns_what_holds(cluster: Controlled) -> None:
    """The response was lost; the partition epoch is outdated by now."""
    wanted = WantedIsr("t", 0, 3, [0], 0)
    first, second = alter(cluster, wanted), alter(cluster, wanted)
    assert first == second
    assert second[0].error is ErrorCode.NONE


def test_only_the_leader_of_the_present_epoch_is_listened_to(cluster: Controlled) -> None:
    assert code(cluster, 0, 2, [0], 0) is ErrorCode.FENCED_LEADER_EPOCH
    assert code(cluster, 0, 3, [1], 0, broker_id=1) is ErrorCode.FENCED_LEADER_EPOCH
    assert code(cluster, 9, 3, [0], 0) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert cluster.stored() == (0, 3, [0, 1])


@pytest.mark.parametrize(
    ("isr", "partition_epoch"),
    [
        ([0], 5),  # based on another state
        ([0, 1, 9], 0),  # not a replica
        ([1], 0),  # without the leader itself
        ([0, 0], 0),
        ([], 0),
    ],
)
def test_impossible_change_is_refused_and_the_leader_is_told_what_holds(
    cluster: Controlled, isr: list[int], partition_epoch: int
) -> None:
    """In Kafka 2.7 its ISR is frozen until a new leader epoch."""
    assert code(cluster, 0, 3, isr, partition_epoch) is ErrorCode.INVALID_UPDATE_VERSION
    cluster.settle()
    assert cluster.stored() == (0, 4, [0, 1])
    assert cluster.leaders(0) == {KEY: (0, [0, 1], False)}


def write_as_leader(cluster: Controlled, isr: list[int]) -> None:
    """As that of partition 0 does when the controller does not respond."""
    document = paths.encode_partition_state(0, 3, isr, 5)
    cluster.apply(StoreOperation("set", paths.partition_state(*KEY), document))


def test_change_after_one_that_the_leader_has_written_keeps_the_leader_epoch(
    cluster: Controlled,
) -> None:
    """A new one would not reach a leader that does not hear the controller: it would wait for that,
    and a follower that is gone stay in sync for it.
    """
    write_as_leader(cluster, [0])
    (response,) = alter(cluster, WantedIsr("t", 0, 3, [0, 2], 1))
    assert response.error is ErrorCode.NONE
    assert response.state is not None
    assert (response.state.isr, response.state.partition_epoch) == ([0, 2], 2)
    cluster.settle()
    assert cluster.stored() == (0, 3, [0, 2])


def test_change_back_to_what_the_controller_still_knows_is_written(cluster: Controlled) -> None:
    """It is no retry: the leader has written something else in between. Unwritten, broker 2 could
    be elected without what the leader acknowledges from then on.
    """
    write_as_leader(cluster, [0, 1, 2])
    (response,) = alter(cluster, WantedIsr("t", 0, 3, [0, 1], 1))
    assert response.error is ErrorCode.NONE
    assert response.state is not None
    assert (response.state.isr, response.state.partition_epoch) == ([0, 1], 2)
    assert cluster.stored() == (0, 3, [0, 1])


def test_broker_that_is_gone_does_not_come_back_in_sync_by_a_late_request(
    cluster: Controlled,
) -> None:
    cluster.leave(2)
    cluster.settle()
    assert code(cluster, 0, 3, [0, 1, 2], 0) is ErrorCode.INVALID_UPDATE_VERSION
    assert 2 not in cluster.stored()[2]


def test_request_of_an_earlier_registration_is_refused(cluster: Controlled) -> None:
    outcome = cluster.background.in_sync.alter(0, 1, [WantedIsr("t", 0, 3, [0], 0)])
    with pytest.raises(WireError) as failed:
        done(cluster, outcome)
    assert failed.value.code is ErrorCode.STALE_BROKER_EPOCH


# -- ControlledShutdown --


def shut_down(cluster: Controlled, broker_id: int, epoch: int | None = None) -> Any:
    if epoch is None:
        epoch = cluster.state.brokers[broker_id].epoch
    return done(cluster, cluster.background.shutdowns.shut_down(broker_id, epoch))


def test_broker_that_shuts_down_leads_and_follows_nothing(cluster: Controlled) -> None:
    assert shut_down(cluster, 0) == []
    assert cluster.stored("t", 0) == (1, 4, [1])
    assert cluster.stored("t", 1) == (1, 1, [1])
    assert cluster.leaders(0) == {KEY: (1, [1], False)}  # what it led it follows
    assert cluster.stopped(0) == [(("t", 1), False)]  # followed partitions are not changed
    assert cluster.leaders(1) == {KEY: (1, [1], False), ("t", 1): (1, [1], False)}
    cluster.leave(0)
    cluster.settle()
    assert cluster.stored("t", 0) == (1, 4, [1])  # nothing is left to do


def test_replica_that_a_leader_has_added_by_itself_takes_over(cluster: Controlled) -> None:
    """Below IBP 2.7-IV2 the leader writes the ISR, and the controller is notified seconds later."""
    assert code(cluster, 0, 3, [0], 0) is ErrorCode.NONE
    write_isr(cluster, 0, PartitionState(0, 3, [0, 2], [0, 1, 2]))

    assert shut_down(cluster, 0) == []

    assert cluster.stored("t", 0) == (2, 4, [2])


def test_follower_that_its_leader_has_added_by_itself_leaves_the_isr(cluster: Controlled) -> None:
    """Otherwise acks=all would wait for it when it has stopped."""
    write_isr(cluster, 0, PartitionState(0, 3, [0, 1, 2], [0, 1, 2]))

    assert shut_down(cluster, 2) == []

    assert cluster.stored("t", 0) == (0, 4, [0, 1])


def write_isr(cluster: Controlled, number: int, written: PartitionState) -> None:
    document = paths.encode_partition_state(
        written.leader, written.leader_epoch, written.isr, cluster.state.controller_epoch
    )
    cluster.apply(StoreOperation("set", paths.partition_state("t", number), document))


def test_partition_without_another_leader_remains(cluster: Controlled) -> None:
    assert code(cluster, 0, 3, [0], 0) is ErrorCode.NONE
    assert shut_down(cluster, 0) == [KEY]
    assert shut_down(cluster, 2) == []  # partitions without another replica do not count
    assert cluster.stored("t", 2) == (2, 0, [2])


def test_shutdown_of_another_registration_is_refused(cluster: Controlled) -> None:
    with pytest.raises(WireError) as failed:
        shut_down(cluster, 0, 1)
    assert failed.value.code is ErrorCode.STALE_BROKER_EPOCH
    with pytest.raises(WireError) as failed:
        shut_down(cluster, 9, 1)
    assert failed.value.code is ErrorCode.BROKER_NOT_AVAILABLE
    assert shut_down(cluster, 0, -1) == []  # one that does not know its epoch is believed


def test_new_leaders_are_told_before_the_next_partitions_change(
    cluster: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody leads a partition from when its old leader is told until the new one is."""
    monkeypatch.setattr(shutdowns, "GROUP", 2)
    states = {n: PartitionState(0, 0, [0, 1], [0, 1]) for n in range(5)}
    cluster.create_topic("many", *[[0, 1]] * 5, states=states)
    cluster.settle()
    cluster.forget()
    stored_when_told = []

    def answer(broker_id: int, request: Any) -> ControlResponse:
        if broker_id == 1 and isinstance(request, LeaderAndIsr):
            changed = [number for number in range(5) if cluster.stored("many", number)[0] == 1]
            stored_when_told.append(len(changed))
        return ControlResponse()

    cluster.answers = answer
    assert shut_down(cluster, 0) == []

    assert stored_when_told[:3] in ([1, 3, 5], [2, 4, 5]), stored_when_told


def test_followed_partitions_are_given_up_some_at_a_time(
    cluster: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their leaders begin an epoch without it, in which nothing is committed before the other
    followers have heard.
    """
    monkeypatch.setattr(shutdowns, "GROUP", 2)
    states = {n: PartitionState(0, 0, [0, 1, 2], [0, 1, 2]) for n in range(5)}
    cluster.create_topic("many", *[[0, 1, 2]] * 5, states=states)
    cluster.settle()
    cluster.forget()
    assert shut_down(cluster, 1) == []

    for broker_id, kind in ((2, LeaderAndIsr), (1, StopReplica)):
        requests = [r for to, r in cluster.sent if to == broker_id and isinstance(r, kind)]
        assert max(len(request.partitions) for request in requests) == 2
        keys = [one.key for request in requests for one in request.partitions]
        assert {("many", number) for number in range(5)} <= set(keys)


def test_broker_that_returns_may_lead_again(cluster: Controlled) -> None:
    shut_down(cluster, 0)
    cluster.leave(0)
    cluster.register(0)
    cluster.settle()
    assert cluster.state.shutting_down == set()
    assert code(cluster, 0, 4, [1, 0], 1, broker_id=1) is ErrorCode.NONE


def test_broker_that_shuts_down_does_not_join_the_in_sync_replicas_again(
    cluster: Controlled,
) -> None:
    """Kafka continues to follow until it has stopped, and its leaders keep proposing this."""
    shut_down(cluster, 1)
    assert cluster.stored() == (0, 4, [0])
    cluster.forget()

    for _ in range(3):
        assert code(cluster, 0, 4, [0, 1], 1) is ErrorCode.INVALID_UPDATE_VERSION
    cluster.settle(LEAVING_MS // 2)
    assert cluster.stored() == (0, 4, [0])
    cluster.settle(LEAVING_MS)

    # Once: that leader's ISR would stay frozen otherwise.
    assert cluster.stored() == (0, 5, [0])
    assert cluster.leaders(0) == {KEY: (0, [0], False)}


# -- ElectLeaders --


def elect(cluster: Controlled, keys: Any, *, unclean: bool = False) -> dict[Any, Any]:
    outcome = cluster.background.elections.elect(keys, unclean=unclean)
    results = done(cluster, outcome)
    return {key: error and error.code for key, error in results.items()}


def test_preferred_replica_is_elected_where_it_can_be(cluster: Controlled) -> None:
    shut_down(cluster, 0)
    cluster.state.shutting_down.clear()
    assert elect(cluster, [KEY, ("t", 1), ("t", 9), ("u", 0)]) == {
        KEY: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert code(cluster, 0, 4, [1, 0], 1, broker_id=1) is ErrorCode.NONE
    assert elect(cluster, None) == {KEY: None}
    assert cluster.stored() == (0, 5, [1, 0])


def test_a_broker_that_says_nothing_holds_up_no_answer_for_long(cluster: Controlled) -> None:
    """It is stalled, or dead while its session lasts; the leaders are elected all the same."""
    shut_down(cluster, 0)
    cluster.state.shutting_down.clear()
    assert code(cluster, 0, 4, [1, 0], 1, broker_id=1) is ErrorCode.NONE
    cluster.silent.add(2)
    admin = ReplicaAdmin(cluster.background, cluster.ensemble.sleep)
    asked = ElectLeaders(False, [NamedPartition(*KEY)], 60_000)
    began_ms = cluster.ensemble.now_ms

    (result,) = done(cluster, run(admin.elect_leaders(Address(ProcessKind.NETWORK, 0), asked)))

    assert result.error == ErrorCode.NONE
    assert cluster.ensemble.now_ms - began_ms < 3_000


def test_unclean_election_is_for_partitions_without_a_leader(cluster: Controlled) -> None:
    cluster.leave(0, 1)
    cluster.settle()
    assert cluster.stored()[0] == -1
    assert elect(cluster, [KEY, ("t", 1), ("t", 2)], unclean=True) == {
        KEY: None,
        ("t", 1): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ("t", 2): ErrorCode.ELECTION_NOT_NEEDED,
    }
    assert (cluster.stored()[0], cluster.stored()[2]) == (2, [2])


def test_partitions_of_a_topic_that_is_being_deleted_are_not_elected(cluster: Controlled) -> None:
    cluster.state.mark_deleting(["t"])
    assert elect(cluster, [KEY]) == {KEY: ErrorCode.INVALID_TOPIC_EXCEPTION}
