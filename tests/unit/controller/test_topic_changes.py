"""Topics that other clients of the store create, enlarge and mark for deletion."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from support.controller.controlled import Controlled

from kbroker.cluster.control_requests import UpdateMetadata
from kbroker.cluster.topic_ids import local_topic_id
from kbroker.controller.state import decisions
from kbroker.controller.state.state import PartitionState
from kbroker.controller.state.topics import PlannedTopic
from kbroker.controller.store import persistence
from kbroker.metastore import paths
from kbroker.metastore.store import StoreOperation

pytestmark = pytest.mark.unit


@pytest.fixture
def cluster() -> Controlled:
    made = Controlled()
    made.register(0, 1)
    made.start()
    made.forget()
    return made


def rewrite(cluster: Controlled, name: str, **fields: object) -> None:
    node = cluster.ensemble.tree.get(paths.topic(name))
    document = json.dumps(json.loads(node.data) | fields).encode()
    cluster.apply(StoreOperation("set", node.path, document, node.stat.version))


def test_topic_without_states_is_led_by_the_first_replica_that_lives(cluster: Controlled) -> None:
    """Kafka's tools create topics like this."""
    cluster.create_topic("t", [0, 1], [7, 1])
    cluster.settle()
    assert (cluster.stored("t", 0), cluster.stored("t", 1)) == ((0, 0, [0, 1]), (1, 0, [1]))
    assert cluster.leaders(0) == {("t", 0): (0, [0, 1], True)}
    assert cluster.leaders(1) == {("t", 0): (0, [0, 1], True), ("t", 1): (1, [1], True)}
    assert cluster.known(0)[("t", 1)] == (1, [7])
    (request,) = cluster.told(0, UpdateMetadata)
    assert request.topic_ids == {"t": local_topic_id("cluster", "t")}


def test_topic_is_led_when_the_first_of_its_replicas_comes(cluster: Controlled) -> None:
    cluster.create_topic("t", [7])
    cluster.settle()
    assert cluster.ensemble.tree.exists(paths.partition_state("t", 0)) is None
    assert cluster.sent == []
    cluster.register(7)
    cluster.settle()
    assert cluster.leaders(7) == {("t", 0): (7, [7], True)}


def test_topic_that_an_earlier_controller_has_half_created_is_finished() -> None:
    cluster = Controlled()
    cluster.register(0)
    cluster.create_topic("t", [0], [0], states={0: PartitionState(0, 2, [0], [0])})
    cluster.start()
    assert (cluster.stored("t", 0), cluster.stored("t", 1)) == ((0, 2, [0]), (0, 0, [0]))
    assert cluster.leaders(0) == {("t", 0): (0, [0], False), ("t", 1): (0, [0], True)}


def test_added_partitions_are_led(cluster: Controlled) -> None:
    cluster.create_topic("t", [0])
    cluster.settle()
    cluster.forget()
    rewrite(cluster, "t", partitions={"0": [0], "1": [1, 0]})
    cluster.settle()
    assert cluster.leaders(1) == {("t", 1): (1, [1, 0], True)}
    assert cluster.leaders(0) == {("t", 1): (1, [1, 0], True)}


def create(cluster: Controlled, new: PlannedTopic) -> None:
    """As a request does: of a topic that another client has created it takes what is stored."""

    def decide() -> decisions.Decision:
        is_new = cluster.state.topic(new.name) is None
        return decisions.create(cluster.state, [new] if is_new else [])

    async def work() -> None:
        reread = partial(persistence.reread_topics, cluster.store, cluster.state, [new.name])
        cluster.controller.enter((await cluster.controller.write(decide, reread)).changes)

    outcome = cluster.controller.events.put(work)
    cluster.ensemble.run_until(lambda: outcome.done)
    assert outcome.error is None


def test_topic_that_a_request_has_met_before_its_watch_is_led(cluster: Controlled) -> None:
    cluster.create_topic("t", [0, 1], [1])
    create(cluster, PlannedTopic("t", local_topic_id("cluster", "t"), {0: [1]}, {}))
    cluster.settle()
    assert (cluster.stored("t", 0), cluster.stored("t", 1)) == ((0, 0, [0, 1]), (1, 0, [1]))
    assert cluster.leaders(1) == {("t", 0): (0, [0, 1], True), ("t", 1): (1, [1], True)}


def test_partitions_that_others_add_to_a_topic_of_a_request_are_led(cluster: Controlled) -> None:
    create(cluster, PlannedTopic("t", local_topic_id("cluster", "t"), {0: [0]}, {}))
    cluster.settle()
    cluster.forget()
    rewrite(cluster, "t", partitions={"0": [0], "1": [1]})
    cluster.settle()
    assert cluster.stored("t", 1) == (1, 0, [1])
    assert cluster.leaders(1) == {("t", 1): (1, [1], True)}


def test_what_others_wrote_into_a_topic_is_kept_when_it_is_enlarged(cluster: Controlled) -> None:
    cluster.create_topic("t", [0])
    rewrite(cluster, "t", theirs={"a": 1})
    cluster.settle()
    decision = decisions.enlarge(cluster.state, "t", {1: [1]})
    documents = [json.loads(w.data) for w in decision.writes if w.path == paths.topic("t")]
    assert documents == [
        {"version": 2, "adding_replicas": {}, "removing_replicas": {}, "theirs": {"a": 1},
         "partitions": {"0": [0], "1": [1]}}
    ]  # fmt: skip


