"""What the tests of other clients ask of a consumer, asked of ``KafkaConsumer``."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kbroker.client import (
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    OffsetAndMetadata,
    TopicPartition,
)
from kbroker.client.admin.topics import NewTopic
from kbroker.client.errors import ClientError, ConsumerState, RejectedError
from kbroker.errors import ErrorCode
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

SETTINGS = {
    "log.retention.ms": -1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.session.timeout.ms": 1000,
    "auto.create.topics.enable": "false",
}
PROTOCOLS = ("classic", "consumer")
WAIT_S = 20.0
Made = Callable[..., KafkaConsumer]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


@pytest.fixture
def made(broker: Broker) -> Iterator[Made]:
    """Consumers, which are closed at the end."""
    with ExitStack() as stack:

        def make(**settings: Any) -> KafkaConsumer:
            settings.setdefault("auto_offset_reset", "earliest")
            if settings.get("group_protocol", "classic") == "classic":
                settings.setdefault("heartbeat_interval_ms", 50)
            consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, **settings)
            return stack.enter_context(consumer)

        yield make


def create(broker: Broker, *names: str, partitions: int = 1, count: int = 0) -> None:
    """Topics, each partition with values from 0 to ``count`` - 1, whose times are 1000 + value."""
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions=partitions) for name in names])
    if count:
        for name in names:
            for partition in range(partitions):
                write(broker, name, range(count), partition)


def write(broker: Broker, name: str, values: Any, partition: int = 0, **settings: Any) -> None:
    with KafkaProducer(bootstrap_servers=broker.bootstrap, **settings) as producer:
        for n in values:
            value = n if isinstance(n, bytes) else b"%d" % n
            at = 1000 if isinstance(n, bytes) else 1000 + n
            producer.send(name, value, partition=partition, timestamp_ms=at)


def read(consumer: KafkaConsumer, count: int) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        found += consumer.poll(0.2)
    return found


def values(records: Any) -> list[int]:
    return [int(record.value) for record in records]


def poll_until(condition: Callable[[], bool], *consumers: KafkaConsumer) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, [one.assignment() for one in consumers]
        for consumer in consumers:
            consumer.poll(0.05)


# -- positions


def test_a_seek_within_what_was_fetched_counts_for_the_next_record(broker, made):
    """Backward, forward, and to where it is: nothing that was fetched before is returned after
    it, and nothing twice.
    """
    create(broker, "seeks", count=10)
    consumer = made(max_poll_records=1)
    at = ("seeks", 0)
    consumer.assign([at])
    assert values(read(consumer, 1)) == [0]
    for target in (0, 5, 3, 9, 2):
        consumer.seek(at, target)
        assert consumer.position(at) == target
        assert values(read(consumer, 1)) == [target]
        assert consumer.position(at) == target + 1
    consumer.seek(at, 10)
    assert consumer.poll(0) == []
    assert consumer.current_lag(at) == 0


def test_a_consumer_that_waits_at_the_end_reads_what_comes(broker, made):
    """``seek_to_end`` looks the end up where it is when it is called, not when records come."""
    create(broker, "ends", count=3)
    consumer = made()
    at = ("ends", 0)
    consumer.assign([at])
    for first in (3, 6):
        consumer.seek_to_end(at)
        assert consumer.position(at) == first
        assert consumer.poll(0.1) == []
        write(broker, "ends", range(first, first + 3))
        assert values(read(consumer, 3)) == list(range(first, first + 3))


def test_a_compressed_batch_is_entered_in_the_middle(broker, made):
    """A broker returns the whole batch; the records before the position are left out."""
    create(broker, "middle")
    write(broker, "middle", range(50), compression_type="gzip", linger_ms=1000)
    consumer = made()
    consumer.assign([("middle", 0)])
    consumer.seek(("middle", 0), 37)
    assert values(read(consumer, 13)) == list(range(37, 50))


@pytest.mark.parametrize("setting", ["max_partition_fetch_bytes", "fetch_max_bytes"])
def test_a_record_larger_than_a_fetch_may_be_is_read_all_the_same(broker, made, setting):
    """And so are those before and behind it, in order."""
    name = f"large-{setting}"
    create(broker, name)
    sizes = [10, 50_000, 50, 20_000, 5]
    for size in sizes:
        write(broker, name, [b"x" * size])
    consumer = made(**{setting: 4000})
    consumer.assign([(name, 0)])
    assert [len(record.value) for record in read(consumer, len(sizes))] == sizes


def test_times_are_looked_up_in_many_partitions_at_once(broker, made):
    """Before the first record, between two, at one, behind the last one, and in a partition that
    is empty; the time of the record that was found is told.
    """
    create(broker, "times", partitions=4, count=10)
    create(broker, "no-times")
    consumer = made()
    wanted = {("times", 0): 0, ("times", 1): 1004, ("times", 2): 1009, ("times", 3): 1010}
    found = consumer.offsets_for_times({**wanted, ("no-times", 0): 0})
    rows = [None if row is None else (row.offset, row.timestamp) for row in found.values()]
    assert rows == [(0, 1000), (4, 1004), (9, 1009), None, None]
    assert all(isinstance(key, TopicPartition) for key in found)


def test_questions_that_have_no_answer_are_refused(broker, made):
    """A negative time, one that is no number, and partitions that do not exist: each call names
    what is wrong with it, and none waits longer than it may.
    """
    create(broker, "questions")
    consumer = made(group_id="questions")
    at = ("questions", 0)
    consumer.assign([at])
    for times, error in (({at: -1}, ValueError), ({at: "now"}, TypeError), ({at: 1.5}, TypeError)):
        with pytest.raises(error):
            consumer.offsets_for_times(times)
    absent = ("questions", 7)
    calls: list[Callable[[], Any]] = [
        lambda: consumer.offsets_for_times({absent: 0}, timeout=1),
        lambda: consumer.beginning_offsets([absent], timeout=1),
        lambda: consumer.end_offsets([("absent", 0)], timeout=1),
    ]
    for call in calls:
        began = time.monotonic()
        with pytest.raises(ClientError, match=r"questions|absent"):
            call()
        assert time.monotonic() - began < WAIT_S / 2
    for use in (consumer.seek_to_beginning, consumer.seek_to_end, consumer.pause, consumer.resume):
        with pytest.raises(ConsumerState, match="questions-7"):
            use(absent)
    assert consumer.position(at) == 0


def test_a_pause_holds_back_what_was_fetched_already(broker, made):
    """The records of the buffer stay there; ``resume`` goes on with the next one, and what other
    partitions have is returned meanwhile.
    """
    create(broker, "pauses", partitions=2, count=20)
    consumer = made(max_poll_records=5)
    first, second = TopicPartition("pauses", 0), TopicPartition("pauses", 1)
    consumer.assign([first])
    assert values(read(consumer, 5)) == list(range(5))
    consumer.pause(first)
    assert consumer.poll(0.1) == []
    consumer.assign([first, second])
    assert consumer.paused() == {first}
    assert {record.partition for record in read(consumer, 20)} == {1}
    consumer.resume(first)
    assert values(read(consumer, 15)) == list(range(5, 20))


def test_markers_of_transactions_are_passed(broker, made):
    """Behind them there is no record, but the position gets to the end, and the lag to zero."""
    create(broker, "markers")
    with KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="markers") as producer:
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.send("markers", b"1")
            producer.flush()
            end()
    for level, count in (("read_committed", 1), ("read_uncommitted", 2)):
        consumer = made(isolation_level=level)
        at = ("markers", 0)
        consumer.assign([at])
        assert len(read(consumer, count)) == count
        poll_until(lambda at=at, consumer=consumer: consumer.position(at) == 4, consumer)
        assert consumer.current_lag(at) == 0
        assert consumer.end_offsets([at]) == {at: 4}


# -- subscriptions


def test_subscriptions_that_cannot_be_are_refused(broker, made):
    """By the call that gets them, and the earlier subscription stays."""
    create(broker, "refused", count=1)
    consumer = made(group_id="refused")
    consumer.subscribe(["refused"])
    cases: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception]]] = [
        (("refused",), {}, TypeError),
        ((), {}, TypeError),
        ((["refused"],), {"pattern": "x"}, TypeError),
        (([7],), {}, TypeError),
        (([""],), {}, ValueError),
        ((), {"pattern": "("}, ValueError),
        ((), {"pattern": 7}, TypeError),
        ((["refused"],), {"listener": object()}, TypeError),
        ((["refused"],), {"listener": print}, TypeError),
    ]
    for given, named, error in cases:
        with pytest.raises(error):
            consumer.subscribe(*given, **named)
            raise AssertionError((given, named))
    with pytest.raises(ConsumerState):
        consumer.assign([("refused", 0)])
    assert consumer.subscription() == {"refused"}
    assert values(read(consumer, 1)) == [0]
    with pytest.raises(ConsumerState):
        made().subscribe(["refused"])


def test_one_consumer_reads_by_subscription_and_by_hand_in_turns(broker, made):
    """Offsets are committed in both ways, and nothing of a partition that it no longer reads is
    returned, whatever had been fetched of it.
    """
    create(broker, "turns", partitions=2, count=20)
    consumer = made(group_id="turns", enable_auto_commit=False, max_poll_records=5)
    consumer.subscribe(["turns"])
    assert len(read(consumer, 5)) == 5
    consumer.unsubscribe()
    assert consumer.poll(0) == []
    consumer.assign([("turns", 1)])
    found = read(consumer, 10)
    assert {record.partition for record in found} == {1}
    assert values(found) == list(range(10))
    consumer.commit_sync()
    consumer.unsubscribe()
    assert consumer.assignment() == set()
    consumer.subscribe(["turns"])
    found = read(consumer, 30)
    assert sorted(values(one for one in found if one.partition == 0)) == list(range(20))
    assert sorted(values(one for one in found if one.partition == 1)) == list(range(10, 20))


def test_a_subscription_that_ends_at_once_leaves_no_member(broker, made):
    """``unsubscribe`` and ``close`` right after ``subscribe``, before the first ``poll``."""
    create(broker, "at-once")
    for end in ("unsubscribe", "close"):
        consumer = made(group_id="at-once")
        consumer.subscribe(["at-once"])
        began = time.monotonic()
        getattr(consumer, end)()
        assert time.monotonic() - began < WAIT_S / 2
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        groups = {row.group: row for row in admin.list_groups()}
    assert "at-once" not in groups or groups["at-once"].state in ("Empty", "Dead")


def test_a_pattern_leaves_internal_topics_out_and_a_list_does_not(broker, made):
    """``.*`` is not meant for ``__consumer_offsets``; who names it reads it."""
    create(broker, "internal-or-not", count=1)
    first = made(group_id="internal")
    first.subscribe(pattern=".*")
    poll_until(lambda: ("internal-or-not", 0) in first.assignment(), first)
    first.commit_sync({("internal-or-not", 0): 1})
    assert not {name for name in first.subscription() if name.startswith("__")}
    second = made(group_id="internal-2")
    second.subscribe(["__consumer_offsets"])
    assert {record.topic for record in read(second, 1)} == {"__consumer_offsets"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_of_a_group_read_different_topics(broker, made, protocol):
    """A member gets partitions of what it has subscribed to only, and all topics have an owner."""
    prefix = f"mixed-{protocol}"
    names = [f"{prefix}-{n}" for n in range(3)]
    create(broker, *names, partitions=2)
    members = [made(group_id=prefix, group_protocol=protocol) for _ in range(3)]
    topics = [names[:1], names[:2], names[1:]]
    for member, some in zip(members, topics, strict=True):
        member.subscribe(some)

    def settled() -> bool:
        owned = [key for member in members for key in member.assignment()]
        return len(owned) == len(set(owned)) == 6

    poll_until(settled, *members)
    for member, some in zip(members, topics, strict=True):
        assert {key.topic for key in member.assignment()} <= set(some)
    # A member that subscribes to less gives up what it does not read any more.
    members[2].subscribe(names[2:])
    poll_until(
        lambda: {key.topic for key in members[2].assignment()} == {names[2]} and settled(),
        *members,
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_that_works_longer_than_its_session_stays(broker, made, protocol):
    """Heartbeats do not depend on ``poll``: a program that takes several sessions for a record
    keeps its partitions, and may commit.
    """
    name = f"session-{protocol}"
    create(broker, name, partitions=2, count=1)
    session = {"session_timeout_ms": 1000} if protocol == "classic" else {}
    settings = {"group_id": name, "group_protocol": protocol, "enable_auto_commit": False}
    works, other = made(**settings, **session), made(**settings, **session)
    works.subscribe([name])
    other.subscribe([name])
    poll_until(lambda: len(works.assignment()) == len(other.assignment()) == 1, works, other)
    had = works.assignment()
    until = time.monotonic() + 3.0
    while time.monotonic() < until:
        other.poll(0.1)
    assert len(other.assignment()) == 1
    works.commit_sync({(name, had.copy().pop().partition): 1})
    assert works.assignment() == had


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_instance_that_is_started_twice_is_told(broker, made, protocol):
    """Two members with one ``group.instance.id``: one of them reads, the other one gets an error
    that names the cause, and does not wait for ever.
    """
    name = f"twice-{protocol}"
    create(broker, name)
    settings = {"group_id": name, "group_protocol": protocol, "group_instance_id": "one"}
    first, second = made(**settings), made(**settings)
    first.subscribe([name])
    poll_until(lambda: len(first.assignment()) == 1, first)
    second.subscribe([name])
    told: list[RejectedError] = []

    def is_told() -> bool:
        for member in (first, second):
            try:
                member.poll(0.05)
            except RejectedError as error:
                told.append(error)
        return bool(told)

    poll_until(is_told)
    expected = {
        "classic": ErrorCode.FENCED_INSTANCE_ID,
        "consumer": ErrorCode.UNRELEASED_INSTANCE_ID,
    }
    assert told[0].code == expected[protocol]


def test_a_session_that_the_broker_does_not_allow_is_refused(broker, made):
    """Joining with it never succeeds: ``poll`` says so."""
    create(broker, "no-session")
    consumer = made(group_id="no-session", session_timeout_ms=99, heartbeat_interval_ms=30)
    consumer.subscribe(["no-session"])
    with pytest.raises(RejectedError) as raised:
        read(consumer, 1)
    assert raised.value.code == ErrorCode.INVALID_SESSION_TIMEOUT


# -- commits


def test_without_a_group_there_is_nothing_to_commit(broker, made):
    """Such a consumer reads, and closes, with the default of automatic commits."""
    create(broker, "no-group", count=5)
    consumer = made()
    consumer.assign([("no-group", 0)])
    assert values(read(consumer, 5)) == list(range(5))
    for call in (consumer.commit_sync, consumer.commit_async, consumer.group_metadata):
        with pytest.raises(ConsumerState, match=r"group\.id"):
            call()
    with pytest.raises(ConsumerState, match=r"group\.id"):
        consumer.committed([("no-group", 0)])


def test_commits_that_cannot_be_are_refused(broker, made):
    """By the call that gets them: what is committed stays as it was."""
    create(broker, "commits", count=5)
    consumer = made(group_id="commits", enable_auto_commit=False)
    at = TopicPartition("commits", 0)
    consumer.assign([at])
    consumer.commit_sync({at: OffsetAndMetadata(3, "note")})
    cases: list[tuple[Any, type[Exception]]] = [
        ({at: -1}, ValueError),
        ({at: "3"}, TypeError),
        ({at: 1.5}, TypeError),
        ({at: (3, 7)}, TypeError),
        ({"commits": 3}, TypeError),
        ({("commits", "0"): 3}, TypeError),
        ([at], TypeError),
    ]
    for given, error in cases:
        for call in (consumer.commit_sync, consumer.commit_async):
            with pytest.raises(error):
                call(given)
                raise AssertionError(given)
    found = consumer.committed([at, ("commits", 1), ("absent", 2)])
    assert found[at] == OffsetAndMetadata(3, "note")
    assert found["commits", 1] is None and found["absent", 2] is None


def test_two_groups_and_a_successor_continue_where_each_has_stopped(broker, made):
    """A member that leaves after some records commits these and no others, although more were
    fetched; another group is not concerned.
    """
    create(broker, "resumes", partitions=2, count=50)
    found: list[tuple[int, int]] = []
    for count in (10, 30, 60):
        consumer = made(group_id="resumes", max_poll_records=10)
        consumer.subscribe(["resumes"])
        found += [(one.partition, one.offset) for one in read(consumer, count)]
        consumer.close()
    assert sorted(found) == [(partition, n) for partition in range(2) for n in range(50)]
    other = made(group_id="resumes-2")
    other.subscribe(["resumes"])
    assert len(read(other, 100)) == 100


# -- the end


def dropped_member(broker: Broker, name: str, **settings: Any) -> set[threading.Thread]:
    """The threads of a member that has no reference any more."""
    had = set(threading.enumerate())
    member = KafkaConsumer(bootstrap_servers=broker.bootstrap, **settings)
    member.subscribe([name])
    poll_until(lambda: len(member.assignment()) == 2, member)
    return set(threading.enumerate()) - had


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_consumer_that_nobody_has_any_more_leaves_its_group(broker, made, protocol):
    """A program drops its consumer without ``close``: its threads end, and its partitions go to
    others, who would wait for ``max.poll.interval.ms`` otherwise.
    """
    name = f"dropped-{protocol}"
    create(broker, name, partitions=2)
    settings = {"group_id": name, "group_protocol": protocol}
    began = dropped_member(broker, name, **settings)
    gc.collect()
    wait_until(lambda: not any(one.is_alive() for one in began), WAIT_S, "its threads have ended")
    other = made(**settings)
    other.subscribe([name])
    poll_until(lambda: len(other.assignment()) == 2, other)
