"""A member of a classic group, step by step, without a broker, a thread or a clock."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.client.connections.metadata import Partition, Topic
from kbroker.client.consumer.assignors import assignors_of
from kbroker.client.consumer.classic_member import (
    ClassicMember,
    ClassicState,
    Complete,
    Fatal,
    Prepare,
)
from kbroker.client.consumer.consumer_settings import consumer_settings
from kbroker.client.consumer.member_thread import Ask, End, Interrupted, LookUp, WaitUntil
from kbroker.client.consumer.subscriptions import (
    Assignment,
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kbroker.client.errors import ClientClosed, CommitFailed, ConnectionLost
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from kbroker.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kbroker.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kbroker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

pytestmark = pytest.mark.unit


class Script:
    """A member, its coordinator and the clock, moved by hand."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("partition_assignment_strategy", "range")
        given = consumer_settings({"bootstrap.servers": "h:1", "group.id": "g"}, settings)
        self.now = 100.0
        strategy = assignors_of(given["partition.assignment.strategy"])
        self.member = ClassicMember(given, strategy, self.now)

    def asks(self, kind: type) -> Any:
        """The request that the member sends now."""
        action = self.member.next(self.now)
        if isinstance(action, WaitUntil) and action.until <= self.now:
            action = self.member.next(self.now)
        assert isinstance(action, Ask), action
        assert isinstance(action.request, kind), action.request
        return action.request

    def waits(self) -> float:
        action = self.member.next(self.now)
        assert isinstance(action, WaitUntil), action
        return action.until

    def answer(self, response: Any) -> None:
        self.member.take(response, self.now)

    def event(self) -> Any:
        return self.member.event()

    def joined(self, leader: str = "other", **fields: Any) -> None:
        row = JoinGroupResponse(
            generation_id=fields.pop("generation", 1),
            protocol_type="consumer",
            protocol_name=fields.pop("protocol", "range"),
            leader=leader,
            member_id="me",
            **fields,
        )
        self.answer(row)

    def synced(self, *keys: tuple[str, int]) -> None:
        self.answer(SyncGroupResponse(assignment=encode_assignment(Assignment(keys))))

    def beats(self, code: int = 0) -> None:
        """The next heartbeat and its response."""
        self.now += 3.0
        self.member.polled(self.now)
        self.asks(HeartbeatRequest)
        self.answer(HeartbeatResponse(error_code=code))


def stable(**settings: Any) -> Script:
    """A member that has t-0."""
    script = Script(**settings)
    script.member.subscribe(frozenset({"t"}))
    assert script.event() == Prepare(False)
    script.member.prepared((), False)
    script.asks(JoinGroupRequest)
    script.joined(protocol=next(iter(script.member._assignors)))
    script.asks(SyncGroupRequest)
    script.synced(("t", 0))
    assert script.event() == Complete((("t", 0),))
    script.member.completed([("t", 0)], False)
    assert script.member.state is ClassicState.STABLE
    return script


def test_a_member_asks_for_its_id_first():
    script = Script()
    assert script.waits() == float("inf")
    script.member.subscribe(frozenset({"t"}))
    assert script.waits() == float("inf")
    assert script.event() == Prepare(False)
    script.member.prepared((), False)

    request = script.asks(JoinGroupRequest)
    assert (request.member_id, request.protocol_type) == ("", "consumer")
    assert request.rebalance_timeout_ms == 300_000
    script.answer(
        JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="me", leader="")
    )
    assert script.asks(JoinGroupRequest).member_id == "me"
    (row,) = request.protocols
    assert decode_subscription(row.metadata).topics == ("t",)


def test_a_leader_assigns_for_all_members():
    script = Script()
    script.member.subscribe(frozenset({"t"}))
    script.member.prepared((), False)
    script.asks(JoinGroupRequest)
    rows = [
        JoinGroupResponse.JoinGroupResponseMember(
            member_id=name, metadata=encode_subscription(MemberSubscription((topic,)))
        )
        for name, topic in (("me", "t"), ("other", "u"))
    ]
    script.joined("me", members=rows)

    assert script.member.next(script.now) == LookUp(frozenset({"t", "u"}))
    parts = {n: Partition(1, 0, (), ()) for n in range(2)}
    topics = {name: Topic(name, bytes(16), parts, False) for name in ("t", "u")}
    script.member.take_topics(topics, script.now)
    request = script.asks(SyncGroupRequest)
    found = {row.member_id: decode_assignment(row.assignment) for row in request.assignments}
    assert found["me"].partitions == (("t", 0), ("t", 1))
    assert found["other"].partitions == (("u", 0), ("u", 1))
    script.synced(("t", 0))
    script.event()
    script.member.completed([("t", 0)], False)

    # More partitions are noticed when metadata is refreshed.
    script.now += 300
    script.member.polled(script.now)
    assert script.member.next(script.now) == LookUp(frozenset({"t", "u"}))
    topics["u"] = topics["u"]._replace(partitions={0: Partition(1, 0, (), ())})
    script.member.take_topics(topics, script.now)
    script.member.next(script.now)
    assert script.event() == Prepare(False)


