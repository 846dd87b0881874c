"""What becomes of a partition that gets other replicas: the rules alone."""

from __future__ import annotations

import pytest

from kbroker.controller.state import reassignments
from kbroker.controller.state.reassignments import (
    assign,
    is_complete,
    is_reassigned,
    origin,
    step,
    target,
)
from kbroker.controller.state.state import ClusterState, PartitionState, TopicState, without_state
from kbroker.errors import ErrorCode

pytestmark = pytest.mark.unit

KEY = ("t", 0)


def partition(
    leader: int, isr: list[int], replicas: list[int], **more: list[int]
) -> PartitionState:
    return PartitionState(leader, 5, isr, replicas, 7, **more)


def state_of(present: PartitionState, live: str = "1234") -> ClusterState:
    state = ClusterState(1)
    for broker_id in map(int, live):
        state.set_broker(broker_id, [], None)
    state.add_topic(TopicState("t", b"t" * 16, [present]))
    return state


def stepped(old: PartitionState, replicas: list[int], live: str = "1234") -> PartitionState | None:
    return step(state_of(old, live), KEY, old, replicas)


def test_target_comes_first_and_then_what_is_removed() -> None:
    new = assign(partition(1, [1, 2], [1, 2]), [3, 2])
    assert (new.replicas, new.adding, new.removing) == ([3, 2, 1], [3], [1])
    assert (target(new), origin(new)) == ([3, 2], [2, 1])
    assert is_reassigned(new) and not is_complete(new)


def test_begun_reassignment_keeps_leader_and_isr_in_a_new_epoch() -> None:
    """All replicas are told of each other in that epoch."""
    new = stepped(partition(1, [1, 2], [1, 2]), [3, 4])
    assert new == PartitionState(1, 6, [1, 2], [3, 4, 1, 2], 7, [3, 4], [1, 2])


def test_reassignment_waits_until_all_targets_are_in_sync() -> None:
    present = partition(1, [1, 2, 3], [3, 4, 1, 2], adding=[3, 4], removing=[1, 2])
    assert stepped(present, [3, 4]) is None


def test_completed_reassignment_is_led_by_a_target_without_what_was_removed() -> None:
    present = partition(1, [1, 2, 4, 3], [3, 4, 1, 2], adding=[3, 4], removing=[1, 2])
    assert stepped(present, [3, 4]) == PartitionState(3, 6, [4, 3], [3, 4], 7)
    assert stepped(present, [3, 4], live="124") == PartitionState(4, 6, [4, 3], [3, 4], 7)
    assert stepped(present, [3, 4], live="12") is None  # nobody could lead


def test_leader_among_the_targets_stays() -> None:
    present = partition(2, [1, 2, 3], [3, 2, 1], adding=[3], removing=[1])
    assert stepped(present, [3, 2]) == PartitionState(2, 6, [2, 3], [3, 2], 7)


def test_other_order_or_fewer_replicas_take_one_step() -> None:
    present = partition(1, [1, 2], [1, 2])
    assert stepped(present, [2, 1]) == PartitionState(1, 6, [1, 2], [2, 1], 7)
    assert stepped(present, [2]) == PartitionState(2, 6, [2], [2], 7)
    assert stepped(present, [1, 2]) is None


def test_cancelled_reassignment_ends_with_the_original_replicas() -> None:
    present = partition(3, [1, 3], [3, 4, 1, 2], adding=[3, 4], removing=[1, 2])
    assert stepped(present, origin(present)) == PartitionState(1, 6, [1], [1, 2], 7)
    assert stepped(present, origin(present), live="34") is None


def test_another_target_drops_what_was_added_in_vain() -> None:
    present = partition(1, [1, 2, 3], [3, 1, 2], adding=[3], removing=[2])
    new = stepped(present, [4, 1])
    assert new == PartitionState(1, 6, [1, 2], [4, 1, 2], 7, [4], [2])


def test_partition_that_nobody_has_led_gets_its_replicas_at_once() -> None:
    old = without_state([1])
    assert stepped(old, [2, 3]) == old._replace(replicas=[2, 3])


def test_partition_without_a_leader_may_begin() -> None:
    assert stepped(partition(-1, [1], [1]), [2, 1], live="2") == PartitionState(
        -1, 6, [1], [2, 1], 7, [2], []
    )


@pytest.mark.parametrize(
    ("replicas", "code"),
    [
        ([], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, -3], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 9], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ([2, 3], None),
    ],
)
def test_impossible_replicas_are_rejected(replicas: list[int] | None, code: ErrorCode) -> None:
    state = state_of(partition(1, [1, 2], [1, 2]))
    error = reassignments.reason_against(state, KEY, replicas)
    assert (error and error.code) == code


def test_what_is_not_there_or_going_is_not_reassigned() -> None:
    state = state_of(partition(1, [1, 2], [1, 2]))
    error = reassignments.reason_against(state, ("u", 0), [1])
    assert error is not None and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    state.mark_deleting(["t"])
    error = reassignments.reason_against(state, KEY, [1])
    assert error is not None and error.message == "The topic is being deleted."


def test_tools_of_zookeeper_may_name_brokers_that_are_away() -> None:
    state = state_of(partition(1, [1, 2], [1, 2]))
    assert reassignments.reason_against(state, KEY, [1, 9], must_live=False) is None


def test_number_of_replicas_stays_if_the_client_wants_that() -> None:
    state = state_of(partition(1, [1, 2], [1, 2]))
    errors = reassignments.resized(state, {KEY: [1, 2, 3], ("u", 0): [1]})
    assert [(key, error and error.code) for key, error in errors.items()] == [
        (KEY, ErrorCode.INVALID_REPLICATION_FACTOR)
    ]
    assert reassignments.resized(state, {KEY: [3, 4]}) == {}
