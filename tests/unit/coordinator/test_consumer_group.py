"""Descriptions of a consumer group, and its state after a load."""

from __future__ import annotations

from typing import Any

import pytest
from support.coordinators.consumer_member import FakeConsumer, describe, make_host, settle, topic_id
from support.coordinators.coordinator_host import CoordinatorHost

from kbroker.coordinator.group.consumer.consumer import ConsumerProtocol
from kbroker.coordinator.group.machine import GroupMachine
from kbroker.coordinator.machine import CoordinatorOperation
from kbroker.coordinator.offsets.offsets import Offsets
from kbroker.coordinator.records import offsets_topic as records
from kbroker.errors import ErrorCode, WireError
from kbroker.protocol import codec
from kbroker.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest

pytestmark = pytest.mark.unit

A = topic_id("a")
NOT_ASKED = -(2**31)


@pytest.fixture
def host() -> CoordinatorHost:
    made = make_host()
    made.add_topic("a", 4)
    return made


def error_of(function: Any, *args: Any, **options: Any) -> ErrorCode:
    with pytest.raises(WireError) as raised:
        function(*args, **options)
    return raised.value.code


def snapshot(host: CoordinatorHost) -> Any:
    """The hard state of all groups, comparable."""
    return {
        group_id: (
            group.epoch,
            group.target_epoch,
            group.metadata_hash,
            group.targets,
            group.owners,
            group.static_members,
            group.name_counts,
            group.regex_counts,
            group.resolved,
            group.server_assignors,
            {
                m.member_id: tuple(getattr(m, name) for name in m.__slots__)
                for m in group.members.values()
            },
        )
        for group_id, group in host.machine.groups.items()
    }


# -- descriptions ---------------------------------------------------------------------------------


def test_description_shows_epochs_members_and_assignments(host: CoordinatorHost) -> None:
    first = FakeConsumer(host, "m1", ["a"], instance_id="i1", rack_id="r1")
    second = FakeConsumer(host, "m2", ["a"])
    first.join()
    first.lets_go = False
    second.join()
    first.beat()

    shown = describe(host)

    assert (shown.error_code, shown.group_state) == (0, "Reconciling")
    assert (shown.group_epoch, shown.assignment_epoch) == (2, 2)
    assert shown.assignor_name == "uniform"
    one = next(m for m in shown.members if m.member_id == "m1")
    assert (one.instance_id, one.rack_id, one.member_epoch, one.member_type) == ("i1", "r1", 1, 1)
    assert (one.client_id, one.client_host) == ("client", "/127.0.0.1")
    assert one.subscribed_topic_names == ["a"]
    assert one.subscribed_topic_regex == ""
    [topic] = one.target_assignment.topic_partitions
    assert (topic.topic_id, topic.topic_name, len(topic.partitions)) == (A, "a", 2)


def test_description_counts_what_a_member_has_to_give_up_as_its_own(host: CoordinatorHost) -> None:
    """So no other member gets it while this one still consumes it."""
    first = FakeConsumer(host, "m1", ["a"])
    first.join()
    first.lets_go = False
    FakeConsumer(host, "m2", ["a"]).join()
    assert [p.partitions for p in first.beat().assignment.topic_partitions] != [[0, 1, 2, 3]]

    held = describe(host).members[0]
    first.lets_go = True
    first.beat()
    let_go = describe(host).members[0]

    assert [p.partitions for p in held.assignment.topic_partitions] == [[0, 1, 2, 3]]
    assert let_go.assignment == let_go.target_assignment == held.target_assignment


def test_description_in_version_0_has_no_member_type(host: CoordinatorHost) -> None:
    FakeConsumer(host, "m1", ["a"]).join()

    assert describe(host, version=0).members[0].member_type == -1


def test_each_group_of_a_description_has_its_own_outcome(host: CoordinatorHost) -> None:
    FakeConsumer(host, "m1", ["a"]).join()

    response = host.ask(ConsumerGroupDescribeRequest(group_ids=["none", "g"]), 1)

    assert [group.error_code for group in response.groups] == [ErrorCode.GROUP_ID_NOT_FOUND, 0]
    assert response.groups[0].group_id == "none"
    assert codec.encode(response, 1)
    assert type(response) is ConsumerGroupDescribeResponse