@pytest.mark.parametrize("rack", ["x", ""], ids=["with a rack", "without one"])
def test_a_leader_assigns_by_racks_and_notices_when_they_change(rack):
    script = Script(client_rack=rack)
    script.member.subscribe(frozenset({"t"}))
    script.member.prepared((), False)
    script.asks(JoinGroupRequest)
    rows = [
        JoinGroupResponse.JoinGroupResponseMember(
            member_id=name, metadata=encode_subscription(MemberSubscription(("t",), rack=near))
        )
        for name, near in (("me", rack or None), ("other", "y"))
    ]
    script.joined("me", members=rows)
    script.member.next(script.now)
    parts = {n: Partition(1, 0, (), (), frozenset(near)) for n, near in enumerate(("y", "x"))}
    topics = {"t": Topic("t", bytes(16), parts, False)}
    script.member.take_topics(topics, script.now)
    request = script.asks(SyncGroupRequest)
    found = {row.member_id: decode_assignment(row.assignment) for row in request.assignments}
    mine = ("t", 1) if rack else ("t", 0)
    assert found["me"].partitions == (mine,)
    script.synced(mine)
    script.event()
    script.member.completed([mine], False)

    script.now += 300
    script.member.polled(script.now)
    assert script.member.next(script.now) == LookUp(frozenset({"t"}))
    topics["t"].partitions[0] = parts[0]._replace(racks=frozenset("x"))
    script.member.take_topics(topics, script.now)
    script.member.next(script.now)
    assert script.event() == (Prepare(False) if rack else None)


def test_heartbeats_go_on_while_listeners_run():
    script = stable()
    script.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    script.waits()
    assert script.event() == Prepare(False)
    for _ in range(3):
        script.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    assert script.event() is None
    script.member.prepared((), False)
    assert script.asks(JoinGroupRequest).member_id == "me"


@pytest.mark.parametrize(
    ("code", "member_id"),
    [(ErrorCode.UNKNOWN_MEMBER_ID, ""), (ErrorCode.ILLEGAL_GENERATION, "me")],
)
def test_a_member_that_was_removed_has_lost_its_partitions(code, member_id):
    script = stable()
    assert script.member.identity().generation == 1
    script.beats(code)
    assert script.event() == Prepare(True)
    with pytest.raises(CommitFailed):
        script.member.identity()
    script.member.prepared((), True)
    assert script.asks(JoinGroupRequest).member_id == member_id


def test_a_member_that_was_removed_while_it_prepared_hears_of_it():
    script = stable()
    script.member.rejoin("because")
    script.waits()
    assert script.event() == Prepare(False)
    script.beats(ErrorCode.UNKNOWN_MEMBER_ID)
    script.member.prepared((), False)
    assert script.event() == Prepare(True)
    script.member.prepared((), True)
    script.asks(JoinGroupRequest)


def test_partitions_that_were_given_up_cause_another_rebalance():
    script = stable(partition_assignment_strategy="cooperative-sticky")
    assert script.member.cooperative
    script.member.rejoin("because")
    script.waits()
    script.event()
    script.member.prepared([("t", 0)], False)
    (row,) = script.asks(JoinGroupRequest).protocols
    told = decode_subscription(row.metadata)
    assert (told.owned, told.generation) == ((("t", 0),), 1)
    script.joined(protocol="cooperative-sticky", generation=2)
    script.asks(SyncGroupRequest)
    script.synced()
    assert script.event() == Complete(())
    script.member.completed((), True)
    script.waits()
    assert script.event() == Prepare(False)


def test_without_polls_a_member_leaves_and_returns_with_the_next():
    script = stable(max_poll_interval_ms=10_000)
    script.now += 9.0
    script.asks(HeartbeatRequest)
    script.answer(HeartbeatResponse())
    script.now += 1.0
    assert callable(script.member.next(script.now).request)  # LeaveGroup, by version
    script.answer(HeartbeatResponse())
    assert script.waits() == float("inf")
    script.member.polled(script.now)
    assert script.event() == Prepare(True)
    script.member.prepared((), True)
    assert script.asks(JoinGroupRequest).member_id == ""


