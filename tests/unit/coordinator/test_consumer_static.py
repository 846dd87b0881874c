"""Static members of the consumer protocol: they leave for a while and return to their place."""

from __future__ import annotations

from typing import Any

import pytest
from support.coordinators.consumer_member import FakeConsumer, describe, make_host, settle
from support.coordinators.coordinator_host import CoordinatorHost

from kbroker.coordinator.group.consumer.consumer_group import FORMER_INSTANCES_MAX
from kbroker.errors import ErrorCode, WireError

pytestmark = pytest.mark.unit


@pytest.fixture
def host() -> CoordinatorHost:
    made = make_host()
    made.add_topic("a", 6)
    return made


def error_of(function: Any, *args: Any, **options: Any) -> ErrorCode:
    with pytest.raises(WireError) as raised:
        function(*args, **options)
    return raised.value.code


def pair(host: CoordinatorHost) -> tuple[FakeConsumer, FakeConsumer]:
    """Two settled members, the first of them static."""
    first = FakeConsumer(host, "m1", ["a"], instance_id="i1")
    second = FakeConsumer(host, "m2", ["a"])
    first.join()
    second.join()
    settle(first, second)
    return first, second


def test_static_member_that_comes_back_gets_what_it_had(host: CoordinatorHost) -> None:
    first, second = pair(host)
    had, epoch = set(first.owned), describe(host).group_epoch

    response = first.leave(-2)
    second.beat()
    back = FakeConsumer(host, "m3", ["a"], instance_id="i1")
    back.join()

    assert (response.member_id, response.member_epoch) == ("m1", -2)
    assert back.assigned == had
    assert len(second.owned) == 3
    assert describe(host).group_epoch == epoch  # nobody else was troubled
    assert sorted(host.machine.groups["g"].members) == ["m2", "m3"]
    assert host.machine.groups["g"].static_members == {"i1": "m3"}


def test_static_member_that_stays_away_is_taken_out(host: CoordinatorHost) -> None:
    first, second = pair(host)
    first.leave(-2)

    for _ in range(10):
        host.advance(4_900)
        second.beat()

    assert len(second.owned) == 6
    assert host.machine.groups["g"].static_members == {}


def test_instance_that_has_not_left_is_not_taken_over(host: CoordinatorHost) -> None:
    pair(host)

    other = FakeConsumer(host, "m3", ["a"], instance_id="i1")

    assert error_of(other.join) == ErrorCode.UNRELEASED_INSTANCE_ID


def test_instance_that_a_member_had_before_is_its_own_until_it_leaves(
    host: CoordinatorHost,
) -> None:
    """As in Kafka 4.3, where it stays taken even after that."""
    member = FakeConsumer(host, "m1", ["a"], instance_id="i1")
    member.join()
    other = FakeConsumer(host, "m2", ["a"], instance_id="i1")
    for number in range(2, FORMER_INSTANCES_MAX + 3):
        assert error_of(other.join) == ErrorCode.UNRELEASED_INSTANCE_ID
        member.options["instance_id"] = f"i{number}"
        member.join()
    group = host.machine.groups["g"]
    assert len(group.static_members) == FORMER_INSTANCES_MAX + 1
    other.join()  # the oldest is free, so that a member cannot take all names there are
    third = FakeConsumer(host, "m3", ["a"], instance_id="i2")
    assert error_of(third.join) == ErrorCode.UNRELEASED_INSTANCE_ID

    member.leave(-1)
    third.join()

    assert group.static_members == {"i1": "m2", "i2": "m3"}
    assert not group.former_instances


def test_member_of_an_instance_may_repeat_its_join(host: CoordinatorHost) -> None:
    first, _ = pair(host)
    had = set(first.owned)

    first.join()

    assert first.assigned == had


def test_member_whose_instance_was_taken_over_is_fenced(host: CoordinatorHost) -> None:
    first, _ = pair(host)
    first.leave(-2)
    FakeConsumer(host, "m3", ["a"], instance_id="i1").join()
    first.epoch = 2

    assert error_of(first.send) == ErrorCode.FENCED_INSTANCE_ID
    assert error_of(first.send, member_epoch=-1) == ErrorCode.FENCED_INSTANCE_ID
    assert error_of(first.send, instance_id="i9") == ErrorCode.UNKNOWN_MEMBER_ID


def test_static_member_may_leave_for_good(host: CoordinatorHost) -> None:
    first, second = pair(host)

    first.leave(-1)
    second.beat()

    assert len(second.owned) == 6


def test_static_member_that_leaves_in_the_middle_of_giving_up_has_let_go(
    host: CoordinatorHost,
) -> None:
    first = FakeConsumer(host, "m1", ["a"], instance_id="i1")
    second = FakeConsumer(host, "m2", ["a"])
    first.join()
    first.lets_go = False
    second.join()
    first.beat()

    first.leave(-2)
    second.beat()

    assert len(second.owned) == 3


def test_new_subscription_of_the_one_who_comes_back_counts(host: CoordinatorHost) -> None:
    host.add_topic("b", 2)
    first, second = pair(host)
    first.leave(-2)
    back = FakeConsumer(host, "m3", ["b"], instance_id="i1")

    back.join()
    settle(back, second)

    assert len(back.owned) == 2
    assert len(second.owned) == 6


def test_timer_of_the_member_replaced_does_not_touch_the_new_one(host: CoordinatorHost) -> None:
    first, second = pair(host)
    host.advance(40_000)
    second.beat()
    first.leave(-2)
    back = FakeConsumer(host, "m3", ["a"], instance_id="i1")
    back.join()

    host.advance(10_000)

    assert "m3" in host.machine.groups["g"].members
