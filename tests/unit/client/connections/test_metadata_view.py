"""What a producer and a consumer remember of Metadata responses, and when they may ask again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.client.connections.metadata import MetadataView, read_metadata
from kbroker.errors import ErrorCode

pytestmark = pytest.mark.unit


def partition(number: int, leader: int = 1, epoch: int = 0, replicas: tuple[int, ...] = ()) -> Any:
    return SimpleNamespace(
        partition_index=number,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=list(replicas),
        isr_nodes=list(replicas[:1]),
    )


def response(
    *topics: tuple[str, int, list[Any]],
    racks: dict[int, str | None] | None = None,
    topic_id: bytes = bytes(16),
) -> Any:
    brokers = [
        SimpleNamespace(node_id=node, host=f"b{node}", port=9092, rack=rack)
        for node, rack in (racks or {1: None}).items()
    ]
    rows = [
        SimpleNamespace(
            name=name, error_code=code, topic_id=topic_id, is_internal=False, partitions=parts
        )
        for name, code, parts in topics
    ]
    return read_metadata(SimpleNamespace(brokers=brokers, topics=rows))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def view(clock: Clock) -> MetadataView:
    return MetadataView(clock, backoff_s=0.1, backoff_max_s=0.5)


def test_partitions_of_brokers_without_racks_share_an_empty_set():
    found = response(("t", 0, [partition(n, replicas=(1,)) for n in range(2)]))

    first, second = found.topics["t"].partitions.values()
    assert first.racks == frozenset()
    assert first.racks is second.racks


def test_partitions_are_sorted_with_the_racks_of_their_replicas():
    parts = [partition(1, -1, 4, (2, 3)), partition(0, 1, 3, (1, 2))]

    read = response(("t", 0, parts), racks={1: "x", 2: "y", 3: None})

    topic = read.topics["t"]
    assert list(topic.partitions) == [0, 1]
    assert topic.partitions[0] == (1, 3, (1, 2), (1,), frozenset({"x", "y"}))
    assert topic.partitions[1] == (None, 4, (2, 3), (2,), frozenset({"y"}))
    assert read.brokers[2] == ("b2", 9092, "y")


def test_topic_without_a_leader_for_a_moment_is_no_error():
    read = response(
        ("new", ErrorCode.LEADER_NOT_AVAILABLE, []),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
    )

    assert list(read.topics) == ["new"]
    assert read.errors == {"none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_topics_that_were_not_asked_for_stay_and_deleted_ones_go(view: MetadataView):
    view.take(response(("a", 0, [partition(0)]), ("b", 0, [partition(0)])))
    view.take(response(("b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])))

    assert list(view.topics) == ["a"]
    assert view.errors["b"].code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    view.take(response(("b", 0, [partition(0)])))

    assert sorted(view.topics) == ["a", "b"]
    assert view.errors == {}


def test_pauses_double_until_a_broker_responds(view: MetadataView, clock: Clock):
    pauses = []
    for _ in range(5):
        view.fail(OSError("silent"))
        pauses.append(round(view.next_at - clock.now, 3))

    assert pauses == [0.1, 0.2, 0.4, 0.5, 0.5]
    assert str(view.trouble) == "silent"
    assert view.heard_at is None

    clock.now += 7.0
    view.take(response())

    assert (view.failures, view.trouble, view.heard_at) == (0, None, 107.0)
    assert view.next_at == pytest.approx(107.1)


def test_subscribers_hear_of_each_request_in_their_order_when_all_is_known(view: MetadataView):
    heard: list[Any] = []
    view.subscribe(lambda read: heard.append(("first", read and list(view.topics))))
    view.subscribe(lambda read: heard.append(("second", read and list(view.topics))))

    view.take(response(("t", 0, [partition(0)])))
    view.fail(OSError("silent"))

    assert heard == [("first", ["t"]), ("second", ["t"]), ("first", None), ("second", None)]


def test_leader_that_another_response_told_is_known(view: MetadataView):
    view.take(response(("t", 0, [partition(0, 1, 3)])))

    view.lead(("t", 0), 2, 4)
    view.lead(("t", 9), 2, 4)
    view.lead(("none", 0), 2, 4)

    assert view.topics["t"].partitions[0][:2] == (2, 4)
    assert list(view.topics["t"].partitions) == [0]


def test_topic_that_was_recreated_is_another_one_and_the_former_one_does_not_come_back(
    view: MetadataView,
):
    """Brokers that are behind told of the former one for a moment."""
    heard: list[Any] = []
    view.subscribe(lambda read: heard.append(sorted(read.topics)))
    view.take(response(("t", 0, [partition(0, 1, 5)]), topic_id=b"o" * 16))

    view.take(response(("t", 0, [partition(0, 2, 0)]), topic_id=b"n" * 16))
    view.take(response(("t", 0, [partition(0, 1, 5)]), topic_id=b"o" * 16))

    assert view.incarnation("t") == 1
    assert (view.topics["t"].id, view.topics["t"].partitions[0].leader) == (b"n" * 16, 2)
    assert heard == [["t"], ["t"], []]


@pytest.mark.parametrize(("between", "is_back"), [(None, True), (b"o" * 16, False)])
def test_topic_that_a_broker_that_was_behind_has_replaced_comes_back(
    between: bytes | None, is_back: bool, view: MetadataView, clock: Clock
):
    """The client came while the topic was created again, and heard of the new one first: it took
    that for a former topic, for good.
    """
    view.take(response(("t", 0, [partition(0, 2, 0)]), topic_id=b"n" * 16))
    view.take(response(("t", 0, [partition(0, 1, 5)]), topic_id=b"o" * 16))
    view.take(response(("t", 0, [partition(0, 2, 0)]), topic_id=b"n" * 16))
    clock.now += 9.9
    view.take(response(("t", 0, [partition(0, 2, 0)]), topic_id=b"n" * 16))
    assert view.topics["t"].id == b"o" * 16
    if between is not None:
        view.take(response(("t", 0, [partition(0, 1, 5)]), topic_id=between))
    clock.now += 0.1
    view.take(response(("t", 0, [partition(0, 2, 0)]), topic_id=b"n" * 16))

    assert (view.topics["t"].id == b"n" * 16) == is_back
    assert view.incarnation("t") == (2 if is_back else 1)


def test_topic_with_an_id_is_the_same_whatever_the_epochs_of_a_broker_that_is_behind(
    view: MetadataView, clock: Clock
):
    view.take(response(("t", 0, [partition(0, 1, 5)]), topic_id=b"o" * 16))
    for _ in range(3):
        clock.now += 20.0
        view.take(response(("t", 0, [partition(0, 2, 4)]), topic_id=b"o" * 16))

    assert view.incarnation("t") == 0


@pytest.mark.parametrize(("seconds", "incarnation"), [(9.9, 0), (10.0, 1)])
def test_topic_without_an_id_is_another_one_if_its_leaders_stay_older(
    seconds: float, incarnation: int, view: MetadataView, clock: Clock
):
    """Only brokers that are behind tell older epochs, and not for long."""
    view.take(response(("t", 0, [partition(0, 1, 5)])))
    view.take(response(("t", 0, [partition(0, 2, 0)])))
    clock.now += seconds
    view.take(response(("t", 0, [partition(0, 2, 0)])))

    assert view.incarnation("t") == incarnation


def test_older_leaders_that_are_told_once_in_a_while_are_those_of_brokers_that_are_behind(
    view: MetadataView, clock: Clock
):
    for epoch in (5, 4, 5, 4):
        view.take(response(("t", 0, [partition(0, 1, epoch)])))
        clock.now += 8.0

    assert view.incarnation("t") == 0
