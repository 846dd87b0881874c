"""Groups that move between the classic and the consumer protocol online."""

from __future__ import annotations

from typing import Any

import pytest
from support.clients.classic_consumer import ClassicConsumer, both_host
from support.clients.group_clients import Client, code_of, subscription
from support.coordinators.consumer_member import FakeConsumer, describe, make_host, topic_id
from support.coordinators.coordinator_host import CoordinatorHost, value_of

from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup
from kbroker.errors import ErrorCode, WireError

pytestmark = pytest.mark.unit

A = topic_id("a")
ALL = {(A, p) for p in range(6)}


@pytest.fixture
def host() -> CoordinatorHost:
    made = both_host()
    made.add_topic("a", 6)
    return made


def settle(host: CoordinatorHost, *members: Any, rounds: int = 6) -> None:
    """All members do whatever is due; no partition ever has two consumers."""
    for _ in range(rounds):
        for member in members:
            member.beat()
            owned = [partition for one in members for partition in one.owned]
            assert len(owned) == len(set(owned)), "two members consume one partition"
        host.advance(1_000)


def classic_group(host: CoordinatorHost, count: int, **options: Any) -> list[ClassicConsumer]:
    members = [ClassicConsumer(host, ["a"], client_id=f"c{n}", **options) for n in range(count)]
    settle(host, *members, rounds=10)
    assert set().union(*(member.owned for member in members)) == ALL
    return members


def kind(host: CoordinatorHost) -> str:
    return str(host.machine.groups["g"].kind)


def error_of(function: Any, *args: Any, **options: Any) -> ErrorCode:
    with pytest.raises(WireError) as raised:
        function(*args, **options)
    return raised.value.code


# -- up -------------------------------------------------------------------------------------------


def test_consumer_joins_a_classic_group_and_all_continue(host: CoordinatorHost) -> None:
    first, second = classic_group(host, 2)
    generation = first.generation

    new = FakeConsumer(host, "m1", ["a"])
    new.join()

    group = host.machine.groups["g"]
    assert isinstance(group, ConsumerGroup)
    assert group.epoch == generation + 1
    assert new.epoch == generation + 1
    assert new.owned == set()  # the others have everything
    assert first.owned | second.owned == ALL
    settle(host, first, second, new)
    assert first.owned | second.owned | new.owned == ALL
    assert [len(m.owned) for m in (first, second, new)] == [2, 2, 2]
    assert describe(host).group_state == "Stable"
    assert sorted(m.member_type for m in describe(host).members) == [0, 0, 1]


def test_upgraded_group_is_there_after_a_load(host: CoordinatorHost) -> None:
    first, second = classic_group(host, 2)
    new = FakeConsumer(host, "m1", ["a"])
    new.join()

    host.compact()
    host.reload()
    settle(host, first, second, new)

    assert kind(host) == "consumer"
    assert first.owned | second.owned | new.owned == ALL
    assert len(new.owned) == 2


def test_members_that_wait_for_a_generation_are_told_to_join_again(host: CoordinatorHost) -> None:
    [first] = classic_group(host, 1)
    second = ClassicConsumer(host, ["a"], client_id="late")
    second.beat()
    assert second.pending is not None
    waiting = second.pending

    FakeConsumer(host, "m1", ["a"]).join()

    assert code_of(waiting) == ErrorCode.REBALANCE_IN_PROGRESS
    settle(host, first, second)
    assert len(host.machine.groups["g"].members) == 3


def test_group_that_forms_is_upgraded_before_its_first_generation(host: CoordinatorHost) -> None:
    first = ClassicConsumer(host, ["a"])
    first.beat()
    new = FakeConsumer(host, "m1", ["a"])

    new.join()
    settle(host, first, new)

    assert first.owned | new.owned == ALL
    assert len(new.owned) == 3


def test_cooperative_members_keep_what_stays_theirs(host: CoordinatorHost) -> None:
    """They join a consumer group without revoking anything before they are asked to."""
    new = FakeConsumer(host, "m1", ["a"])
    new.join()
    first = ClassicConsumer(host, ["a"], client_id="c1", is_eager=False)
    second = ClassicConsumer(host, ["a"], client_id="c2", is_eager=False)
    settle(host, new, first)
    had = set(first.owned)

    settle(host, new, first, second)

    assert len(had) == 3
    assert len(first.owned) == len(second.owned) == len(new.owned) == 2
    assert first.owned < had


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_policy_may_forbid_the_way_up(policy: str) -> None:
    host = both_host(group_consumer_migration_policy=policy)
    host.add_topic("a", 6)
    [first] = classic_group(host, 1)

    code = error_of(FakeConsumer(host, "m1", ["a"]).join)

    assert code == ErrorCode.GROUP_ID_NOT_FOUND
    settle(host, first)
    assert (kind(host), first.owned) == ("classic", ALL)


