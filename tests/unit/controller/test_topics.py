"""Validation of topics to create or enlarge: error codes and messages."""

from collections import Counter
from random import Random

import pytest

from kbroker.controller.state.state import ClusterState, PartitionState, TopicState
from kbroker.controller.state.topics import (
    PARTITIONS_MAX,
    check_name,
    plan_partitions,
    plan_topic,
)
from kbroker.errors import ConfigError, ErrorCode, WireError
from kbroker.ipc.calls import Assigned, SettingValue, TopicToCreate

pytestmark = pytest.mark.unit

NEW_ID = bytes(range(16))


@pytest.fixture
def state():
    state = ClusterState(0)
    state.set_broker(0, [], None)
    add(state, "existing", 2)
    return state


def add(state, name, partitions=1, deleting=False, replicas=(0,)):
    topic_id = name.encode().ljust(16)[:16]
    listed = [PartitionState(0, 0, [0], list(replicas))] * partitions
    state.add_topic(TopicState(name, topic_id, listed))
    if deleting:
        state.mark_deleting([name])


def plan(
    state, name="t", partitions=1, factor=1, assignments=(), configs=(), validate=None, **more
):
    request = TopicToCreate(
        name,
        partitions,
        factor,
        [Assigned(*assigned) for assigned in assignments],
        [SettingValue(*setting) for setting in configs],
    )
    defaults = {"partitions": 3, "replication_factor": 1}
    return plan_topic(
        state, request, defaults, validate or (lambda c: None), lambda: NEW_ID, **more
    )


@pytest.mark.parametrize("name", ["t", "a.b_c-D9", "x" * 249, "...", "__consumer_offsets"])
def test_legal_names_are_taken(name):
    check_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\0", "a\n"])
def test_illegal_names_are_rejected(name):
    with pytest.raises(WireError) as caught:
        check_name(name)
    assert caught.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "letters" in caught.value.message


def test_topic_is_planned_from_numbers_and_defaults(state):
    assert plan(state, partitions=2).assignment == {0: [0], 1: [0]}
    assert plan(state, partitions=-1, factor=-1).assignment == {0: [0], 1: [0], 2: [0]}
    new = plan(state, configs=[["retention.ms", "5"]])
    assert (new.topic_id, new.config) == (NEW_ID, {"retention.ms": "5"})


def test_topic_is_planned_from_an_assignment(state):
    state.set_broker(1, [], None)
    new = plan(state, partitions=-1, factor=-1, assignments=[[1, [1, 0]], [0, [0, 1]]])
    assert new.assignment == {0: [0, 1], 1: [1, 0]}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ({"name": "existing"}, ErrorCode.TOPIC_ALREADY_EXISTS, "exists"),
        ({"name": "going"}, ErrorCode.TOPIC_ALREADY_EXISTS, "being deleted"),
        ({"name": "a_b"}, ErrorCode.INVALID_TOPIC_EXCEPTION, "'a.b'"),
        ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS, "larger than 0"),
        ({"partitions": -2}, ErrorCode.INVALID_PARTITIONS, "larger than 0"),
        ({"partitions": PARTITIONS_MAX + 1}, ErrorCode.INVALID_PARTITIONS, "at most"),
        ({"factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR, "larger than 0"),
        ({"factor": 3}, ErrorCode.INVALID_REPLICATION_FACTOR, "start more brokers"),
        ({"assignments": [[0, [0]]]}, ErrorCode.INVALID_REQUEST, "not both"),
        ({"configs": [["a", None]]}, ErrorCode.INVALID_CONFIG, "Null"),
        ({"configs": [["a", "1"], ["a", "2"]]}, ErrorCode.INVALID_REQUEST, "twice"),
    ],
)
def test_rejections_name_code_and_remedy(state, arguments, code, words):
    add(state, "a.b")
    add(state, "going", deleting=True)
    with pytest.raises(WireError) as caught:
        plan(state, **arguments)
    assert caught.value.code == code
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        ([[0, []]], "no replica"),
        ([[0, [0, 0]]], "twice"),
        ([[0, [5]]], "not available"),
        ([[0, [0]], [0, [0]]], "twice"),
        ([[1, [0]]], "without gaps"),
        ([[0, [0]], [2, [0]]], "without gaps"),
        ([[-1, [0]], [0, [0]]], "without gaps"),
        ([[0, [0]], [1, [0, 1]]], "2 replicas"),
    ],
)
def test_bad_assignments_are_rejected(state, assignments, words):
    state.set_broker(1, [], None)
    with pytest.raises(WireError) as caught:
        plan(state, partitions=-1, factor=-1, assignments=assignments)
    assert caught.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert words in caught.value.message