def test_topic_of_an_old_kafka_is_taken_as_it_is(cluster: Controlled) -> None:
    document = b'{"version":1,"partitions":{"0":[1]}}'
    cluster.apply(StoreOperation("create", paths.topic("t"), document))
    cluster.settle()
    assert cluster.stored() == (1, 0, [1])
    assert cluster.ensemble.tree.get(paths.topic("t")).data == document


def test_topic_that_nobody_can_read_is_ignored(
    cluster: Controlled, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.apply(StoreOperation("create", paths.topic("bad"), b'{"partitions":{"0":[0],"2":[0]}}'))
    cluster.apply(StoreOperation("create", paths.topic("worse"), b"{"))
    cluster.create_topic("t", [0])
    cluster.settle()
    assert [topic.name for topic in cluster.state.topics()] == ["t"]
    assert "bad" in caplog.text and "worse" in caplog.text


def test_marked_topic_is_deleted_and_told_so(cluster: Controlled) -> None:
    cluster.create_topic("t", [0])
    cluster.settle()
    cluster.apply(StoreOperation("create", paths.delete_topic("t")))
    cluster.settle()
    assert cluster.deletions == ["t"]
    assert cluster.state.existing("t").deleting
    assert cluster.known(1)[("t", 0)][0] == -2


def test_mark_of_an_unknown_topic_is_removed(cluster: Controlled) -> None:
    cluster.apply(StoreOperation("create", paths.delete_topic("none")))
    cluster.settle()
    assert cluster.ensemble.tree.children(paths.DELETE_TOPICS) == []
    assert cluster.deletions == []


def test_marks_are_removed_where_topics_may_not_be_deleted(cluster: Controlled) -> None:
    cluster.settings["delete.topic.enable"] = False
    cluster.create_topic("t", [0])
    cluster.settle()
    cluster.apply(StoreOperation("create", paths.delete_topic("t")))
    cluster.settle()
    assert cluster.ensemble.tree.children(paths.DELETE_TOPICS) == []
    assert not cluster.state.existing("t").deleting


def test_topic_that_was_removed_is_unknown_and_its_logs_are_kept(cluster: Controlled) -> None:
    cluster.create_topic("t", [0])
    cluster.settle()
    nodes = [paths.topic("t"), *(node.path for node in cluster.ensemble.tree.subtree(
        paths.topic("t")))]  # fmt: skip
    cluster.apply(*[StoreOperation("delete", path) for path in reversed(nodes)])
    cluster.settle()
    assert cluster.state.topic("t") is None
    assert cluster.known(0)[("t", 0)][0] == -2
    assert cluster.stopped(0) == []


def test_what_changes_while_the_connection_is_away_is_looked_at_then(cluster: Controlled) -> None:
    cluster.lose(1_000)
    cluster.create_topic("t", [0])
    cluster.leave(1)
    cluster.settle(2_000)
    cluster.background.connected()
    cluster.settle()
    assert cluster.stored() == (0, 0, [0])
    assert sorted(cluster.state.brokers) == [0]


def test_topic_that_cannot_be_read_keeps_no_other_from_being_led(
    cluster: Controlled, caplog: pytest.LogCaptureFixture
) -> None:
    for name, data in (
        ("bad", b'{"partitions":{"0":null}}'),
        ("a name", b'{"partitions":{"0":[0]}}'),
    ):
        cluster.apply(StoreOperation("create", paths.topic(name), data))
    cluster.create_topic("t", [0])
    cluster.apply(StoreOperation("set", paths.topic_config("t"), b"[]"))
    cluster.settle()

    assert cluster.leaders(0) == {("t", 0): (0, [0], True)}
    assert paths.topic("bad") in caplog.text and paths.topic("a name") in caplog.text
    assert paths.topic_config("t") in caplog.text


def test_topics_that_are_new_when_a_look_fails_are_led_by_the_next(
    cluster: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    reread, failures = persistence.reread_topics, [ValueError("once")]

    async def failing(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return await reread(*arguments)

    monkeypatch.setattr(persistence, "reread_topics", failing)
    cluster.create_topic("t", [0])
    cluster.settle(5_000)

    assert cluster.leaders(0) == {("t", 0): (0, [0], True)}


def test_partition_whose_state_cannot_be_read_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An election from scratch would have its replicas lose what they have."""
    cluster = Controlled()
    cluster.register(0, 1)
    cluster.create_topic(
        "t", [0, 1], [0, 1], states={n: PartitionState(0, 7, [0, 1], [0, 1]) for n in range(2)}
    )
    path, damaged = paths.partition_state("t", 0), b'{"leader":0,"leader_epoch":"x","isr":[0]}'
    cluster.apply(StoreOperation("set", path, damaged))
    cluster.start()
    cluster.leave(0)
    cluster.settle(5_000)

    assert cluster.ensemble.tree.get(path).data == damaged
    assert cluster.stored("t", 1) == (1, 8, [1])
    assert path in caplog.text


def test_mark_of_a_topic_that_cannot_be_read_stays() -> None:
    """It is deleted once somebody has repaired it."""
    cluster = Controlled()
    cluster.register(0)
    for path, data in ((paths.topic("t"), b"{"), (paths.delete_topic("t"), b"")):
        cluster.apply(StoreOperation("create", path, data))
    cluster.start()

    assert cluster.ensemble.tree.exists(paths.delete_topic("t")) is not None
