"""What the producer of 0.8 sends where, and what it does when that fails."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker

from kbroker.client.errors import SerializationFailed, UnreachableError
from kbroker.errors import ErrorCode
from kbroker.legacy import (
    EventHandler,
    FailedToSendMessage,
    KeyedMessage,
    MessageSet,
    ProducerClosed,
)
from kbroker.legacy.cluster_view import ClusterView
from kbroker.legacy.dispatcher import Dispatcher
from kbroker.legacy.keyed_message import Outgoing
from kbroker.legacy.message_set import Message
from kbroker.legacy.old_producer import Producer
from kbroker.legacy.producer_config import ProducerConfig
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.protocol.messages.produce import ProduceResponse

pytestmark = pytest.mark.unit


class Scripted:
    """A broker with a topic of three partitions; ``leaders`` has those of them, -1 for none.

    codes: errors of the next responses to Produce, by partition. written: what came, in order.
    """

    def __init__(self) -> None:
        self.leaders = [0, 0, 0]
        self.topic_errors: list[int] = []
        self.codes: list[dict[int, int] | None] = []
        self.written: list[tuple[str, int, list[bytes | None]]] = []
        self.sets: list[bytes] = []
        self.asked = 0
        answers = {ApiKey.METADATA: self.metadata, ApiKey.PRODUCE: self.produce}
        self.broker = FakeBroker(answers)

    def metadata(self, request: Any, state: Any) -> Any:
        self.asked += 1
        error = self.topic_errors.pop(0) if self.topic_errors else 0
        partitions = [
            MetadataResponse.MetadataResponsePartition(
                partition_index=number,
                leader_id=leader,
                error_code=0 if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
            )
            for number, leader in enumerate(self.leaders)
        ]
        row = MetadataResponse.MetadataResponseBroker(
            node_id=0, host="127.0.0.1", port=self.broker.port
        )
        topics = [
            MetadataResponse.MetadataResponseTopic(
                name=topic.name, error_code=error, partitions=[] if error else partitions
            )
            for topic in request.topics
        ]
        return MetadataResponse(brokers=[row], topics=topics)

    def produce(self, request: Any, state: Any) -> Any:
        codes = self.codes.pop(0) if self.codes else {}
        if codes is None:
            return None
        rows = []
        for topic in request.topic_data:
            parts = []
            for row in topic.partition_data:
                code = codes.get(row.index, 0)
                if not code:
                    self.sets.append(bytes(row.records))
                    found = [m.payload for m, _ in MessageSet(bytes(row.records))]
                    self.written.append((topic.name, row.index, found))
                parts.append(
                    ProduceResponse.PartitionProduceResponse(index=row.index, error_code=code)
                )
            rows.append(
                ProduceResponse.TopicProduceResponse(name=topic.name, partition_responses=parts)
            )
        return ProduceResponse(responses=rows) if request.acks else b""

    def all_written(self) -> list[bytes | None]:
        return [one for _, _, found in self.written for one in found]


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    made = Scripted()
    with made.broker:
        yield made


def config_of(scripted: Scripted, **more: Any) -> ProducerConfig:
    settings = {"metadata.broker.list": scripted.broker.bootstrap, "request.required.acks": 1}
    return ProducerConfig({**settings, **{k.replace("_", "."): v for k, v in more.items()}})


class Clocked:
    """A dispatcher whose time passes in its pauses alone."""

    def __init__(self, config: ProducerConfig) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.view = ClusterView(config)
        self.dispatcher = Dispatcher(config, self.view, sleep=self._sleep, clock=lambda: self.now)

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def send(self, *rows: tuple[Any, bytes], partition: int | None = None) -> None:
        made = [Outgoing("t", key, partition, Message(value)) for key, value in rows]
        self.dispatcher.dispatch(made)


@pytest.fixture
def clocked(scripted: Scripted) -> Iterator[Any]:
    made = []

    def make(**settings: Any) -> Clocked:
        made.append(Clocked(config_of(scripted, **settings)))
        return made[-1]

    yield make
    for one in made:
        one.dispatcher.close()


def test_messages_go_to_the_partition_of_their_key_in_one_request(scripted, clocked):
    clocked().send((0, b"a"), (1, b"b"), (3, b"c"), (2, b"d"))

    assert scripted.written == [("t", 0, [b"a", b"c"]), ("t", 1, [b"b"]), ("t", 2, [b"d"])]
    assert len(scripted.sets) == 3


def test_messages_without_a_key_stay_with_a_partition_until_metadata_is_refreshed(
    scripted, clocked, monkeypatch
):
    chosen = iter((2, 0))
    monkeypatch.setattr(random, "choice", lambda led: next(chosen))
    one = clocked(topic_metadata_refresh_interval_ms=1000)
    for _ in range(3):
        one.send((None, b"x"))
    one.now += 1
    one.send((None, b"y"))

    assert [row[1] for row in scripted.written] == [2, 2, 2, 0]
    assert scripted.asked == 2


def test_messages_without_a_key_avoid_partitions_without_a_leader(scripted, clocked):
    scripted.leaders = [-1, 0, -1]
    one = clocked()
    for _ in range(5):
        one.send((None, b"x"))
        one.dispatcher._sticky.clear()

    assert {row[1] for row in scripted.written} == {1}


def test_only_what_failed_is_sent_again_after_a_pause_and_a_refresh(scripted, clocked):
    scripted.codes = [{1: ErrorCode.NOT_LEADER_OR_FOLLOWER}, {}]
    one = clocked(retry_backoff_ms=70)
    one.send((0, b"a"), (1, b"b"))

    assert scripted.written == [("t", 0, [b"a"]), ("t", 1, [b"b"])]
    assert one.pauses == [0.07]
    assert scripted.asked == 2
    assert one.dispatcher.stats.resends == 1


def test_lost_connection_counts_as_failed_for_all_its_messages(scripted, clocked):
    scripted.codes = [None]
    clocked().send((0, b"a"), (1, b"b"))

    assert sorted(scripted.all_written()) == [b"a", b"b"]


def test_after_all_retries_the_last_error_is_raised(scripted, clocked):
    scripted.codes = [{0: 7}] * 9
    one = clocked(message_send_max_retries=2)

    with pytest.raises(FailedToSendMessage, match=r"1 messages after 3 tries.*REQUEST_TIMED_OUT"):
        one.send((0, b"a"), (1, b"b"))

    assert scripted.all_written() == [b"b"]
    assert len(one.pauses) == 3
    assert one.dispatcher.stats.failed_sends == 1
    one.dispatcher.dispatch([])


def test_partition_without_a_leader_fails_alone_and_is_found_again(scripted, clocked):
    scripted.leaders = [0, -1, 0]
    one = clocked()

    def elected(seconds):
        assert scripted.all_written() == [b"a"]
        scripted.leaders = [0, 0, 0]

    one.dispatcher._sleep = elected
    one.send((0, b"a"), (1, b"b"))

    assert scripted.all_written() == [b"a", b"b"]


def test_topic_that_is_being_created_is_waited_for(scripted, clocked):
    scripted.topic_errors = [ErrorCode.LEADER_NOT_AVAILABLE] * 3
    one = clocked()
    one.send((0, b"a"))

    assert scripted.all_written() == [b"a"]
    assert one.pauses == [0.1]


@pytest.mark.parametrize("index", [-1, 3])
def test_partition_that_there_is_not_is_an_error(scripted, clocked, index):
    one = clocked(message_send_max_retries=0)
    with pytest.raises(FailedToSendMessage, match=f"partition {index} of topic t, which has 3"):
        one.send((0, b"a"), partition=index)


def test_partition_that_is_given_comes_before_the_key(scripted, clocked):
    clocked().send((0, b"a"), partition=2)

    assert scripted.written == [("t", 2, [b"a"])]


def test_round_robin_takes_messages_with_and_without_a_key(scripted, clocked):
    one = clocked(partitioner_class="RoundRobinPartitioner")
    one.send((None, b"a"), (None, b"b"), ("k", b"c"))

    assert sorted(row[1] for row in scripted.written) == [0, 1, 2]


@pytest.mark.parametrize(
    ("interval_ms", "asked"), [(0, 4), (-1, 1), (600_000, 1)], ids=["each", "never", "later"]
)
def test_metadata_is_refreshed_as_often_as_the_setting_says(scripted, clocked, interval_ms, asked):
    one = clocked(topic_metadata_refresh_interval_ms=interval_ms)
    for _ in range(4):
        one.send((0, b"a"))

    assert scripted.asked == asked


@pytest.mark.parametrize(
    ("topics", "codec"), [("", 2), ("t,u", 2), ("u", 0)], ids=["all", "listed", "another"]
)
def test_codec_is_for_the_topics_in_the_list(scripted, clocked, topics, codec):
    clocked(compression_codec="snappy", compressed_topics=topics).send((0, b"a"), (0, b"b"))

    (first, *_) = MessageSet(scripted.sets[0]).shallow()
    assert first.message.compression_codec == codec
    assert scripted.all_written() == [b"a", b"b"]


def test_nothing_is_awaited_with_acks_0(scripted, clocked):
    scripted.codes = [{0: 7}]
    one = clocked(request_required_acks=0)
    one.send((0, b"a"))

    assert one.pauses == []


def test_brokers_that_cannot_be_reached_are_named():
    config = ProducerConfig(metadata_broker_list="127.0.0.1:1", message_send_max_retries=0)
    one = Clocked(config)
    with pytest.raises(FailedToSendMessage, match=r"no broker could be reached: 127\.0\.0\.1:1"):
        one.send((0, b"a"))
    with pytest.raises(UnreachableError):
        one.view.partitions("t")


def test_connection_to_a_broker_that_moved_is_replaced(scripted, clocked):
    one = clocked()
    one.send((0, b"a"))
    with Scripted().broker as other:
        scripted.broker.port = other.port
        one.view.update(["t"])
        assert one.view.producer(0).port == other.port


# -- Producer and event handlers


def test_sync_producer_sends_what_it_is_given_at_once(scripted):
    with Producer(config_of(scripted, serializer_class="StringEncoder")) as producer:
        producer.send(KeyedMessage("t", "k", "v"), [KeyedMessage("t", "k", "w")])
        assert scripted.all_written() == [b"v", b"w"]
        assert producer.stats.messages == 2
    with pytest.raises(ProducerClosed):
        producer.send(KeyedMessage("t", "v"))
    producer.close()


def test_message_that_cannot_be_encoded_ends_the_call_before_anything_is_sent(scripted):
    with Producer(config_of(scripted)) as producer:
        with pytest.raises(SerializationFailed, match="topic t cannot be encoded: bytes, and not"):
            producer.send(KeyedMessage("t", b"v"), KeyedMessage("t", "text"))
        assert scripted.written == []
        assert producer.stats.serialization_errors == 1


def test_own_event_handler_sends_what_it_wants(scripted):
    calls: list[Any] = []

    class Doubling(EventHandler):
        def init(self, config):
            calls.append(config["client.id"])

        def handle(self, events, producer, encoder):
            producer.dispatch(
                Outgoing(one.topic, None, 1, encoder.to_message(one.message * 2)) for one in events
            )

        def close(self):
            calls.append("closed")

    with Producer(config_of(scripted, client_id="me"), event_handler=Doubling()) as producer:
        producer.send(KeyedMessage("t", b"v"))

    assert scripted.written == [("t", 1, [b"vv"])]
    assert calls == ["me", "closed"]


def test_settings_are_given_once(scripted):
    with pytest.raises(TypeError, match="or as keywords"):
        Producer(config_of(scripted), client_id="x")