def test_operations_are_described_when_asked_for(host: CoordinatorHost) -> None:
    FakeConsumer(host, "m1", ["a"]).join()
    request = ConsumerGroupDescribeRequest(
        group_ids=["g", "none"], include_authorized_operations=True
    )

    assert [g.authorized_operations for g in host.ask(request, 1).groups] == [3400, NOT_ASKED]
    assert describe(host).authorized_operations == NOT_ASKED


def test_topic_that_is_gone_is_left_out_of_descriptions(host: CoordinatorHost) -> None:
    FakeConsumer(host, "m1", ["a"]).join()
    host.set_topics(a=None)

    assert describe(host).members[0].assignment.topic_partitions == []


# -- racks ----------------------------------------------------------------------------------------


def test_broker_in_another_rack_is_a_new_epoch_and_no_other_assignment(
    host: CoordinatorHost,
) -> None:
    """As in Kafka 4.3: assignors ignore racks, but the hash of the topics includes them."""
    members = [FakeConsumer(host, name, ["a"], rack_id=f"r-{name}") for name in ("m1", "m2")]
    for member in members:
        member.join()
    settle(*members)
    owned = [set(member.owned) for member in members]
    before = describe(host).group_epoch

    host.set_brokers(rack="r-m2")
    settle(*members)

    assert describe(host).group_epoch == before + 1
    assert [member.owned for member in members] == owned
    host.set_brokers(rack="r-m2")
    settle(*members)
    assert describe(host).group_epoch == before + 1


def test_rack_that_is_as_it_was_before_a_load_is_no_new_epoch(host: CoordinatorHost) -> None:
    host.set_brokers(rack="r1")
    member = FakeConsumer(host, "m1", ["a"], rack_id="r1")
    member.join()
    before = describe(host).group_epoch

    host.reload()
    settle(member)
    assert describe(host).group_epoch == before
    assert describe(host).members[0].rack_id == "r1"

    host.set_brokers(rack="r2")
    host.reload()
    settle(member)
    assert describe(host).group_epoch == before + 1


def test_member_that_says_nothing_of_its_rack_keeps_it(host: CoordinatorHost) -> None:
    member = FakeConsumer(host, "m1", ["a"], rack_id="r1")
    member.join()
    member.send()
    assert describe(host).members[0].rack_id == "r1"

    member.send(rack_id="r2")
    assert describe(host).members[0].rack_id == "r2"
    host.reload()
    assert describe(host).members[0].rack_id == "r2"


# -- offsets --------------------------------------------------------------------------------------


def test_commit_needs_the_epoch_of_the_member(host: CoordinatorHost) -> None:
    member = FakeConsumer(host, "m1", ["a"])
    member.join()
    group = host.machine.groups["g"]

    group.check_commit("m1", None, 1, version=9)
    assert error_of(group.check_commit, "m1", None, 0, version=9) == ErrorCode.STALE_MEMBER_EPOCH
    assert error_of(group.check_commit, "m1", None, 2, version=9) == ErrorCode.STALE_MEMBER_EPOCH
    assert error_of(group.check_commit, "m2", None, 1, version=9) == ErrorCode.UNKNOWN_MEMBER_ID
    assert error_of(group.check_commit, "", None, -1, version=9) == ErrorCode.UNKNOWN_MEMBER_ID
    assert error_of(group.check_commit, "m1", None, 1, version=8) == ErrorCode.UNSUPPORTED_VERSION
    group.check_commit("m1", None, 1, version=3, transactional=True)
    group.check_commit("", None, -1, version=3, transactional=True)


def test_commit_of_an_older_epoch_is_taken_for_what_the_member_still_has(
    host: CoordinatorHost,
) -> None:
    """It may not know its new epoch yet (KIP-1251); no other member can have committed since."""
    first, second = FakeConsumer(host, "m1", ["a"]), FakeConsumer(host, "m2", ["a"])
    first.join()
    second.join()
    settle(first, second)
    group = host.machine.groups["g"]
    assert first.epoch == 2
    kept = sorted(first.owned)
    lost = sorted(second.owned)
    stale = ErrorCode.STALE_MEMBER_EPOCH

    group.check_commit("m1", None, 1, version=9, partitions=iter(kept))
    options = {"version": 9}
    assert error_of(group.check_commit, "m1", None, 1, **options, partitions=lost) == stale
    assert error_of(group.check_commit, "m1", None, 1, **options, partitions=[(None, 0)]) == stale
    assert error_of(group.check_commit, "m1", None, 0, **options, partitions=kept) == stale
    assert error_of(group.check_commit, "m1", None, 3, **options, partitions=kept) == stale
    assert error_of(group.check_commit, "m2", None, 1, **options, partitions=lost) == stale