def test_a_static_member_stays_when_it_ends():
    script = stable(group_instance_id="i")
    script.member.leave()
    script.waits()
    assert isinstance(script.member.next(script.now), End)
    script = stable()
    script.member.leave()
    assert isinstance(script.member.next(script.now), Ask)
    assert isinstance(script.member.next(script.now), End)


def topics(**counts: int) -> dict[str, Topic]:
    rows = {name: {n: Partition(0, 0) for n in range(count)} for name, count in counts.items()}
    return {name: Topic(name, bytes(16), parts, False) for name, parts in rows.items()}


@pytest.mark.parametrize(
    ("others", "is_whole"), [((("t", 1),), False), ((("t", 1), ("t", 2)), True)]
)
def test_a_static_leader_that_is_back_looks_whether_all_partitions_are_assigned(others, is_whole):
    """The assignment is of its predecessor, and topics may have grown since; nobody else looks."""
    script = Script(group_instance_id="i")
    script.member.subscribe(frozenset({"t"}))
    script.event()
    script.member.prepared((), False)
    script.asks(JoinGroupRequest)
    script.joined(leader="me", skip_assignment=True)
    script.member.take_topics(topics(t=3), script.now)
    assert script.asks(SyncGroupRequest).assignments == []
    script.synced(("t", 0))
    script.event()
    script.member.completed([("t", 0)], False)

    assert script.asks(DescribeGroupsRequest).groups == ["g"]
    member, group = (
        DescribeGroupsResponse.DescribedGroupMember,
        DescribeGroupsResponse.DescribedGroup,
    )
    assigned = [encode_assignment(Assignment(keys)) for keys in ((("t", 0),), others)]
    rows = [member(member_assignment=data) for data in assigned]
    script.answer(DescribeGroupsResponse(groups=[group(group_state="Stable", members=rows)]))
    script.waits()

    assert (script.member.state is ClassicState.STABLE) == is_whole
    assert script.event() == (None if is_whole else Prepare(False))


def test_leaving_does_not_wait_for_a_join():
    script = Script()
    script.member.subscribe(frozenset({"t"}))
    script.event()
    script.member.prepared((), False)
    script.asks(JoinGroupRequest)
    script.member.leave()
    assert script.member.is_leaving()
    script.member.failed(Interrupted("closed"), script.now)
    script.waits()
    assert isinstance(script.member.next(script.now), End)


def test_a_member_that_leaves_does_so_whatever_becomes_of_the_request_before():
    """It became one that waits for the next poll, its thread stayed, and the group waited for it
    until its session had ended.
    """
    script = stable()
    script.now += 3.0
    script.asks(HeartbeatRequest)
    script.member.leave()

    script.member.failed(ClientClosed("closed"), script.now)

    assert isinstance(script.member.next(script.now), Ask)
    assert isinstance(script.member.next(script.now), End)


def test_a_lost_connection_is_tried_again_after_a_pause():
    script = stable()
    script.now += 3.0
    script.asks(HeartbeatRequest)
    script.member.failed(ConnectionLost("h:1", "reset"), script.now)
    assert script.waits() == script.now + 0.1
    script.now += 0.1
    script.asks(HeartbeatRequest)


def test_what_forbids_membership_is_raised_and_tried_again_by_the_next_poll():
    script = stable()
    script.beats(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    fatal = script.event()
    assert isinstance(fatal, Fatal)
    assert fatal.error.code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert script.waits() == float("inf")
    script.member.polled(script.now)
    assert script.event() == Prepare(True)


def test_a_leader_that_says_nonsense_is_an_error():
    script = Script()
    script.member.subscribe(frozenset({"t"}))
    script.event()
    script.member.prepared((), False)
    script.asks(JoinGroupRequest)
    script.joined()
    script.asks(SyncGroupRequest)
    script.answer(SyncGroupResponse(assignment=b"\0\1\x7f\xff\xff\xff"))
    assert isinstance(script.event(), Fatal)


def test_requests_in_vain_have_growing_pauses_until_one_is_answered():
    """A coordinator that is away, or says so, would be asked ten times a second."""
    script = stable()

    def pauses(attempts: int) -> list[float]:
        found = []
        for _ in range(attempts):
            script.member.failed(ConnectionLost("h:1", "reset"), script.now)
            found.append(round(script.waits() - script.now, 3))
            script.now = script.waits()
            script.asks(HeartbeatRequest)
        return found

    script.now += 3.0
    script.asks(HeartbeatRequest)
    assert pauses(5) == [0.1, 0.2, 0.4, 0.8, 1.0]
    script.answer(HeartbeatResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert script.waits() == script.now + 1.0
    script.beats()
    script.now += 3.0
    script.asks(HeartbeatRequest)
    assert pauses(2) == [0.1, 0.2]
