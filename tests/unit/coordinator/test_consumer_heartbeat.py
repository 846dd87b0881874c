"""Heartbeats of the consumer protocol: joining, leaving, epochs, rejections."""

from __future__ import annotations

from typing import Any

import pytest
from support.coordinators.consumer_member import (
    FakeConsumer,
    describe,
    make_host,
    partitions,
    settle,
    topic_id,
)
from support.coordinators.coordinator_host import CoordinatorHost

from kbroker.cluster import features
from kbroker.config.loader import BrokerConfig
from kbroker.coordinator.records import offsets_topic as records
from kbroker.errors import ErrorCode, WireError

pytestmark = pytest.mark.unit

A = topic_id("a")


@pytest.fixture
def host() -> CoordinatorHost:
    made = make_host()
    made.add_topic("a", 6)
    return made


def error_of(function: Any, *args: Any, **options: Any) -> ErrorCode:
    with pytest.raises(WireError) as raised:
        function(*args, **options)
    return raised.value.code


def keys_written(host: CoordinatorHost) -> list[str]:
    return [type(key).__name__.removeprefix("ConsumerGroup") for key, _ in host.written[-1]]


# -- joining --------------------------------------------------------------------------------------


def test_first_member_gets_every_partition_in_its_first_response(host: CoordinatorHost) -> None:
    member = FakeConsumer(host, "m1", ["a"])

    response = member.join()

    assert response.member_epoch == 1
    assert response.heartbeat_interval_ms == 5000
    assert member.assigned == {(A, p) for p in range(6)}
    assert describe(host).group_state == "Stable"
    assert keys_written(host) == [
        "MemberMetadataKey",
        "MetadataKey",
        "TargetAssignmentMemberKey",
        "TargetAssignmentMetadataKey",
        "CurrentMemberAssignmentKey",
    ]


def test_heartbeat_that_says_nothing_new_writes_nothing_and_has_no_assignment(
    host: CoordinatorHost,
) -> None:
    member = FakeConsumer(host, "m1", ["a"])
    member.join()
    member.beat()  # the first one after the group is made looks at its topics again
    written = len(host.written)

    response = member.send()

    assert response.assignment is None
    assert response.member_epoch == 1
    assert len(host.written) == written


def test_full_heartbeat_returns_the_assignment(host: CoordinatorHost) -> None:
    member = FakeConsumer(host, "m1", ["a"])
    member.join()

    response = member.send(
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["a"],
        topic_partitions=partitions(member.owned),
    )

    assert sorted(response.assignment.topic_partitions[0].partitions) == list(range(6))


def test_version_0_member_without_an_id_is_given_one(host: CoordinatorHost) -> None:
    member = FakeConsumer(host, "", ["a"])
    member.version = 0

    response = member.join()

    assert len(response.member_id) == 22
    assert list(host.machine.groups["g"].members) == [response.member_id]


def test_second_member_waits_until_the_first_has_let_go(host: CoordinatorHost) -> None:
    first, second = FakeConsumer(host, "m1", ["a"]), FakeConsumer(host, "m2", ["a"])
    first.join()
    first.lets_go = False

    second.join()
    first.beat()

    assert (second.epoch, second.assigned) == (2, set())
    assert (first.epoch, len(first.assigned)) == (1, 3)  # asked to revoke, still in its epoch
    assert describe(host).group_state == "Reconciling"

    first.lets_go = True
    first.beat()
    second.beat()

    assert first.epoch == second.epoch == 2
    assert first.owned | second.owned == {(A, p) for p in range(6)}
    assert not first.owned & second.owned
    assert describe(host).group_state == "Stable"


def test_member_without_any_subscription_takes_part_and_gets_nothing(
    host: CoordinatorHost,
) -> None:
    first, idle = FakeConsumer(host, "m1", ["a"]), FakeConsumer(host, "m2", [])

    first.join()
    idle.join()
    settle(first, idle)

    assert len(first.owned) == 6
    assert idle.owned == set()
    assert idle.epoch > 0