def test_group_of_another_kind_of_client_stays_as_it_is(host: CoordinatorHost) -> None:
    Client(host, protocol_type="connect").join()

    assert error_of(FakeConsumer(host, "m1", ["a"]).join) == ErrorCode.GROUP_ID_NOT_FOUND


def test_group_that_is_too_large_stays_as_it_is() -> None:
    host = both_host(group_consumer_max_size="1")
    host.add_topic("a", 6)
    classic_group(host, 2)

    assert error_of(FakeConsumer(host, "m1", ["a"]).join) == ErrorCode.GROUP_ID_NOT_FOUND


def test_group_with_data_that_is_not_a_consumers_stays_as_it_is(host: CoordinatorHost) -> None:
    client = Client(host, protocols={"range": b"\0\0garbage"})
    client.join()

    assert error_of(FakeConsumer(host, "m1", ["a"]).join) == ErrorCode.GROUP_ID_NOT_FOUND
    assert kind(host) == "classic"


def test_heartbeat_that_does_not_join_upgrades_nothing(host: CoordinatorHost) -> None:
    classic_group(host, 1)

    member = FakeConsumer(host, "m1", ["a"])

    assert error_of(member.send, member_epoch=1) == ErrorCode.GROUP_ID_NOT_FOUND
    assert error_of(member.send, member_epoch=-1) == ErrorCode.GROUP_ID_NOT_FOUND


def test_empty_classic_group_makes_room(host: CoordinatorHost) -> None:
    [first] = classic_group(host, 1)
    first.leave()
    assert kind(host) == "classic"

    new = FakeConsumer(host, "m1", ["a"])
    new.join()
    host.reload()

    assert kind(host) == "consumer"
    assert len(host.machine.groups["g"].members) == 1


def test_empty_consumer_group_makes_room(host: CoordinatorHost) -> None:
    new = FakeConsumer(host, "m1", ["a"])
    new.join()
    new.leave()

    classic_group(host, 2)
    host.compact()
    host.reload()

    assert kind(host) == "classic"
    assert len(host.machine.groups["g"].members) == 2


def test_write_that_fails_leaves_the_classic_group(host: CoordinatorHost) -> None:
    first, second = classic_group(host, 2)
    host.fail_with = WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    assert error_of(FakeConsumer(host, "m1", ["a"]).join) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    host.fail_with = None

    assert kind(host) == "classic"
    settle(host, first, second)
    assert first.owned | second.owned == ALL


# -- classic members of a consumer group ----------------------------------------------------------


def test_classic_member_joins_a_consumer_group(host: CoordinatorHost) -> None:
    new = FakeConsumer(host, "m1", ["a"])
    new.join()
    client = Client(host, protocols={"range": subscription("a")})

    response = client.joined(client.join())

    assert (response.protocol_type, response.protocol_name) == ("consumer", "range")
    assert (response.leader, response.members) == ("", [])
    assert response.generation_id == 2
    assert value_of(client.send_sync()).error_code == 0
    assert client.beat() == 0


def test_classic_member_is_not_called_to_join_before_there_can_be_a_target() -> None:
    """It would join, be sent back by its sync, and join again, as fast as it can."""
    host = both_host(group_consumer_assignment_interval_ms="1000")
    host.add_topic("a", 6)
    new = FakeConsumer(host, "m1", ["a"])
    new.join()
    member = ClassicConsumer(host, ["a"])

    for _ in range(3):
        member.beat()
        assert not member.has_to_join and member.owned == set()
        host.advance(300)
    host.advance(100)
    member.beat()
    assert member.has_to_join

    settle(host, new, member)
    assert len(new.owned) == len(member.owned) == 3


def test_member_without_id_is_given_one_and_leaves_no_trace(host: CoordinatorHost) -> None:
    FakeConsumer(host, "m1", ["a"]).join()
    client = Client(host, protocols={"range": subscription("a")})

    response = value_of(client.send_join())

    assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert response.member_id.startswith("app-")
    assert len(host.machine.groups["g"].members) == 1


