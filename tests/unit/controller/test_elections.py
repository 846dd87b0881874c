"""The decision table of elections, case by case: leader and ISR."""

from __future__ import annotations

import pytest

from kbroker.controller.state import elections
from kbroker.controller.state.state import ClusterState, PartitionState, TopicState, without_state

pytestmark = pytest.mark.unit

KEY = ("t", 0)
NOBODY = -1


def cluster(*live: int) -> ClusterState:
    state = ClusterState(0, 1)
    for broker_id in live:
        state.set_broker(broker_id, [], None, epoch=10 + broker_id)
    return state


def partition(leader: int, isr: list[int], replicas: list[int] | None = None) -> PartitionState:
    return PartitionState(leader, 4, isr, replicas or [1, 2, 3], 7)


def settled(
    state: ClusterState, old: PartitionState, *, may_be_unclean: bool = False
) -> tuple[int, list[int], int] | None:
    """Leader, ISR, and the increase of the leader epoch."""
    new = elections.settle(state, KEY, old, may_be_unclean=may_be_unclean)
    return None if new is None else (new.leader, new.isr, new.leader_epoch - old.leader_epoch)


@pytest.mark.parametrize(
    ("live", "leader", "isr", "expected"),
    [
        ((1, 2, 3), 1, [1, 2, 3], None),
        ((2, 3), 1, [1, 3, 2], (2, [3, 2], 1)),  # in order of assignment, not of the ISR
        ((2, 3), 1, [1, 3], (3, [3], 1)),
        ((1, 3), 1, [1, 2, 3], (1, [1, 3], 1)),  # the leader stays, in a new epoch
        ((3,), 1, [1, 2], (NOBODY, [1, 2], 1)),  # both have all that was committed
        ((), 1, [1], (NOBODY, [1], 1)),
        ((3,), NOBODY, [1, 2], None),
        ((2, 3), NOBODY, [1, 2], (2, [2], 1)),
        ((1, 2, 3), NOBODY, [1], (1, [1], 1)),
    ],
)
def test_leader_that_is_gone_is_replaced_by_one_in_sync(
    live: tuple[int, ...], leader: int, isr: list[int], expected: object
) -> None:
    assert settled(cluster(*live), partition(leader, isr)) == expected


def test_broker_that_may_have_lost_records_is_elected_last() -> None:
    state = cluster(2, 3)
    state.brokers[2] = state.brokers[2]._replace(is_suspect=True)

    assert settled(state, partition(1, [1, 2, 3])) == (3, [2, 3], 1)
    assert settled(state, partition(1, [1, 2])) == (2, [2], 1)


def test_replica_that_is_not_in_sync_leads_only_where_that_is_allowed() -> None:
    old = partition(NOBODY, [1])
    assert settled(cluster(2, 3), old) is None
    assert settled(cluster(2, 3), old, may_be_unclean=True) == (2, [2], 1)
    assert settled(cluster(1, 2), old, may_be_unclean=True) == (1, [1], 1)


def test_new_partition_is_led_by_the_first_replica_that_lives() -> None:
    old = without_state([1, 2, 3])
    assert settled(cluster(), old) is None
    new = elections.settle(cluster(2, 3), KEY, old, may_be_unclean=False)
    assert new is not None
    assert (new.leader, new.leader_epoch, new.isr) == (2, 0, [2, 3])


def test_failed_log_directory_is_as_good_as_a_broker_that_is_gone() -> None:
    state = cluster(1, 2, 3)
    state.offline_replicas[1] = {KEY}
    assert settled(state, partition(1, [1, 2])) == (2, [2], 1)
    assert settled(state, partition(2, [1, 2])) == (2, [2], 1)


def test_only_replica_in_a_failed_log_directory_stays_leader() -> None:
    """No other replica could lead, and the broker tells clients the reason."""
    state = cluster(1)
    state.offline_replicas[1] = {KEY}
    assert settled(state, partition(1, [1], [1])) is None
    assert settled(cluster(), partition(1, [1], [1])) == (NOBODY, [1], 1)


def test_broker_that_is_shutting_down_is_not_elected() -> None:
    state = cluster(2, 3)
    state.shutting_down = {2}
    assert settled(state, partition(1, [1, 2, 3])) == (3, [3], 1)


def test_preferred_replica_leads_only_if_it_is_in_sync_and_lives() -> None:
    state = cluster(1, 2)
    new = elections.prefer(state, KEY, partition(2, [1, 2]))
    assert new is not None and (new.leader, new.isr, new.leader_epoch) == (1, [1, 2], 5)
    assert elections.prefer(state, KEY, partition(2, [2])) is None
    assert elections.prefer(cluster(2), KEY, partition(2, [1, 2])) is None
    assert elections.prefer(state, KEY, partition(1, [1, 2])) is None


def test_broker_that_leaves_hands_over_and_is_no_longer_in_sync() -> None:
    state = cluster(1, 2, 3)
    led = elections.hand_over(state, KEY, partition(1, [1, 2, 3]), {1})
    followed = elections.hand_over(state, KEY, partition(2, [1, 2, 3]), {1})
    assert led is not None and (led.leader, led.isr) == (2, [2, 3])
    assert followed is not None and (followed.leader, followed.isr) == (2, [2, 3])


def test_broker_that_leaves_keeps_what_nobody_else_can_lead() -> None:
    state = cluster(1, 2)
    assert elections.hand_over(state, KEY, partition(1, [1]), {1}) is None
    assert elections.hand_over(state, KEY, partition(NOBODY, [1]), {1}) is None


def test_reassignment_elects_among_its_targets() -> None:
    state = cluster(2, 3)
    new = elections.among(state, KEY, partition(2, [2, 3]), [1, 3])
    assert new is not None and (new.leader, new.isr) == (3, [2, 3])
    assert elections.among(state, KEY, partition(2, [2]), [3]) is None


def test_brokers_with_a_replica_are_found() -> None:
    state = cluster(1)
    state.add_topic(TopicState("t", b"t" * 16, [partition(1, [1]), without_state([9])]))
    assert state.keys_on([1]) == [("t", 0)]
    assert state.keys_on([9, 2]) == [("t", 0), ("t", 1)]