def test_topic_that_does_not_exist_is_assigned_once_it_does(host: CoordinatorHost) -> None:
    member = FakeConsumer(host, "m1", ["later"])
    member.join()

    host.add_topic("later", 2)
    member.beat()

    assert member.assigned == {(topic_id("later"), 0), (topic_id("later"), 1)}
    assert member.epoch == 2


def test_join_that_is_repeated_gets_the_same_response(host: CoordinatorHost) -> None:
    """The response to a first join may be lost; since version 1 a member generates its own id."""
    member = FakeConsumer(host, "m1", ["a"])
    first = member.join()

    again = member.join()

    assert again == first


def test_fenced_member_starts_over_with_epoch_0(host: CoordinatorHost) -> None:
    """Whatever its epoch was: it reports that it has revoked everything."""
    first, second = FakeConsumer(host, "m1", ["a"]), FakeConsumer(host, "m2", ["a"])
    first.join()
    second.join()
    settle(first, second)

    second.join()

    assert len(second.assigned) == 3
    assert len(host.machine.groups["g"].members) == 2


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": partitions({(A, 0)})}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "a("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_join_that_cannot_be_is_rejected_and_leaves_no_trace(
    host: CoordinatorHost, fields: dict[str, Any], code: ErrorCode
) -> None:
    member = FakeConsumer(host, "m1", ["a"])

    assert error_of(member.join, **fields) == code
    assert host.machine.groups == {}
    assert host.written == []


def test_subscription_too_large_for_the_log_is_rejected_and_costs_nobody_else(
    host: CoordinatorHost,
) -> None:
    """The log would reject it after soft state has changed: the whole partition would be
    reloaded.
    """
    first = FakeConsumer(host, "m1", ["a"])
    first.join()
    written = len(host.log)
    large = FakeConsumer(host, "m2", [f"{n}".ljust(200, "x") for n in range(6_000)])

    assert error_of(large.join) == ErrorCode.UNKNOWN_SERVER_ERROR

    assert (len(host.log), host.loads) == (written, 1)
    assert list(host.machine.groups["g"].members) == ["m1"]
    assert first.beat().error_code == 0


@pytest.mark.parametrize("reason", ["settings", "feature"])
def test_protocol_that_is_not_offered_is_rejected(reason: str) -> None:
    protocols = "classic" if reason == "settings" else "classic,consumer"
    host = make_host(group_coordinator_rebalance_protocols=protocols)
    if reason == "feature":
        host.image.features = features.NONE

    assert error_of(FakeConsumer(host, "m1", ["a"]).join) == ErrorCode.UNSUPPORTED_VERSION
    assert error_of(describe, host) == ErrorCode.UNSUPPORTED_VERSION


def test_group_takes_no_more_members_than_it_may() -> None:
    host = make_host(group_consumer_max_size="2")
    members = [FakeConsumer(host, f"m{n}", ["a"]) for n in range(3)]
    members[0].join()
    members[1].join()

    assert error_of(members[2].join) == ErrorCode.GROUP_MAX_SIZE_REACHED
    members[1].join()  # existing members may start over
    members[0].leave()
    assert members[2].join().error_code == 0


# -- epochs ---------------------------------------------------------------------------------------