@pytest.mark.parametrize("version", [9, 10])
def test_commit_request_of_an_older_epoch_counts_partition_by_partition(version: int) -> None:
    def make(host: Any) -> GroupMachine:
        machine = GroupMachine(host)
        machine.add(Offsets(machine))
        machine.add(ConsumerProtocol(machine))
        return machine

    def commit(*partitions: int) -> int:
        cls = OffsetCommitRequest
        topic = cls.OffsetCommitRequestTopic(
            name="a" if version == 9 else "",
            topic_id=A if version == 10 else bytes(16),
            partitions=[
                cls.OffsetCommitRequestPartition(partition_index=p, committed_offset=7)
                for p in partitions
            ],
        )
        request = cls(group_id="g", member_id="m1", generation_id_or_member_epoch=1, topics=[topic])
        answered = host.ask(request, version).topics[0].partitions
        [code] = {partition.error_code for partition in answered}
        return int(code)

    host = CoordinatorHost(make)
    host.add_topic("a", 4)
    first, second = FakeConsumer(host, "m1", ["a"]), FakeConsumer(host, "m2", ["a"])
    first.join()
    second.join()
    settle(first, second)
    kept = [partition for _, partition in sorted(first.owned)]
    lost = [partition for _, partition in sorted(second.owned)]

    assert commit(*kept) == ErrorCode.NONE
    assert commit(kept[0], lost[0]) == ErrorCode.STALE_MEMBER_EPOCH


def test_groups_are_counted_by_state(host: CoordinatorHost) -> None:
    def counts() -> dict[str, int]:
        prefix = "kbroker_consumer_groups_"
        return {
            name.removeprefix(prefix): count
            for name, count in host.counted.items()
            if name.startswith(prefix) and count
        }

    first, second = FakeConsumer(host, "m1", ["a"]), FakeConsumer(host, "m2", ["a"])
    first.join()
    assert counts() == {"stable": 1}
    second.join()
    assert counts() == {"reconciling": 1}
    settle(first, second)
    second.leave()
    assert counts() == {"assigning": 1}
    host.reload()
    assert counts() == {"assigning": 1}
    first.leave()
    assert counts() == {"empty": 1}
    host.execute(lambda op: host.machine.groups["g"].delete(op))
    assert counts() == {}
    assert host.counted["kbroker_consumer_group_rebalances_total"] == 4


def test_anyone_commits_to_an_empty_group(host: CoordinatorHost) -> None:
    member = FakeConsumer(host, "m1", ["a"])
    member.join()
    member.leave()
    group = host.machine.groups["g"]

    group.check_commit("", None, -1, version=9)
    assert error_of(group.check_commit, "m1", None, 1, version=9) == ErrorCode.UNKNOWN_MEMBER_ID