@pytest.mark.parametrize("version", [0, 3])
def test_old_client_is_let_in_at_once(host: CoordinatorHost, version: int) -> None:
    FakeConsumer(host, "m1", ["a"]).join()
    client = Client(host, protocols={"range": subscription("a", version=0)}, version=version)

    response = value_of(client.send_join())

    assert response.error_code == 0
    assert response.member_id in host.machine.groups["g"].members


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": {}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": {"sticky": subscription("a")}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": {"range": b"\0\1garbage"}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_classic_member_that_does_not_fit_is_rejected(
    host: CoordinatorHost, options: dict[str, Any], code: ErrorCode
) -> None:
    FakeConsumer(host, "m1", ["a"]).join()
    settle(host, ClassicConsumer(host, ["a"]))  # offers range

    rejected = Client(host, **options).join()

    assert code_of(rejected) == code
    assert len(host.machine.groups["g"].members) == 2


def test_classic_member_with_a_subscription_too_large_for_the_log_is_rejected(
    host: CoordinatorHost,
) -> None:
    FakeConsumer(host, "m1", ["a"]).join()
    written = len(host.log)
    large = subscription(*(f"{n}".ljust(200, "x") for n in range(6_000)))

    rejected = Client(host, protocols={"range": large}).join()

    assert code_of(rejected) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert (len(host.log), host.loads) == (written, 1)
    assert list(host.machine.groups["g"].members) == ["m1"]