def test_heartbeat_of_an_unknown_group_or_member_is_rejected(host: CoordinatorHost) -> None:
    member = FakeConsumer(host, "m1", ["a"])
    assert error_of(member.send, member_epoch=1) == ErrorCode.GROUP_ID_NOT_FOUND
    assert error_of(member.send, member_epoch=-1) == ErrorCode.GROUP_ID_NOT_FOUND

    member.join()

    other = FakeConsumer(host, "m2", ["a"])
    assert error_of(other.send, member_epoch=1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert error_of(other.send, member_epoch=-1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_wrong_epoch_is_fenced(host: CoordinatorHost) -> None:
    member = FakeConsumer(host, "m1", ["a"])
    member.join()
    host.add_topic("b", 1)
    member.send(subscribed_topic_names=["a", "b"])
    member.epoch = 2

    assert error_of(member.send, member_epoch=3) == ErrorCode.FENCED_MEMBER_EPOCH
    assert error_of(member.send, member_epoch=1) == ErrorCode.FENCED_MEMBER_EPOCH


def test_previous_epoch_is_accepted_with_no_more_than_was_assigned(host: CoordinatorHost) -> None:
    """The response with the new epoch may have been lost."""
    member = FakeConsumer(host, "m1", ["a"])
    member.join()
    host.set_topics(a=None)
    host.add_topic("a", 8, topic_id=b"another".ljust(16))
    owned = member.owned
    member.send()  # ignored: it must revoke partitions of the old topic
    member.send(topic_partitions=[])
    assert host.machine.groups["g"].members["m1"].epoch == 2

    rejected = error_of(member.send, member_epoch=1, topic_partitions=partitions(owned))
    response = member.send(member_epoch=1, topic_partitions=[])

    assert rejected == ErrorCode.FENCED_MEMBER_EPOCH
    assert response.member_epoch == 2


# -- leaving --------------------------------------------------------------------------------------


def test_leaving_gives_partitions_to_those_who_stay(host: CoordinatorHost) -> None:
    first, second = FakeConsumer(host, "m1", ["a"]), FakeConsumer(host, "m2", ["a"])
    first.join()
    second.join()
    settle(first, second)

    response = first.leave()
    second.beat()

    assert (response.member_id, response.member_epoch) == ("m1", -1)
    assert response.heartbeat_interval_ms == 0
    assert len(second.owned) == 6
    assert list(host.machine.groups["g"].members) == ["m2"]


def test_group_that_everyone_left_is_empty_and_can_be_joined(host: CoordinatorHost) -> None:
    member = FakeConsumer(host, "m1", ["a"])
    member.join()
    member.leave()

    group = host.machine.groups["g"]
    assert (group.state, group.is_empty, group.empty_since_ms) == ("Empty", True, -1)
    assert group.epoch == group.target_epoch == 2
    assert group.owners == {}
    assert group.targets == {}

    member.join()
    assert member.epoch == 3
    assert len(member.assigned) == 6
    assert group.empty_since_ms is None


def test_settings_of_the_group_count_from_the_next_heartbeat_on(host: CoordinatorHost) -> None:
    member = FakeConsumer(host, "m1", ["a"])
    assert member.join().heartbeat_interval_ms == 5_000
    own = {"consumer.session.timeout.ms": "60000", "consumer.heartbeat.interval.ms": "10000"}
    host.image.apply({"version": host.image.version + 1, "group_config": {"g": own}})

    assert member.beat().heartbeat_interval_ms == 10_000
    host.advance(59_000)
    assert describe(host).members
    host.advance(1_000)
    assert not describe(host).members

    other = FakeConsumer(host, "m1", ["a"], group="h")
    assert other.join().heartbeat_interval_ms == 5_000
    host.image.apply({"version": host.image.version + 1, "group_config": {"g": None}})
    assert member.join().heartbeat_interval_ms == 5_000


def test_changes_within_the_interval_of_assignments_are_taken_together() -> None:
    host = make_host(group_consumer_assignment_interval_ms="1000")
    host.add_topic("a", 4)
    members = [FakeConsumer(host, f"m{n}", ["a"]) for n in range(3)]
    members[0].join()
    assert len(members[0].owned) == 4, "the first target has nothing to wait for"

    members[1].join()
    members[2].join()
    host.advance(999)
    members[1].beat()

    shown = describe(host)
    assert (shown.group_state, shown.group_epoch, shown.assignment_epoch) == ("Assigning", 3, 1)
    assert [member.epoch for member in members] == [1, 1, 1]
    host.reload()
    members[1].beat()
    assert describe(host).assignment_epoch == 1
    host.advance(1)
    members[1].beat()
    assert describe(host).assignment_epoch == 3
    settle(*members)
    assert sorted(len(member.owned) for member in members) == [1, 1, 2]


def test_member_without_a_target_comes_again_when_one_may_be_computed() -> None:
    """Otherwise a new group would wait for a whole heartbeat interval."""
    default = BrokerConfig({})["group.consumer.assignment.interval.ms"]
    host = make_host(group_consumer_assignment_interval_ms=str(default))
    host.add_topic("a", 4)
    first, second = FakeConsumer(host, "m1", ["a"]), FakeConsumer(host, "m2", ["a"])
    assert first.join().heartbeat_interval_ms == 5_000

    host.advance(300)
    assert second.join().heartbeat_interval_ms == 700
    assert describe(host).group_state == "Assigning"
    host.advance(700)

    assert second.beat().heartbeat_interval_ms == 5_000
    assert describe(host).assignment_epoch == 2


def test_group_that_was_left_by_all_is_assigned_at_once() -> None:
    host = make_host(group_consumer_assignment_interval_ms="1000")
    host.add_topic("a", 4)
    first, second = FakeConsumer(host, "m1", ["a"]), FakeConsumer(host, "m2", ["a"])
    first.join()
    first.leave()

    second.join()

    assert len(second.owned) == 4


def test_group_may_have_an_interval_of_assignments_of_its_own(host: CoordinatorHost) -> None:
    own = {"consumer.assignment.interval.ms": "5000"}
    host.image.apply({"version": host.image.version + 1, "group_config": {"g": own}})
    first, second = FakeConsumer(host, "m1", ["a"]), FakeConsumer(host, "m2", ["a"])
    first.join()
    second.join()
    assert describe(host).assignment_epoch == 1
    host.image.apply({"version": host.image.version + 1, "group_config": {"g": None}})
    second.beat()
    assert describe(host).assignment_epoch == 2


def test_member_that_is_silent_for_its_session_is_taken_out(host: CoordinatorHost) -> None:
    first, second = FakeConsumer(host, "m1", ["a"]), FakeConsumer(host, "m2", ["a"])
    first.join()
    second.join()
    settle(first, second)

    host.advance(30_000)
    second.beat()
    host.advance(15_000)

    assert list(host.machine.groups["g"].members) == ["m2"]
    second.beat()
    assert len(second.owned) == 6
    assert error_of(first.beat) == ErrorCode.UNKNOWN_MEMBER_ID


def test_member_that_does_not_let_go_in_time_is_taken_out(host: CoordinatorHost) -> None:
    first = FakeConsumer(host, "m1", ["a"], rebalance_timeout_ms=20_000)
    second = FakeConsumer(host, "m2", ["a"])
    first.join()
    first.lets_go = False
    second.join()
    first.beat()

    for _ in range(4):
        host.advance(4_900)
        first.beat()
        second.beat()
    assert len(second.owned) == 0
    host.advance(400)

    assert list(host.machine.groups["g"].members) == ["m2"]
    second.beat()
    assert len(second.owned) == 6


def test_member_that_lets_go_is_not_taken_out_later(host: CoordinatorHost) -> None:
    first = FakeConsumer(host, "m1", ["a"], rebalance_timeout_ms=20_000)
    second = FakeConsumer(host, "m2", ["a"])
    first.join()
    second.join()
    first.beat()
    settle(first, second)

    for _ in range(8):
        host.advance(4_900)
        settle(first, second, rounds=1)

    assert len(host.machine.groups["g"].members) == 2


# -- subscriptions --------------------------------------------------------------------------------


def test_topic_unsubscribed_is_revoked_before_it_is_given_away(host: CoordinatorHost) -> None:
    host.add_topic("b", 2)
    first = FakeConsumer(host, "m1", ["a", "b"])
    second = FakeConsumer(host, "m2", ["b"])
    first.join()
    second.join()
    settle(first, second)

    first.beat(subscribed_topic_names=["a"])
    settle(first, second)

    assert first.owned == {(A, p) for p in range(6)}
    assert second.owned == {(topic_id("b"), 0), (topic_id("b"), 1)}


def test_topic_that_grows_is_assigned_again(host: CoordinatorHost) -> None:
    first, second = FakeConsumer(host, "m1", ["a"]), FakeConsumer(host, "m2", ["a"])
    first.join()
    second.join()
    settle(first, second)

    host.add_topic("a", 8)
    settle(first, second)

    assert first.owned | second.owned == {(A, p) for p in range(8)}
    assert len(first.owned) == len(second.owned) == 4
    assert describe(host).group_epoch == 3


def test_change_of_a_leader_makes_no_new_epoch(host: CoordinatorHost) -> None:
    from support.network.network_process import topic_document

    member = FakeConsumer(host, "m1", ["a"])
    member.join()
    member.beat()

    host.set_topics(a=topic_document(A, list(range(6)), leader_epoch=5))
    member.beat()

    assert describe(host).group_epoch == 1


def test_topic_that_is_deleted_is_revoked(host: CoordinatorHost) -> None:
    host.add_topic("b", 2)
    member = FakeConsumer(host, "m1", ["a", "b"])
    member.join()

    host.set_topics(b=None)
    settle(member)

    assert member.owned == {(A, p) for p in range(6)}
    assert describe(host).group_state == "Stable"


def test_assignor_is_the_one_most_members_ask_for(host: CoordinatorHost) -> None:
    first = FakeConsumer(host, "m1", ["a"], server_assignor="range")
    second = FakeConsumer(host, "m2", ["a"])
    first.join()
    second.join()
    settle(first, second)

    assert describe(host).assignor_name == "range"
    assert first.owned == {(A, 0), (A, 1), (A, 2)}
    first.leave()
    assert describe(host).assignor_name == "uniform"


def test_failing_assignor_costs_that_heartbeat_only(
    host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kbroker.coordinator.group import assignors

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    member = FakeConsumer(host, "m1", ["a"])
    with monkeypatch.context() as patch:
        patch.setattr(assignors, "find", lambda name: broken)
        assert error_of(member.join) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert host.written == []

    assert len(member.join().assignment.topic_partitions) == 1


def test_new_epoch_is_logged_with_its_reason(
    host: CoordinatorHost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    member = FakeConsumer(host, "m1", ["a"])
    member.join()
    host.advance(45_000)

    text = caplog.text
    assert "group g: new epoch 1 because member m1 subscribes to other topics" in text
    assert "group g: member m1 is fenced, its session has expired" in text
    assert "group g: new epoch 2 because 1 members are gone" in text


def test_write_that_fails_leaves_the_group_as_it_was(host: CoordinatorHost) -> None:
    first, second = FakeConsumer(host, "m1", ["a"]), FakeConsumer(host, "m2", ["a"])
    first.join()
    host.fail_with = WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    assert error_of(second.join) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    host.fail_with = None
    second.join()
    settle(first, second)

    assert len(first.owned) == len(second.owned) == 3


def test_older_form_of_topic_metadata_is_removed_at_the_next_epoch(host: CoordinatorHost) -> None:
    host.append(
        records.ConsumerGroupPartitionMetadataKey(group_id="g"),
        records.ConsumerGroupPartitionMetadataValue(topics=[]),
    )
    member = FakeConsumer(host, "m1", ["a"])

    member.join()

    assert "PartitionMetadataKey" in keys_written(host)
    member.beat(subscribed_topic_names=[])
    assert "PartitionMetadataKey" not in keys_written(host)