def test_fetch_of_offsets_checks_the_member_if_it_names_one(host: CoordinatorHost) -> None:
    FakeConsumer(host, "m1", ["a"]).join()
    group = host.machine.groups["g"]

    group.check_fetch(None, -1)
    group.check_fetch("", -1)
    group.check_fetch("m1", 1)
    assert error_of(group.check_fetch, "m1", 0) == ErrorCode.STALE_MEMBER_EPOCH
    assert error_of(group.check_fetch, "m2", 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_group_subscribes_to_topics_by_name(host: CoordinatorHost) -> None:
    FakeConsumer(host, "m1", ["a"]).join()

    assert host.machine.groups["g"].subscribes_to("a")
    assert not host.machine.groups["g"].subscribes_to("b")


# -- deletion -------------------------------------------------------------------------------------


def test_group_with_members_is_not_deleted(host: CoordinatorHost) -> None:
    FakeConsumer(host, "m1", ["a"]).join()

    assert error_of(host.machine.groups["g"].check_deletion) == ErrorCode.NON_EMPTY_GROUP


def test_deletion_of_an_empty_group_leaves_nothing(host: CoordinatorHost) -> None:
    member = FakeConsumer(host, "m1", ["a"], subscribed_topic_regex="a.*")
    member.join()
    member.leave()

    host.machine.groups["g"].check_deletion()
    host.execute(lambda op: host.machine.groups["g"].delete(op))

    assert host.machine.groups == {}
    host.compact()
    assert [entry for entry in host.log if entry.value is not None] == []


def test_deletion_of_a_group_with_members_leaves_nothing_either(host: CoordinatorHost) -> None:
    """So that a group which becomes classic removes all of its old records."""
    FakeConsumer(host, "m1", ["a"], subscribed_topic_regex="a.*").join()

    host.execute(lambda op: host.machine.groups["g"].delete(op))

    assert host.machine.groups == {}
    host.compact()
    assert [entry for entry in host.log if entry.value is not None] == []


# -- load -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compacted", [False, True])
def test_load_brings_back_everything(host: CoordinatorHost, compacted: bool) -> None:
    host.add_topic("b", 3)
    first = FakeConsumer(host, "m1", ["a"], instance_id="i1", server_assignor="range")
    second = FakeConsumer(host, "m2", ["a", "b"], subscribed_topic_regex="b.*")
    gone = FakeConsumer(host, "m3", ["a"])
    for member in (first, second, gone):
        member.join()
    settle(first, second, gone)
    gone.leave()
    first.lets_go = False
    settle(first, second)
    before = snapshot(host)

    if compacted:
        host.compact()
    host.reload()

    assert snapshot(host) == before


def test_members_continue_after_a_load(host: CoordinatorHost) -> None:
    first, second = FakeConsumer(host, "m1", ["a"]), FakeConsumer(host, "m2", ["a"])
    first.join()
    first.lets_go = False
    second.join()
    first.beat()

    host.reload()
    first.lets_go = True
    settle(first, second)

    assert len(first.owned) == len(second.owned) == 2
    assert describe(host).group_epoch == 2


def test_sessions_start_again_with_a_load(host: CoordinatorHost) -> None:
    FakeConsumer(host, "m1", ["a"]).join()
    host.advance(44_000)
    host.reload()

    host.advance(44_000)
    assert len(host.machine.groups["g"].members) == 1
    host.advance(1_000)
    assert len(host.machine.groups["g"].members) == 0


def test_time_to_let_go_starts_again_with_a_load(host: CoordinatorHost) -> None:
    first = FakeConsumer(host, "m1", ["a"], rebalance_timeout_ms=10_000)
    second = FakeConsumer(host, "m2", ["a"])
    first.join()
    first.lets_go = False
    second.join()
    first.beat()
    host.advance(9_000)
    host.reload()

    host.advance(9_000)
    assert "m1" in host.machine.groups["g"].members
    host.advance(1_000)
    assert "m1" not in host.machine.groups["g"].members


def test_member_in_a_state_of_a_newer_broker_has_to_start_over(host: CoordinatorHost) -> None:
    member = FakeConsumer(host, "m1", ["a"])
    member.join()
    value = records.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=1, previous_member_epoch=0, state=9
    )
    host.append(
        records.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m1"), value
    )
    host.append(
        records.ConsumerGroupMetadataKey(group_id="g"), records.ConsumerGroupMetadataValue(epoch=2)
    )

    assert error_of(member.send) == ErrorCode.FENCED_MEMBER_EPOCH
    member.join()
    assert len(member.assigned) == 4


def test_assignment_without_epochs_is_read_as_of_the_members_epoch(host: CoordinatorHost) -> None:
    cls = records.ConsumerGroupCurrentMemberAssignmentValue
    value = cls(
        member_epoch=7,
        previous_member_epoch=6,
        state=0,
        assigned_partitions=[cls.TopicPartitions(topic_id=A, partitions=[0, 2])],
    )
    host.append(
        records.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m1"), value
    )

    assert host.machine.groups["g"].members["m1"].assigned == {A: {0: 7, 2: 7}}


CONSUMER_KEYS = [
    cls
    for cls in records.RECORDS.classes()
    if cls.__name__.startswith("ConsumerGroup") and cls.__name__.endswith("Key")
]


@pytest.mark.parametrize("key", CONSUMER_KEYS)
def test_tombstone_of_what_is_not_there_does_nothing(host: CoordinatorHost, key: Any) -> None:
    names = {field.name for field in key.STRUCT.fields}

    host.append(key(**dict.fromkeys(names, "g")), None)

    assert host.machine.groups == {}


def test_group_is_what_operations_wrote_even_in_one_batch(host: CoordinatorHost) -> None:
    op = CoordinatorOperation()
    FakeConsumer(host, "m1", ["a"]).join()

    host.machine.groups["g"].delete(op)

    assert [type(key).__name__ for key, _ in op.records][-1] == "ConsumerGroupMetadataKey"
