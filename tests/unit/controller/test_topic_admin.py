"""The cost of topic requests for the controller; their effect is tested with its process."""

from __future__ import annotations

from typing import Any

import pytest
from support.controller.controlled import Controlled
from support.controller.controllers import EndlessRoom, controller_of

from kbroker.cluster.control_requests import ControlResponse, LeaderAndIsr, StopReplica
from kbroker.controller.election.active_controller import ActiveController
from kbroker.controller.state import topics
from kbroker.controller.state.state import ClusterState, PartitionState, TopicState
from kbroker.controller.topics.topic_admin import TopicAdmin
from kbroker.controller.topics.topic_requests import TopicRequests
from kbroker.errors import ErrorCode
from kbroker.hosting.replicas import HostedReplicas
from kbroker.hosting.room import Room
from kbroker.hosting.slots import SlotAssignments
from kbroker.ipc.calls import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    TopicToCreate,
    TopicToDelete,
    TopicToEnlarge,
)
from kbroker.ipc.pending import run
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.metastore import paths
from kbroker.metastore.embedded import EmbeddedStore
from kbroker.metastore.node_file import NodeFile
from kbroker.metastore.settled import SettledStore

pytestmark = pytest.mark.unit

SLOTS = 100
CALLER = Address(ProcessKind.NETWORK, 0)
DEFAULTS = {"num.partitions": 1, "default.replication.factor": 1}


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of partitions for which replicas were chosen, each time."""
    counts: list[int] = []
    place = topics.place_replicas

    def counting(racks: Any, count: int, factor: int, **more: Any) -> Any:
        counts.append(count)
        return place(racks, count, factor, **more)

    monkeypatch.setattr(topics, "place_replicas", counting)
    return counts


@pytest.fixture
def admin(tmp_path: Any) -> TopicAdmin:
    """Without a store and subscribers: enough for planning."""
    state = ClusterState(0)
    state.set_broker(0, [], None)
    state.add_topic(TopicState("t", b"t" * 16, [PartitionState(0, 0, [0], [0])]))
    return admin_of(controller_of(state), tmp_path)


def admin_of(controller: ActiveController, directory: Any, **settings: Any) -> TopicAdmin:
    slots = SlotAssignments(str(directory), SLOTS, 2)
    replicas = HostedReplicas(0, slots)
    setting = {**DEFAULTS, **settings}.__getitem__
    requests = TopicRequests(controller.state, setting, lambda config: None, lambda: False)
    nobody: Any = None
    return TopicAdmin(controller, requests, lambda: Room(slots, replicas), nobody, lambda: True)


def new_topic(name: str, partitions: int) -> TopicToCreate:
    return TopicToCreate(name, partitions, 1)


def errors(outcome: Any) -> list[int]:
    assert outcome.error is None
    return [result.error for result in outcome.value]


@pytest.mark.parametrize("validate_only", [True, False])
def test_topics_without_room_are_rejected_before_their_partitions_are_planned(
    admin: TopicAdmin, planned: list[int], validate_only: bool
) -> None:
    """Fifty topics of 100,000 partitions, in 1 kB, blocked the controller for two seconds."""
    wanted = [new_topic(f"n{number}", 100_000) for number in range(50)]

    outcome = run(admin.create_topics(CALLER, CreateTopics(wanted, validate_only)))

    assert set(errors(outcome)) == {int(ErrorCode.INVALID_PARTITIONS)}
    assert "of which 100 are free" in outcome.value[0].message
    assert sum(planned) == 0


def test_topics_that_are_only_validated_have_the_room_that_is_left(
    admin: TopicAdmin, planned: list[int]
) -> None:
    """As for a real creation; and no request plans more partitions than there are slots."""
    wanted = [new_topic(f"n{number}", 60) for number in range(50)]
    wanted.append(new_topic("small", 40))

    outcome = run(admin.create_topics(CALLER, CreateTopics(wanted, validate_only=True)))

    rejected = int(ErrorCode.INVALID_PARTITIONS)
    assert errors(outcome) == [0, *[rejected] * 49, 0]
    assert "of which 40 are free" in outcome.value[1].message
    assert sum(planned) == 100


def test_partitions_without_room_are_rejected_before_they_are_planned(
    admin: TopicAdmin, planned: list[int]
) -> None:
    wanted = [TopicToEnlarge("t", 100_000)]

    outcome = run(admin.create_partitions(CALLER, CreatePartitions(wanted, validate_only=True)))

    assert errors(outcome) == [int(ErrorCode.INVALID_PARTITIONS)]
    assert "99999 more partitions" in outcome.value[0].message
    assert planned == []


@pytest.mark.parametrize(
    ("asked_by", "told"), [("User:alice", " for User:alice"), ("User:ANONYMOUS", "")]
)
def test_changes_of_topics_say_in_the_log_who_asked(
    tmp_path: Any, caplog: pytest.LogCaptureFixture, asked_by: str, told: str
) -> None:
    """This tells an operator who deleted a topic."""
    caplog.set_level("INFO")
    state = ClusterState(0)
    state.set_broker(0, [], None)
    file = NodeFile(str(tmp_path))
    for path in paths.PERSISTENT_PATHS:
        file.create(path)
    controller = controller_of(state, SettledStore(EmbeddedStore(file)))
    admin = admin_of(controller, tmp_path, **{"delete.topic.enable": True})

    outcomes = [
        run(admin.create_topics(CALLER, CreateTopics([new_topic("n", 1)], asked_by=asked_by))),
        run(
            admin.create_partitions(
                CALLER, CreatePartitions([TopicToEnlarge("n", 2)], asked_by=asked_by)
            )
        ),
        run(admin.delete_topics(CALLER, DeleteTopics([TopicToDelete("n")], asked_by=asked_by))),
    ]

    assert [errors(outcome) for outcome in outcomes] == [[0], [0], [0]]
    assert [record.getMessage() for record in caplog.records] == [
        f"created topic n with 1 partition{told}",
        f"topic n now has 2 partitions{told}",
        f"deleted topic n{told}",
    ]
    file.close()


# -- deletion in a cluster --


def deleting(cluster: Controlled) -> TopicAdmin:
    setting = {**DEFAULTS, "delete.topic.enable": True}.__getitem__
    requests = TopicRequests(cluster.state, setting, lambda config: None, lambda: False)
    sleep = cluster.ensemble.sleep
    return TopicAdmin(cluster.controller, requests, EndlessRoom, sleep, lambda: True)


@pytest.fixture
def cluster() -> Controlled:
    """Topics ``a`` on brokers 0 and 1, ``b`` on 1 and 2, ``c`` on 2."""
    made = Controlled()
    made.register(0, 1, 2)
    for name, replicas in (("a", [0, 1]), ("b", [1, 2]), ("c", [2])):
        states = {0: PartitionState(replicas[0], 0, replicas, replicas)}
        made.create_topic(name, replicas, states=states)
    made.start()
    made.forget()
    return made


def delete(cluster: Controlled, *names: str, within_ms: int = 2_000) -> dict[str, int]:
    asked = DeleteTopics([TopicToDelete(name) for name in names], within_ms=within_ms)
    outcome = run(deleting(cluster).delete_topics(CALLER, asked))
    cluster.ensemble.run_until(lambda: outcome.done)
    return {result.name: result.error for result in outcome.value}


def present(cluster: Controlled) -> list[str]:
    return sorted(cluster.ensemble.tree.children(paths.BROKER_TOPICS))


def test_logs_on_a_dead_broker_wait_for_it_and_no_client_or_other_topic_does(
    cluster: Controlled,
) -> None:
    """They have left the metadata: a client that tried again would be told that there are none."""
    cluster.leave(2)
    cluster.settle()
    began_ms = cluster.ensemble.now_ms
    assert delete(cluster, "a", "b", "c") == {"a": 0, "b": 0, "c": 0}
    assert cluster.ensemble.now_ms - began_ms < 1_000
    assert present(cluster) == ["b", "c"]
    assert cluster.stopped(1) == [(("a", 0), True)]
    cluster.register(2)
    cluster.settle(6_000)
    assert present(cluster) == []


def test_broker_that_comes_hears_of_its_replicas_before_they_are_deleted(
    cluster: Controlled,
) -> None:
    """The other way round it would have them again after the deletion, and keep them."""
    cluster.leave(2)
    cluster.settle()
    cluster.state.mark_deleting(["b"])
    cluster.forget()
    cluster.register(2)
    cluster.ensemble.run_until(lambda: 2 in cluster.state.brokers)
    deleting(cluster).finish_deletions(["b"])
    cluster.settle()
    told = [type(request) for broker_id, request in cluster.sent if broker_id == 2]
    assert told.index(LeaderAndIsr) < told.index(StopReplica)


def test_a_broker_that_says_nothing_holds_up_no_deletion_for_long(cluster: Controlled) -> None:
    """It is stalled, or dead while its session lasts."""
    cluster.silent.add(2)
    began_ms = cluster.ensemble.now_ms

    assert delete(cluster, "a", "b", within_ms=60_000) == {"a": 0, "b": 0}

    assert cluster.ensemble.now_ms - began_ms < 3_000


def test_topic_whose_logs_a_broker_could_not_delete_is_tried_again(cluster: Controlled) -> None:
    """Its log directory has failed; the other topics of the request are deleted."""
    failures = [ErrorCode.KAFKA_STORAGE_ERROR]

    def answer(broker_id: int, request: Any) -> ControlResponse:
        if broker_id == 2 and isinstance(request, StopReplica) and failures:
            return ControlResponse(partitions={("b", 0): failures.pop()})
        return ControlResponse()

    cluster.answers = answer
    assert delete(cluster, "b", "c") == {"b": 0, "c": 0}
    cluster.settle(6_000)
    assert present(cluster) == ["a"]


def test_topic_that_is_reassigned_gets_no_partitions(cluster: Controlled) -> None:
    outcome = cluster.background.reassigning.alter({("a", 0): [1, 2]})
    cluster.ensemble.run_until(lambda: outcome.done)
    asked = CreatePartitions([TopicToEnlarge("a", 2), TopicToEnlarge("c", 2)])
    created = run(deleting(cluster).create_partitions(CALLER, asked))
    cluster.ensemble.run_until(lambda: created.done)
    assert errors(created) == [ErrorCode.REASSIGNMENT_IN_PROGRESS, 0]


# -- topics of thousands of partitions: several requests to the store --

MANY = 60


def create_many(cluster: Controlled) -> Any:
    asked = CreateTopics([TopicToCreate("many", MANY, 2)], within_ms=2_000)
    return run(deleting(cluster).create_topics(CALLER, asked))


def states_of_many(cluster: Controlled) -> dict[int, tuple[int, int, list[int]]]:
    tree = cluster.ensemble.tree
    numbers = [int(name) for name in tree.children(paths.topic_partitions("many"))]
    has_state = [n for n in numbers if tree.children(paths.partition("many", n))]
    return {number: cluster.stored("many", number) for number in has_state}


def test_topic_too_large_for_one_request_is_created_and_deleted(cluster: Controlled) -> None:
    cluster.ensemble.request_bytes_max = 6_000

    outcome = create_many(cluster)
    cluster.ensemble.run_until(lambda: outcome.done)
    assert [result.error for result in outcome.value] == [ErrorCode.NONE]
    created = states_of_many(cluster)
    assert len(created) == MANY
    assert all(leader >= 0 and epoch == 0 for leader, epoch, _ in created.values())

    assert delete(cluster, "many") == {"many": ErrorCode.NONE}
    assert present(cluster) == ["a", "b", "c"]
    assert cluster.ensemble.tree.children(paths.DELETE_TOPICS) == []


@pytest.mark.parametrize("steps", range(4, 60, 8))
def test_topic_half_created_is_completed_by_the_next_controller(
    cluster: Controlled, steps: int
) -> None:
    cluster.ensemble.request_bytes_max = 6_000
    create_many(cluster)
    for _ in range(steps):
        cluster.ensemble.step()

    cluster.replace()
    cluster.settle(6_000)

    if "many" in present(cluster):
        assert len(states_of_many(cluster)) == MANY


@pytest.mark.parametrize("steps", range(4, 80, 8))
def test_topic_half_deleted_is_deleted_by_the_next_controller(
    cluster: Controlled, steps: int
) -> None:
    cluster.ensemble.request_bytes_max = 6_000
    outcome = create_many(cluster)
    cluster.ensemble.run_until(lambda: outcome.done)
    asked = DeleteTopics([TopicToDelete("many")], within_ms=2_000)
    run(deleting(cluster).delete_topics(CALLER, asked))
    for _ in range(steps):
        cluster.ensemble.step()

    cluster.replace()
    deleting(cluster).resume_deletions()
    cluster.settle(6_000)

    assert cluster.ensemble.tree.children(paths.DELETE_TOPICS) == []
    if "many" in present(cluster):
        assert len(states_of_many(cluster)) == MANY
