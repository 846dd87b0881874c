"""Subscriptions by pattern."""

from __future__ import annotations

from typing import Any

import pytest
from support.coordinators.consumer_member import FakeConsumer, describe, make_host, settle, topic_id
from support.coordinators.coordinator_host import CoordinatorHost

from kbroker.coordinator.group.consumer import consumer_regex
from kbroker.coordinator.patterns import PATTERN_CHARS_MAX
from kbroker.coordinator.records import offsets_topic as records
from kbroker.errors import ErrorCode, WireError

pytestmark = pytest.mark.unit


@pytest.fixture
def host() -> CoordinatorHost:
    made = make_host()
    made.add_topic("foo", 2)
    made.add_topic("foobar", 2)
    made.add_topic("bar", 2)
    return made


def subscriber(host: CoordinatorHost, member_id: str, regex: str, **options: Any) -> FakeConsumer:
    return FakeConsumer(host, member_id, None, subscribed_topic_regex=regex, **options)


def topics(member: FakeConsumer) -> set[bytes]:
    return {topic.rstrip(b"-") for topic, _ in member.assigned}


def resolved_in_log(host: CoordinatorHost) -> list[tuple[str, list[str] | None]]:
    return [
        (key.regular_expression, None if value is None else value.topics)
        for batch in host.written
        for key, value in batch
        if type(key) is records.ConsumerGroupRegularExpressionKey
    ]


def test_pattern_stands_for_the_topics_it_matches_as_a_whole(host: CoordinatorHost) -> None:
    member = subscriber(host, "m1", "foo|b.r")

    member.join()

    assert topics(member) == {b"foo", b"bar"}
    assert resolved_in_log(host) == [("foo|b.r", ["bar", "foo"])]
    assert describe(host).members[0].subscribed_topic_regex == "foo|b.r"


def test_new_topic_that_matches_is_assigned_at_the_next_heartbeat(host: CoordinatorHost) -> None:
    member = subscriber(host, "m1", "foo.*")
    member.join()
    member.beat()

    host.advance(1_000)
    host.add_topic("unrelated", 1)
    host.add_topic("food", 1)
    settle(member)

    assert topics(member) == {b"foo", b"foobar", b"food"}
    assert describe(host).group_epoch == 2


def test_topic_that_is_deleted_matches_no_more(host: CoordinatorHost) -> None:
    member = subscriber(host, "m1", "foo.*")
    member.join()
    member.beat()

    host.advance(1_000)
    host.set_topics(foo=None)
    settle(member)

    assert topics(member) == {b"foobar"}
    assert resolved_in_log(host)[-1] == ("foo.*", ["foobar"])


def test_topic_that_grows_is_assigned_again(host: CoordinatorHost) -> None:
    member = subscriber(host, "m1", "foo")
    member.join()
    member.beat()

    host.add_topic("foo", 3)
    settle(member)

    assert member.owned == {(topic_id("foo"), p) for p in range(3)}


def test_names_and_pattern_add_up(host: CoordinatorHost) -> None:
    member = FakeConsumer(host, "m1", ["bar"], subscribed_topic_regex="foo")

    member.join()

    assert topics(member) == {b"foo", b"bar"}


def test_pattern_that_nobody_has_any_more_is_forgotten(host: CoordinatorHost) -> None:
    first, second = subscriber(host, "m1", "foo"), subscriber(host, "m2", "foo")
    first.join()
    second.join()
    settle(first, second)

    first.leave()
    assert list(host.machine.groups["g"].resolved) == ["foo"]
    second.beat(subscribed_topic_regex="bar")
    assert list(host.machine.groups["g"].resolved) == ["bar"]
    settle(second)
    assert topics(second) == {b"bar"}
    second.beat(subscribed_topic_regex="")

    group = host.machine.groups["g"]
    assert group.resolved == {}
    assert not group.subscribes_to("bar")
    settle(second)
    assert second.owned == set()


def test_last_member_takes_its_pattern_with_it(host: CoordinatorHost) -> None:
    member = subscriber(host, "m1", "foo")
    member.join()

    member.leave()

    assert resolved_in_log(host)[-1] == ("foo", None)
    assert host.machine.groups["g"].metadata_hash == 0


def test_bad_pattern_is_rejected_and_the_member_keeps_its_old_one(host: CoordinatorHost) -> None:
    member = subscriber(host, "m1", "foo")
    member.join()

    with pytest.raises(WireError) as raised:
        member.send(subscribed_topic_regex="(?=a)")

    assert raised.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "(?=" in raised.value.message
    assert host.machine.groups["g"].members["m1"].regex == "foo"


def test_bad_pattern_in_the_log_does_not_cost_other_members(host: CoordinatorHost) -> None:
    """A pattern that another version of the library accepted may be rejected by this one."""
    value = records.ConsumerGroupMemberMetadataValue(
        client_id="c", client_host="/", subscribed_topic_names=[], subscribed_topic_regex="a("
    )
    host.append(records.ConsumerGroupMemberMetadataKey(group_id="g", member_id="old"), value)
    member = subscriber(host, "m1", "foo")

    member.join()

    assert topics(member) == {b"foo"}


def test_patterns_are_matched_again_after_a_load(host: CoordinatorHost) -> None:
    member = subscriber(host, "m1", "foo.*")
    member.join()
    member.beat()

    host.image.apply({"version": 9, "topics": {"foo": None}})  # unseen: it happened while away
    host.reload()
    settle(member)

    assert topics(member) == {b"foobar"}


def test_patterns_are_matched_again_when_the_interval_is_over(
    host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned = []
    matching = consumer_regex.matching

    def watched(pattern: str, names: Any) -> Any:
        scanned.append(len(list(names)))
        return matching(pattern, names)

    monkeypatch.setattr(consumer_regex, "matching", watched)
    member = subscriber(host, "m1", "foo.*")
    member.join()
    member.beat()
    del scanned[:]

    for _ in range(119):
        host.advance(5_000)
        member.beat()
    assert scanned == []
    host.advance(5_000)
    member.beat()

    assert scanned == [3]


def test_many_topics_at_once_are_one_new_epoch(host: CoordinatorHost) -> None:
    member = subscriber(host, "m1", ".*")
    member.join()
    member.beat()

    host.advance(1_000)
    for n in range(1_100):
        host.add_topic(f"t{n}", 1)
    settle(member, rounds=3)

    assert len(topics(member)) == 1_103
    assert describe(host).group_epoch == 2


@pytest.mark.parametrize(
    "pattern", ["(", "a{2000}", "(?<a", "\\", "[[:nope:]]", "((((a{99}){99}))"]
)
def test_pattern_that_is_none_is_rejected_with_a_reason(pattern: str) -> None:
    with pytest.raises(WireError) as raised:
        consumer_regex.matching(pattern, ["a"])

    assert raised.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert raised.value.message


def test_pattern_is_linear_where_others_explode() -> None:
    assert consumer_regex.matching("(a+)+$", ["a" * 200 + "!"]) == frozenset()


def test_pattern_that_is_too_long_is_rejected() -> None:
    """30,000 characters took RE2 half a minute for one name, while no produce was served."""
    most = PATTERN_CHARS_MAX

    assert consumer_regex.matching("a" * most, ["a" * most, "b"]) == {"a" * most}
    with pytest.raises(WireError, match="use at most 1000") as rejected:
        consumer_regex.matching("a" * (most + 1), ["a"])

    assert rejected.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION
