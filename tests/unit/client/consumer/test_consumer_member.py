"""A member of a group of the consumer protocol, step by step, without a broker or a clock."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.client.connections.metadata import Partition, Topic
from kbroker.client.consumer.classic_member import Complete, Fatal, Prepare
from kbroker.client.consumer.consumer_member import ConsumerMember, ConsumerProtocolState
from kbroker.client.consumer.consumer_settings import consumer_settings
from kbroker.client.consumer.member_thread import Ask, End, LookUp, WaitUntil
from kbroker.client.errors import CommitFailed, ConnectionLost
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse

pytestmark = pytest.mark.unit

ID, OTHER = bytes(15) + b"\1", bytes(15) + b"\2"
TOPICS = {
    name: Topic(name, topic_id, {0: Partition(1, 0, (), ())}, False)
    for name, topic_id in (("t", ID), ("u", OTHER))
}


class Script:
    """A member, its coordinator and the clock, moved by hand."""

    def __init__(self, **settings: Any) -> None:
        given = consumer_settings(
            {"bootstrap.servers": "h:1", "group.id": "g", "group.protocol": "consumer"}, settings
        )
        self.now = 100.0
        self.member = ConsumerMember(given, self.now)

    def beats(self) -> Any:
        """The heartbeat that the member sends now."""
        action = self.member.next(self.now)
        assert isinstance(action, Ask), action
        return action.request

    def answer(self, *keys: tuple[bytes, int], code: int = 0, epoch: int = 1, **fields) -> None:
        response = ConsumerGroupHeartbeatResponse(
            error_code=code, member_epoch=epoch, heartbeat_interval_ms=1000
        )
        if keys or fields.get("empty"):
            rows = [
                ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id=topic, partitions=[number])
                for topic, number in keys
            ]
            response.assignment = ConsumerGroupHeartbeatResponse.Assignment(topic_partitions=rows)
        self.member.take(response, self.now)

    def waits(self) -> float:
        action = self.member.next(self.now)
        assert isinstance(action, WaitUntil), action
        return action.until

    def moved(self) -> Complete:
        """The reconciliation that the thread that polls is told of; topics are looked up."""
        action = self.member.next(self.now)
        if isinstance(action, LookUp):
            self.member.take_topics(TOPICS, self.now)
            action = self.member.next(self.now)
        event = self.member.event()
        assert isinstance(event, Complete)
        return event


def pauses(script: Script, attempts: int) -> list[float]:
    """Before the requests that follow so many failures."""
    found = []
    for _ in range(attempts):
        script.member.failed(ConnectionLost("h:1", "reset"), script.now)
        found.append(round(script.waits() - script.now, 3))
        script.now = script.waits()
        script.beats()
    return found


def stable() -> Script:
    """A member that has t-0."""
    script = Script()
    script.member.subscribe(frozenset({"t"}))
    script.beats()
    script.answer((ID, 0))
    assert script.moved() == Complete((("t", 0),))
    script.member.completed([("t", 0)], False)
    acknowledged = script.beats()
    assert [row.topic_id for row in acknowledged.topic_partitions] == [ID]
    script.answer()
    return script


def test_a_member_joins_with_everything_and_then_tells_changes_only():
    script = Script(client_rack="r", group_remote_assignor="range")
    script.member.subscribe(frozenset({"t", "s"}))
    request = script.beats()
    assert (request.member_epoch, request.rack_id, request.server_assignor) == (0, "r", "range")
    assert request.subscribed_topic_names == ["s", "t"]
    assert request.topic_partitions == []
    assert request.rebalance_timeout_ms == 300_000
    assert len(request.member_id) == 22
    script.answer()

    assert script.waits() == script.now + 1
    script.now += 1
    request = script.beats()
    assert (request.member_epoch, request.rack_id, request.topic_partitions) == (1, None, None)
    assert request.subscribed_topic_names is None
    assert script.member.identity().generation == 1


def test_partitions_are_given_up_before_others_are_taken():
    script = stable()
    script.now += 1
    script.beats()
    script.answer(epoch=2, empty=True)
    assert script.moved() == Complete(())
    # While listeners run, heartbeats say what it still has.
    script.now += 1
    assert script.beats().topic_partitions is None
    script.answer(epoch=2)
    script.member.completed((), False)
    assert script.beats().topic_partitions == []
    script.answer((OTHER, 0), epoch=3)
    assert script.moved() == Complete((("u", 0),))


def test_each_assignment_is_acknowledged_even_if_it_is_what_was_told_before():
    """The coordinator has given the member u-0, too, and takes it back while `poll` is not called:
    it gives it to nobody else until it hears that the member does not own it any more.
    """
    script = stable()
    script.now += 1
    script.beats()
    script.answer((ID, 0), (OTHER, 0), epoch=2)
    assert len(script.moved().partitions) == 2
    script.now += 1
    script.beats()
    script.answer((ID, 0), epoch=3)
    script.member.completed([("t", 0), ("u", 0)], False)
    assert script.moved() == Complete((("t", 0),))
    script.member.completed([("t", 0)], False)

    assert [row.topic_id for row in script.beats().topic_partitions] == [ID]
    script.answer(epoch=3)
    assert script.waits() > script.now


def test_an_assignment_that_was_never_taken_over_is_acknowledged_when_it_is_taken_back():
    """Its topic was not known yet."""
    script = stable()
    script.now += 1
    script.beats()
    script.answer((ID, 0), (bytes(15) + b"\3", 5), epoch=2)
    assert isinstance(script.member.next(script.now), LookUp)
    script.member.take_topics({}, script.now)
    script.now += 0.2
    assert script.waits() > script.now
    script.now += 1
    assert isinstance(script.member.next(script.now), LookUp)
    assert script.beats().topic_partitions is None
    script.answer((ID, 0), epoch=3)

    assert [row.topic_id for row in script.beats().topic_partitions] == [ID]


def test_a_topic_that_is_not_known_yet_is_waited_for():
    script = stable()
    script.now += 1
    script.beats()
    script.answer((ID, 0), (bytes(15) + b"\3", 5))
    assert isinstance(script.member.next(script.now), LookUp)
    script.member.take_topics({}, script.now)
    assert script.waits() <= script.now + 1
    script.now += 0.5
    assert isinstance(script.member.next(script.now), LookUp)


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
def test_a_fenced_member_has_lost_its_partitions_and_joins_again(code):
    script = stable()
    script.now += 1
    script.beats()
    script.answer(code=code)
    assert script.member.event() == Prepare(True)
    with pytest.raises(CommitFailed):
        script.member.identity()
    assert script.waits() == float("inf")
    script.member.prepared((), True)
    request = script.beats()
    assert (request.member_epoch, request.topic_partitions) == (0, [])


def test_after_a_lost_response_everything_is_told_again():
    script = stable()
    script.now += 1
    script.beats()
    script.member.failed(ConnectionLost("h:1", "reset"), script.now)
    assert script.waits() == pytest.approx(script.now + 0.1)
    script.now += 0.1
    request = script.beats()
    assert request.member_epoch == 1
    assert request.subscribed_topic_names == ["t"]
    assert [row.topic_id for row in request.topic_partitions] == [ID]


def test_a_changed_subscription_is_told_at_once():
    script = stable()
    script.member.subscribe(frozenset({"t", "u"}))
    assert script.beats().subscribed_topic_names == ["t", "u"]


def test_without_polls_a_member_leaves():
    script = stable()
    script.now += 300
    request = script.beats()
    assert request.member_epoch == -1
    script.answer(epoch=-1)
    assert script.member.state is ConsumerProtocolState.FENCED
    script.member.polled(script.now)
    assert script.member.event() == Prepare(True)


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("i", -2)])
def test_leaving_says_whether_it_is_for_good(instance, epoch):
    settings = {} if instance is None else {"group_instance_id": instance}
    script = Script(**settings)
    script.member.subscribe(frozenset({"t"}))
    script.beats()
    script.answer()
    script.member.leave()
    request = script.beats()
    assert (request.member_epoch, request.instance_id) == (epoch, instance)
    assert isinstance(script.member.next(script.now), End)


def test_what_forbids_membership_is_raised_and_tried_again_by_the_next_poll():
    script = stable()
    script.now += 1
    script.beats()
    script.answer(code=ErrorCode.UNRELEASED_INSTANCE_ID)
    assert isinstance(script.member.event(), Fatal)
    assert script.waits() == float("inf")
    script.member.polled(script.now)
    assert script.waits() == float("inf")
    assert script.member.event() == Prepare(True), "others may have its partitions by now"
    script.member.prepared((), True)
    request = script.beats()
    assert (request.member_epoch, request.topic_partitions) == (0, [])


def test_requests_in_vain_have_growing_pauses_until_one_is_answered():
    """A coordinator that is away, or says so, would be asked ten times a second."""
    script = stable()
    script.now += 1.0
    script.beats()

    assert pauses(script, 5) == [0.1, 0.2, 0.4, 0.8, 1.0]
    script.answer(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert script.waits() == script.now + 1.0
    script.now += 1.0
    script.beats()
    script.answer()
    script.now += 1.0
    script.beats()
    assert pauses(script, 2) == [0.1, 0.2]
