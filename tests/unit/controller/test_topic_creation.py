"""Topics created by brokers other than the controller."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from support.controller.controlled import Controlled
from support.controller.controllers import EndlessRoom

from kbroker.cluster.topic_ids import TopicIds
from kbroker.controller.election.events import EventQueue
from kbroker.controller.state.state import ClusterState
from kbroker.controller.topics.topic_creation import TopicCreation, is_led
from kbroker.controller.topics.topic_requests import TopicRequests
from kbroker.errors import ErrorCode
from kbroker.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.ipc.calls import CreateTopics, TopicToCreate
from kbroker.ipc.pending import run
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.types import BrokerId

pytestmark = pytest.mark.unit

SETTINGS = {
    "num.partitions": 2,
    "default.replication.factor": 1,
    "offsets.topic.num.partitions": 6,
    "offsets.topic.replication.factor": 2,
    "offsets.topic.segment.bytes": 1000,
    "transaction.state.log.num.partitions": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.segment.bytes": 1000,
}


@pytest.fixture
def cluster() -> Controlled:
    """Broker 0 is the controller, and elects leaders for topics in the store."""
    made = Controlled()
    made.register(0, 1)
    made.start()
    return made


class Creator:
    """Broker ``number`` with its own store; ``create`` starts, ``results`` has the outcome."""

    def __init__(self, cluster: Controlled, number: int = 1) -> None:
        self.cluster = cluster
        store = cluster.ensemble.connect()
        cluster.ensemble.run_until(lambda: store.session_id != 0)

        def requests(state: ClusterState) -> TopicRequests:
            get: Any = SETTINGS.__getitem__
            return TopicRequests(state, get, lambda config: None, lambda: False, is_shared=True)

        self.creation = TopicCreation(
            BrokerId(number),
            SettledStore(store),
            EventQueue(),
            TopicIds("cluster"),
            requests,
            EndlessRoom,
            self.is_led,
            cluster.ensemble.sleep,
        )

    def is_led(self, name: str) -> bool:
        topic = self.cluster.state.topic(name)
        return topic is not None and is_led(topic.partitions)

    def create(self, *names: str) -> Any:
        topics = [TopicToCreate(name) for name in names]
        return run(self.creation.create(CreateTopics(topics, auto=True, within_ms=10_000)))

    def codes(self, *names: str) -> list[int]:
        outcome = self.create(*names)
        self.cluster.ensemble.run_until(lambda: outcome.done)
        assert outcome.error is None
        return [result.error for result in outcome.value]


def test_topic_is_written_and_led_when_it_gets_a_response(cluster: Controlled) -> None:
    assert Creator(cluster).codes("t") == [0]
    stored = [cluster.stored("t", number) for number in range(2)]
    assert sorted(stored) == [(0, 0, [0]), (1, 0, [1])]  # the first broker is drawn
    assert cluster.leaders(1) == {("t", stored.index((1, 0, [1]))): (1, [1], True)}
    assert paths.decode_topic(cluster.ensemble.tree.get(paths.topic("t")).data)[0] is None


def test_internal_topic_has_its_settings(cluster: Controlled) -> None:
    assert Creator(cluster).codes(OFFSETS_TOPIC) == [0]
    config = cluster.ensemble.tree.get(paths.topic_config(OFFSETS_TOPIC)).data
    assert paths.decode_config(config)["cleanup.policy"] == "compact"
    assignment = paths.decode_topic(cluster.ensemble.tree.get(paths.topic(OFFSETS_TOPIC)).data)[1]
    assert sorted(assignment) == list(range(6))
    assert {len(replicas) for replicas in assignment.values()} == {2}


def test_topic_that_is_too_large_for_the_store_says_so(cluster: Controlled) -> None:
    cluster.ensemble.request_bytes_max = 100
    outcome = Creator(cluster).create("t")
    cluster.ensemble.run_until(lambda: outcome.done)
    (result,) = outcome.value
    assert result.error == ErrorCode.INVALID_REQUEST
    assert "fewer partitions or replicas" in str(result.message)


def test_internal_topic_waits_for_as_many_brokers_as_it_has_replicas(
    cluster: Controlled, caplog: pytest.LogCaptureFixture
) -> None:
    creator = Creator(cluster)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            code = creator.codes(TRANSACTIONS_TOPIC)
            assert code == [ErrorCode.INVALID_REPLICATION_FACTOR]
    assert caplog.text.count("transaction.state.log.replication.factor is 3") == 1
    assert cluster.ensemble.tree.exists(paths.topic(TRANSACTIONS_TOPIC)) is None
    cluster.register(2)
    assert creator.codes(TRANSACTIONS_TOPIC) == [0]


def test_two_brokers_that_create_one_topic_both_have_it(cluster: Controlled) -> None:
    outcomes = [Creator(cluster, number).create("t") for number in (1, 2)]
    cluster.ensemble.run_until(lambda: all(outcome.done for outcome in outcomes))
    assert [outcome.value[0].error for outcome in outcomes] == [0, 0]


def test_topic_that_is_there_is_a_success_unless_it_is_being_deleted(cluster: Controlled) -> None:
    creator = Creator(cluster)
    cluster.create_topic("t", [0])
    assert creator.codes("t") == [0]
    outcome = cluster.run(cluster.store.multi().create(paths.delete_topic("t")).commit())
    assert outcome.error is None
    assert creator.codes("t") == [ErrorCode.TOPIC_ALREADY_EXISTS]


def test_settings_that_an_earlier_topic_left_are_replaced(cluster: Controlled) -> None:
    written = cluster.store.multi().create(
        paths.topic_config("t"), paths.encode_config({"retention.ms": "5"})
    )
    assert cluster.run(written.commit()).error is None
    assert Creator(cluster).codes("t") == [0]
    config = cluster.ensemble.tree.get(paths.topic_config("t")).data
    assert paths.decode_config(config) == {}


def test_one_that_cannot_be_created_does_not_hold_up_the_others(cluster: Controlled) -> None:
    codes = Creator(cluster).codes("a", "in/valid", "b")
    assert codes == [0, ErrorCode.INVALID_TOPIC_EXCEPTION, 0]


def test_response_does_not_wait_for_a_leader_forever(cluster: Controlled) -> None:
    creator = Creator(cluster)
    creator.is_led = lambda name: False  # type: ignore[method-assign]
    creator.creation._is_led = creator.is_led
    began = cluster.ensemble.now_ms
    assert creator.codes("t") == [0]
    assert 2_000 < cluster.ensemble.now_ms - began < 5_000