def test_cordoned_broker_gets_only_replicas_that_name_it(state):
    """As in Kafka 4.3 (KIP-1066)."""
    defaults = {"partitions": 1, "replication_factor": 1}

    def planned(num_partitions=2, replication_factor=1, **others):
        wanted = TopicToCreate("t", num_partitions, replication_factor, **others)
        return plan_topic(state, wanted, defaults, lambda c: None, lambda: NEW_ID, cordoned=[0])

    for attempt in (planned, lambda: plan_partitions(state, "existing", 4, None, [0])):
        with pytest.raises(WireError, match=r"cordoned\.log\.dirs") as caught:
            attempt()
        assert caught.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
    named = planned(num_partitions=-1, replication_factor=-1, assignments=[[0, [0]]])
    assert named.assignment == {0: [0]}
    assert plan_partitions(state, "existing", 3, [[0]], [0]) == {2: [0]}

    state.set_broker(1, [], None)
    assert planned().assignment == {0: [1], 1: [1]}


def test_bad_setting_is_rejected_with_its_reason(state):
    def reject(settings):
        raise ConfigError("retention.ms", "soon", "a number")

    with pytest.raises(WireError, match="expected a number") as caught:
        plan(state, configs=[["retention.ms", "soon"]], validate=reject)
    assert caught.value.code == ErrorCode.INVALID_CONFIG


def test_partitions_can_only_be_added(state):
    assert plan_partitions(state, "existing", 4, None) == {2: [0], 3: [0]}
    assert plan_partitions(state, "existing", 3, [[0]]) == {2: [0]}
    for count in (2, 1, 0, -1):
        with pytest.raises(WireError) as caught:
            plan_partitions(state, "existing", count, None)
        assert caught.value.code == ErrorCode.INVALID_PARTITIONS
    for assignments in ([], [[0], [0]], [[7]], [[0, 0]]):
        with pytest.raises(WireError) as caught:
            plan_partitions(state, "existing", 3, assignments)
        assert caught.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    with pytest.raises(WireError) as caught:
        plan_partitions(state, "unknown", 3, None)
    assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_keep_their_number_of_partitions(state, name):
    """All groups would lose their committed offsets, and all transactions their outcome."""
    add(state, name)

    with pytest.raises(WireError, match="cannot be changed") as caught:
        plan_partitions(state, name, 60, None)

    assert caught.value.code == ErrorCode.INVALID_PARTITIONS


def test_topics_of_one_partition_are_spread_over_brokers_and_racks():
    """Most topics have one partition: a fixed first broker would lead all of them."""
    state, choose = ClusterState(3), Random(4).randrange
    racks = {3: "a", 5: "a", 8: "b", 13: "b"}
    for broker_id, rack in racks.items():
        state.set_broker(broker_id, [], rack)

    placed = [
        plan(state, f"t{number}", factor=2, choose=choose).assignment[0] for number in range(400)
    ]

    leaders = Counter(leader for leader, _ in placed)
    assert leaders.keys() == racks.keys() and min(leaders.values()) > 60
    assert all(racks[leader] != racks[follower] for leader, follower in placed)
    assert len({tuple(replicas) for replicas in placed}) == 8


def test_new_partitions_continue_the_round_over_the_brokers():
    state = ClusterState(3)
    for broker_id in (3, 5, 8):
        state.set_broker(broker_id, [], None)
    add(state, "t", 1, replicas=(5, 8))

    added = plan_partitions(state, "t", 6, None)

    assert [added[number][0] for number in range(1, 6)] == [8, 3, 5, 8, 3]
    assert Counter(node for replicas in added.values() for node in replicas) == {3: 4, 5: 3, 8: 3}


@pytest.mark.parametrize("racks", [("a", "a", "a"), ("a", "a", "b"), (None, None, None)])
def test_no_more_replicas_are_expected_on_a_broker_than_it_gets(racks):
    state = ClusterState(0)
    for broker_id, rack in enumerate(racks):
        state.set_broker(broker_id, [], rack)
    expected: list[int] = []

    topic = plan(state, partitions=8, factor=2, check_room=lambda _, count: expected.append(count))

    hosted = sum(0 in replicas for replicas in topic.assignment.values())
    assert 2 <= expected[0] <= hosted


def test_name_that_collided_is_free_after_deletion(state):
    add(state, "a.b")
    state.remove_topic("a.b")
    assert plan(state, "a_b").name == "a_b"


def test_topic_that_collides_takes_the_place_of_the_one_that_goes(state):
    """Stores of old versions have such topics, in any number."""
    for name in ("a.b", "a_b", "a.b.c", "a_b.c", "a.b_c"):
        add(state, name)

    state.remove_topic("a_b.c")
    assert state.colliding_topic("a_b.c") == "a.b.c"
    state.remove_topic("a.b.c")
    assert state.colliding_topic("a.b.c") == "a.b_c"
    state.remove_topic("a.b_c")
    assert state.colliding_topic("a.b.c") is None

    state.remove_topic("a.b")
    assert state.colliding_topic("a.b") == "a_b"


def test_topic_is_removed_without_a_look_at_the_others(state):
    """Deleting 20,000 topics blocked the controller for eight seconds."""
    looks = []

    class Name(str):
        __slots__ = ()

        def replace(self, *args):
            looks.append(self)
            return super().replace(*args)

    for number in range(50):
        add(state, Name(f"t.{number}"))
    looks.clear()

    for number in range(50):
        state.remove_topic(Name(f"t.{number}"))

    assert len(looks) <= 50