def test_group_takes_no_more_classic_members_than_it_may() -> None:
    host = both_host(group_consumer_max_size="1")
    FakeConsumer(host, "m1", ["a"]).join()

    assert code_of(Client(host).join()) == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_requests_of_a_stale_classic_member_are_rejected(host: CoordinatorHost) -> None:
    FakeConsumer(host, "m1", ["a"]).join()
    member = ClassicConsumer(host, ["a"])
    settle(host, member)
    client = member.client

    assert client.beat(generation_id=1) == ErrorCode.ILLEGAL_GENERATION
    assert client.beat(member_id="x") == ErrorCode.UNKNOWN_MEMBER_ID
    assert client.beat(group_instance_id="x") == ErrorCode.UNKNOWN_MEMBER_ID
    assert client.beat(member_id="m1", generation_id=1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(client.send_sync(generation_id=1)) == ErrorCode.ILLEGAL_GENERATION
    wrong = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code_of(client.send_sync(protocol_type="connect")) == wrong
    assert code_of(client.send_sync(protocol_name="sticky")) == wrong


def test_classic_member_that_does_not_join_again_is_taken_out(host: CoordinatorHost) -> None:
    new = FakeConsumer(host, "m1", ["a"])
    new.join()
    member = ClassicConsumer(host, ["a"])
    settle(host, new, member)
    new.beat(subscribed_topic_names=[])
    group = host.machine.groups["g"]

    for _ in range(13):
        assert member.client.beat() == ErrorCode.REBALANCE_IN_PROGRESS
        host.advance(4_900)
        new.beat()

    assert member.member_id not in group.members


def test_classic_member_that_does_not_sync_is_taken_out(host: CoordinatorHost) -> None:
    new = FakeConsumer(host, "m1", ["a"])
    new.join()
    client = Client(host, protocols={"range": subscription("a")}, session_ms=70_000)
    client.joined(client.join())

    for _ in range(13):
        host.advance(4_900)
        new.beat()

    assert client.member_id not in host.machine.groups["g"].members


def test_session_of_a_classic_member_is_its_own(host: CoordinatorHost) -> None:
    new = FakeConsumer(host, "m1", ["a"])
    new.join()
    member = ClassicConsumer(host, ["a"], session_ms=10_000)
    settle(host, new, member)

    host.advance(8_000)  # after the second that the last round took
    assert member.member_id in host.machine.groups["g"].members
    host.advance(1_000)
    assert member.member_id not in host.machine.groups["g"].members


def test_classic_member_leaves_a_consumer_group(host: CoordinatorHost) -> None:
    new = FakeConsumer(host, "m1", ["a"])
    new.join()
    member = ClassicConsumer(host, ["a"])
    settle(host, new, member)

    assert member.leave() == 0
    assert member.client.leave() == ErrorCode.UNKNOWN_MEMBER_ID
    new.beat()

    assert new.owned == ALL


def test_consumer_member_is_not_removed_by_a_classic_leave(host: CoordinatorHost) -> None:
    FakeConsumer(host, "m1", ["a"]).join()
    client = Client(host)
    client.member_id = "m1"

    assert client.leave() == ErrorCode.UNKNOWN_MEMBER_ID
    assert "m1" in host.machine.groups["g"].members


def test_static_classic_member_comes_back_to_a_consumer_group(host: CoordinatorHost) -> None:
    new = FakeConsumer(host, "m1", ["a"])
    new.join()
    first = ClassicConsumer(host, ["a"], instance_id="i1", is_eager=False)
    settle(host, new, first)
    had, epoch = set(first.owned), describe(host).group_epoch

    back = ClassicConsumer(host, ["a"], instance_id="i1", is_eager=False)
    settle(host, new, back)

    assert back.owned == had
    assert describe(host).group_epoch == epoch
    assert first.client.beat() == ErrorCode.FENCED_INSTANCE_ID


def test_commit_of_a_classic_member_is_checked_by_generation(host: CoordinatorHost) -> None:
    FakeConsumer(host, "m1", ["a"]).join()
    member = ClassicConsumer(host, ["a"])
    settle(host, member)
    group = host.machine.groups["g"]

    group.check_commit(member.member_id, None, member.generation, version=3)

    code = error_of(group.check_commit, member.member_id, None, 99, version=3)
    assert code == ErrorCode.ILLEGAL_GENERATION


def test_commit_of_an_older_generation_is_taken_for_what_a_classic_member_still_has(
    host: CoordinatorHost,
) -> None:
    """A commit may be in flight while the member rejoins (KIP-1251)."""
    new = FakeConsumer(host, "m1", ["a"])
    new.join()
    member = ClassicConsumer(host, ["a"], is_eager=False)
    settle(host, new, member)
    before = member.generation
    settle(host, new, member, ClassicConsumer(host, ["a"], client_id="other", is_eager=False))
    assert member.generation > before
    group = host.machine.groups["g"]
    options = {"version": 8}

    group.check_commit(member.member_id, None, before, **options, partitions=sorted(member.owned))

    lost = sorted(new.owned)
    code = error_of(group.check_commit, member.member_id, None, before, **options, partitions=lost)
    assert code == ErrorCode.ILLEGAL_GENERATION


# -- down -----------------------------------------------------------------------------------------


def mixed_group(host: CoordinatorHost) -> tuple[FakeConsumer, list[ClassicConsumer]]:
    new = FakeConsumer(host, "m1", ["a"])
    new.join()
    members = [ClassicConsumer(host, ["a"], client_id=f"c{n}") for n in range(2)]
    settle(host, new, *members)
    return new, members


def test_group_moves_back_when_the_last_consumer_leaves(host: CoordinatorHost) -> None:
    new, members = mixed_group(host)

    new.leave()
    assert kind(host) == "classic"
    settle(host, *members)

    group = host.machine.groups["g"]
    assert isinstance(group, ClassicGroup)
    assert group.state == "Stable"
    assert members[0].owned | members[1].owned == ALL
    assert len(members[0].owned) == 3


def test_downgraded_group_is_there_after_a_load(host: CoordinatorHost) -> None:
    new, members = mixed_group(host)
    new.leave()

    host.compact()
    host.reload()
    settle(host, *members, rounds=70)

    assert kind(host) == "classic"
    assert members[0].owned | members[1].owned == ALL


def test_group_moves_back_when_the_last_consumer_expires(host: CoordinatorHost) -> None:
    _, members = mixed_group(host)

    for _ in range(10):
        host.advance(4_900)
        for member in members:
            member.beat()

    assert kind(host) == "classic"
    settle(host, *members)
    assert members[0].owned | members[1].owned == ALL


def test_group_with_another_consumer_stays(host: CoordinatorHost) -> None:
    new, members = mixed_group(host)
    other = FakeConsumer(host, "m2", ["a"])
    other.join()

    new.leave()
    settle(host, other, *members)

    assert kind(host) == "consumer"
    assert other.owned | members[0].owned | members[1].owned == ALL


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
def test_policy_may_forbid_the_way_down(policy: str) -> None:
    host = both_host(group_consumer_migration_policy=policy)
    host.add_topic("a", 6)
    new, members = mixed_group(host)

    new.leave()
    settle(host, *members)

    assert kind(host) == "consumer"
    assert members[0].owned | members[1].owned == ALL


def test_static_classic_member_in_place_of_the_last_consumer_needs_no_rebalance(
    host: CoordinatorHost,
) -> None:
    new = FakeConsumer(host, "m1", ["a"], instance_id="i1")
    new.join()
    other = ClassicConsumer(host, ["a"], client_id="c1")
    settle(host, new, other)
    had, generation = set(new.owned), describe(host).group_epoch
    new.leave(-2)

    back = ClassicConsumer(host, ["a"], client_id="c2", instance_id="i1")
    settle(host, other, back)

    group = host.machine.groups["g"]
    assert isinstance(group, ClassicGroup)
    assert (group.generation, group.state) == (generation, "Stable")
    assert back.owned == had
    assert other.owned == ALL - had


def test_static_classic_member_in_the_middle_of_a_change_starts_a_rebalance(
    host: CoordinatorHost,
) -> None:
    """Partitions of the new member's target may still be owned by another member."""
    new = FakeConsumer(host, "m1", ["a"], instance_id="i1")
    other = ClassicConsumer(host, ["a"], client_id="c1", is_eager=True)
    settle(host, other, rounds=10)
    new.join()  # the other one has everything, and does not know yet
    new.leave(-2)

    back = ClassicConsumer(host, ["a"], client_id="c2", instance_id="i1")
    settle(host, other, back, rounds=10)

    assert kind(host) == "classic"
    assert other.owned | back.owned == ALL
    assert len(back.owned) == 3


def test_static_member_may_move_to_the_consumer_protocol(host: CoordinatorHost) -> None:
    first = ClassicConsumer(host, ["a"], client_id="c1", instance_id="i1")
    second = ClassicConsumer(host, ["a"], client_id="c2")
    settle(host, first, second, rounds=10)
    had = set(first.owned)

    new = FakeConsumer(host, "m1", ["a"], instance_id="i1")
    new.join()
    settle(host, new, second)

    assert new.owned == had
    assert second.owned == ALL - had
    assert len(host.machine.groups["g"].members) == 2


# -- too large for one batch ----------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["0", "2"])
def test_group_too_large_for_one_batch_stays_classic_and_continues(codec: str) -> None:
    host = both_host(message_max_bytes="1700", offsets_topic_compression_codec=codec)
    host.add_topic("a", 6)
    members = classic_group(host, 6)
    generation, loads = members[0].generation, host.loads
    written = len(host.log)

    new = FakeConsumer(host, "m1", ["a"])
    if codec == "0":
        assert error_of(new.join) == ErrorCode.UNKNOWN_SERVER_ERROR
        assert len(host.log) == written
        settle(host, *members)
        assert kind(host) == "classic"
        assert {member.generation for member in members} == {generation}
        assert host.loads == loads, "nobody else of the partition is disturbed"
        members.pop().leave()
        members.pop().leave()
        members.pop().leave()
        settle(host, *members, rounds=10)
    new.join()
    settle(host, new, *members)
    assert kind(host) == "consumer"


def test_group_too_large_for_one_record_stays_with_the_consumer_protocol() -> None:
    host = both_host()
    host.add_topic("a", 6)
    members: list[Any] = classic_group(host, 6)
    new = FakeConsumer(host, "m1", ["a"])
    new.join()
    settle(host, new, *members)
    own = {"offsets.topic.compression.codec": "0", "message.max.bytes": "1200"}
    host.configure(**own)

    new.leave()
    settle(host, *members)

    assert kind(host) == "consumer"
    assert set().union(*(member.owned for member in members)) == ALL
    host.configure()
    other = FakeConsumer(host, "m2", ["a"])
    other.join()
    other.leave()
    settle(host, *members)
    assert kind(host) == "classic"


def test_heartbeat_whose_target_is_too_large_is_rejected_and_changes_nothing() -> None:
    """For a large group: below some hundred records a target is far from any limit."""
    host = make_host()
    host.add_topic("a", 510)
    members = [FakeConsumer(host, f"m{n}", ["a"]) for n in range(510)]
    for member in members:
        member.join()
    before, written = describe(host), len(host.log)
    host.configure(**{"message.max.bytes": "20000"})
    host.add_topic("a", 1_020)

    assert error_of(members[0].beat) == ErrorCode.UNKNOWN_SERVER_ERROR

    assert (len(host.log), host.loads) == (written, 1)
    assert describe(host) == before
    host.configure()
    members[0].beat()
    assert describe(host).group_epoch == before.group_epoch + 1
