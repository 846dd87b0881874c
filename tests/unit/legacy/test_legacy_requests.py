"""Requests and responses of the clients of 0.8, on a broker with scripted responses."""

from __future__ import annotations

import socket

import pytest
from support.brokers.fake_broker import FakeBroker

import kbroker.legacy as legacy
from kbroker.client.errors import ConnectionLost, RejectedError, SettingRefused, Timeout
from kbroker.errors import ErrorCode
from kbroker.legacy import (
    ConsumerMetadataRequest,
    FetchRequest,
    FetchRequestBuilder,
    MessageSet,
    ProducerRequest,
    SyncProducer,
    TopicMetadataRequest,
)
from kbroker.legacy.channel import VERSIONS
from kbroker.legacy.fetching import FetchResponse, FetchResponsePartition, merged
from kbroker.legacy.offset_channel import OffsetChannel
from kbroker.legacy.offset_requests import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetRequest,
)
from kbroker.legacy.simple_consumer import SimpleConsumer
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.fetch import FetchResponse as FetchMessage
from kbroker.protocol.messages.find_coordinator import FindCoordinatorResponse
from kbroker.protocol.messages.list_offsets import ListOffsetsResponse
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.protocol.messages.offset_commit import OffsetCommitResponse
from kbroker.protocol.messages.offset_fetch import OffsetFetchResponse
from kbroker.protocol.messages.produce import ProduceResponse

pytestmark = pytest.mark.unit

KEY = ("t", 0)


def fetched(request, state):
    rows = [
        FetchMessage.FetchableTopicResponse(
            topic=topic.topic,
            partitions=[
                FetchMessage.PartitionData(
                    partition_index=row.partition,
                    error_code=ErrorCode.OFFSET_OUT_OF_RANGE if row.fetch_offset > 9 else 0,
                    high_watermark=9,
                    records=MessageSet.of([b"%d" % row.fetch_offset]).data,
                )
                for row in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return FetchMessage(responses=rows)


def produced(request, state):
    if request.acks == 0:
        return b""
    rows = [
        ProduceResponse.TopicProduceResponse(
            name=topic.name,
            partition_responses=[
                ProduceResponse.PartitionProduceResponse(
                    index=row.index, base_offset=7, error_code=6 * (row.index > 0)
                )
                for row in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]
    return ProduceResponse(responses=rows)


def consumer_of(broker: FakeBroker, **options) -> SimpleConsumer:
    return SimpleConsumer("127.0.0.1", broker.port, client_id="me", **options)


def producer_of(broker: FakeBroker, **settings) -> SyncProducer:
    return SyncProducer("127.0.0.1", broker.port, settings)


def test_requests_have_the_versions_of_0_8_2_and_nothing_is_negotiated():
    with FakeBroker({ApiKey.FETCH: fetched}) as broker, consumer_of(broker) as consumer:
        consumer.fetch(FetchRequest("t", 0, 3, 100))

        assert broker.headers == [(ApiKey.FETCH, 0)]
    assert {key: last for key, (_, last) in VERSIONS.items() if last} == {
        ApiKey.OFFSET_COMMIT: 1,
        ApiKey.OFFSET_FETCH: 1,
        ApiKey.SASL_HANDSHAKE: 1,
        ApiKey.SASL_AUTHENTICATE: 1,
    }


def test_fetches_of_several_partitions_are_built():
    builder = FetchRequestBuilder().client_id("them").max_wait(10).min_bytes(2)
    request = builder.add_fetch("t", 0, 3, 100).add_fetch("u", 1, 10, 200).build()
    with FakeBroker({ApiKey.FETCH: fetched}) as broker, consumer_of(broker) as consumer:
        response = consumer.fetch(request)
        sent = broker.requests[0]

    assert (sent.replica_id, sent.max_wait_ms, sent.min_bytes) == (-1, 10, 2)
    rows = [(topic.topic, row) for topic in sent.topics for row in topic.partitions]
    assert [
        (topic, row.partition, row.fetch_offset, row.partition_max_bytes) for topic, row in rows
    ] == [("t", 0, 3, 100), ("u", 1, 10, 200)]
    assert response.has_error
    assert (response.error_code("t", 0), response.error_code("u", 1)) == (0, 1)
    assert [m.payload for m, _ in response.message_set("t", 0)] == [b"3"]
    assert response.high_watermark("t", 0) == 9
    assert [m.payload for m, _ in response] == [b"3", b"10"]
    with pytest.raises(RejectedError, match="fetch of u-1: OFFSET_OUT_OF_RANGE"):
        response.raise_for_error()
    with pytest.raises(KeyError, match="v-0"):
        response.message_set("v", 0)
    assert builder.build().rows == {}
    assert "OFFSET_OUT_OF_RANGE" in repr(response)
    assert "('u', 1)" in repr(request)


def test_multifetch_is_one_request_unless_a_partition_is_in_two():
    asked = [FetchRequest("t", 0, 1, 9, max_wait=5), FetchRequest("t", 1, 2, 9, min_bytes=1)]
    with FakeBroker({ApiKey.FETCH: fetched}) as broker, consumer_of(broker) as consumer:
        found = consumer.multifetch(asked)
        assert [m.payload for one in found for m, _ in one] == [b"1", b"2"]
        assert [list(one.data) for one in found] == [[("t", 0)], [("t", 1)]]
        assert len(broker.requests) == 1

        again = consumer.multifetch([*asked, FetchRequest("t", 0, 5, 9)])
        assert [m.payload for one in again for m, _ in one] == [b"1", b"2", b"5"]
        assert len(broker.requests) == 4
    whole = merged(asked)
    assert whole is not None
    assert (whole.max_wait, whole.min_bytes) == (5, 1)


def test_request_that_fails_is_sent_again_once_through_another_connection():
    """As in 0.8.2: a broker that was restarted is noticed by nobody."""
    left = [None, None, None]

    def sometimes(request, state):
        return left.pop() if left else fetched(request, state)

    with FakeBroker({ApiKey.FETCH: sometimes}) as broker, consumer_of(broker) as consumer:
        with pytest.raises(ConnectionLost):
            consumer.fetch(FetchRequest("t", 0, 1, 9))
        assert [m.payload for m, _ in consumer.fetch(FetchRequest("t", 0, 1, 9))] == [b"1"]
        assert broker.connections == 4


def test_consumer_waits_so_timeout_and_not_longer():
    with FakeBroker({ApiKey.FETCH: lambda request, state: b""}) as broker:
        with consumer_of(broker, so_timeout=50) as consumer, pytest.raises(Timeout):
            consumer.fetch(FetchRequest("t", 0, 1, 9, max_wait=10))
        assert broker.connections == 2


def test_buffers_of_the_socket_and_the_name_are_those_of_the_settings():
    with FakeBroker({ApiKey.FETCH: fetched}) as broker:
        with consumer_of(broker, buffer_size=10_000) as consumer:
            consumer.fetch(FetchRequest("t", 0, 1, 9))
            made = consumer._line._channel._socket
            # Linux doubles what is set.
            assert made.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 20_000
    with FakeBroker({ApiKey.PRODUCE: produced}) as broker:
        with producer_of(broker, **{"send.buffer.bytes": 30_000, "client.id": "us"}) as producer:
            producer.send("t", 0, MessageSet.of([b"x"]))
            channel = producer._line._channel
            assert channel._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 60_000
            assert channel.stream.client_id == "us"


def test_metadata_names_leaders_replicas_and_errors():
    row = MetadataResponse.MetadataResponsePartition
    topic = MetadataResponse.MetadataResponseTopic(
        name="t",
        partitions=[
            row(partition_index=1, leader_id=-1, replica_nodes=[5, 6], isr_nodes=[], error_code=5),
            row(partition_index=0, leader_id=5, replica_nodes=[5, 6], isr_nodes=[5]),
        ],
    )
    broker_row = MetadataResponse.MetadataResponseBroker(node_id=5, host="h", port=9)
    answer = MetadataResponse(brokers=[broker_row], topics=[topic])
    with FakeBroker({ApiKey.METADATA: lambda request, state: answer}) as broker:
        with consumer_of(broker) as consumer:
            (found,) = consumer.topic_metadata(["t"])
        with producer_of(broker) as producer:
            assert producer.send(TopicMetadataRequest(["t"])).topics_metadata == [found]

    first, second = found.partitions_metadata
    assert first.leader == (5, "h", 9)
    assert first.replicas == first.isr == [first.leader]
    assert (second.leader, second.error_code) == (None, 5)


def test_offsets_before_a_time_come_in_both_forms():
    def offsets(request, state):
        (topic,) = request.topics
        rows = [
            ListOffsetsResponse.ListOffsetsPartitionResponse(
                partition_index=row.partition_index,
                error_code=3 * row.partition_index,
                old_style_offsets=[9, 4, 0][: row.max_num_offsets],
            )
            for row in topic.partitions
        ]
        found = ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=rows)
        return ListOffsetsResponse(topics=[found])

    with FakeBroker({ApiKey.LIST_OFFSETS: offsets}) as broker, consumer_of(broker) as consumer:
        assert consumer.get_offsets_before("t", 0, legacy.LATEST_TIME, 2) == [9, 4]
        assert consumer.earliest_or_latest_offset("t", 0, legacy.EARLIEST_TIME) == 9
        assert broker.requests[1].topics[0].partitions[0].timestamp == -2
        response = consumer.get_offsets_before(OffsetRequest({KEY: (-1, 9), ("t", 1): (5, 1)}))
        assert response.has_error
        assert (response.error_code("t", 0), response.error_code("t", 1)) == (0, 3)
        assert response.offsets("t", 0) == [9, 4, 0]
        with pytest.raises(RejectedError, match="offsets of t-1"):
            consumer.get_offsets_before("t", 1, -1, 1)


def committed(request, state):
    (topic,) = request.topics
    if hasattr(topic, "partition_indexes"):
        row = OffsetFetchResponse.OffsetFetchResponsePartition
        known = {0: row(committed_offset=8, metadata="m"), 1: row(committed_offset=-1),
                 2: row(committed_offset=-1, error_code=3)}  # fmt: skip
        rows = []
        for number in topic.partition_indexes:
            known[number].partition_index = number
            rows.append(known[number])
        found = OffsetFetchResponse.OffsetFetchResponseTopic(name=topic.name, partitions=rows)
        return OffsetFetchResponse(topics=[found])
    rows = [
        OffsetCommitResponse.OffsetCommitResponsePartition(
            partition_index=one.partition_index, error_code=16 * one.partition_index
        )
        for one in topic.partitions
    ]
    found = OffsetCommitResponse.OffsetCommitResponseTopic(name=topic.name, partitions=rows)
    return OffsetCommitResponse(topics=[found])


GROUP_CALLS = {ApiKey.OFFSET_COMMIT: committed, ApiKey.OFFSET_FETCH: committed}


@pytest.mark.parametrize("version", [legacy.IN_ZOOKEEPER, legacy.IN_BROKERS])
def test_offsets_of_groups_are_committed_and_fetched_in_either_place(version):
    with FakeBroker(GROUP_CALLS) as broker, consumer_of(broker) as consumer:
        consumer.commit_offsets("g", {KEY: 5}, "words", version=version)
        row = broker.requests[0].topics[0].partitions[0]
        assert (row.committed_offset, row.committed_metadata) == (5, "words")
        found = consumer.fetch_offsets("g", [KEY, ("t", 1), ("t", 2)], version=version)
        assert found == {KEY: (8, "m", 0)}
        assert [header[1] for header in broker.headers] == [version, version]

        request = OffsetCommitRequest("g", {KEY: (5, "x"), ("t", 1): 6}, version)
        response = consumer.commit_offsets(request)
        assert response.has_error
        assert (response.error_code("t", 0), response.error_code("t", 1)) == (0, 16)
        with pytest.raises(RejectedError, match="t-1: NOT_COORDINATOR"):
            response.raise_for_error()
        every = consumer.fetch_offsets(OffsetFetchRequest("g", [KEY, ("t", 2)], version))
        assert every.offsets == {KEY: (8, "m", 0), ("t", 2): (-1, "", 3)}


def test_coordinator_is_found_and_its_absence_is_an_error_with_correlation_id_0():
    """Brokers of 0.8.2 respond so while they create the topic of offsets."""
    found = FindCoordinatorResponse(node_id=3, host="h", port=4)

    def coordinator(request, state):
        if request.key == "none":
            return b"\0\0\0\x10" + bytes(4) + b"\0\x0f" + b"\xff\xff\xff\xff" + bytes(6)
        return found

    with FakeBroker({ApiKey.FIND_COORDINATOR: coordinator}) as broker:
        with consumer_of(broker) as consumer:
            assert consumer.find_coordinator("g") == (3, "h", 4)
            with pytest.raises(RejectedError, match="COORDINATOR_NOT_AVAILABLE"):
                consumer.find_coordinator("none")
            assert consumer.send(ConsumerMetadataRequest("none")) == (None, 15)


def test_offset_channel_finds_the_coordinator_and_repeats_what_may_be_repeated():
    codes = [15, 0]
    told: list[float] = []
    errors = [14, 16]

    def coordinator(request, state):
        code = codes.pop(0) if codes else 0
        return FindCoordinatorResponse(
            error_code=code, node_id=1, host="127.0.0.1", port=broker.port
        )

    def loading(request, state):
        response = committed(request, state)
        for row in response.topics[0].partitions:
            row.error_code = errors.pop(0) if errors else 0
        return response

    calls = {
        ApiKey.FIND_COORDINATOR: coordinator,
        ApiKey.OFFSET_FETCH: loading,
        ApiKey.OFFSET_COMMIT: loading,
    }
    with FakeBroker(calls) as broker:
        places = lambda: [("127.0.0.1", broker.port)]  # noqa: E731
        with OffsetChannel("g", places, backoff_ms=200, sleep=told.append) as channel:
            assert channel.fetch([KEY]) == {KEY: (8, "m", 0)}
            assert told == [0.2] * 3
            errors[:] = [16, 16]
            with pytest.raises(RejectedError, match="NOT_COORDINATOR"):
                channel.commit({KEY: 4}, retries=1)
            errors[:] = [16]
            channel.commit({KEY: 4}, retries=1)
            errors[:] = [12]  # OFFSET_METADATA_TOO_LARGE stays
            with pytest.raises(RejectedError, match="OFFSET_METADATA_TOO_LARGE"):
                channel.commit({KEY: 4}, retries=5)
            assert (channel.fetch([]), channel.commit({})) == ({}, None)


def test_sync_producer_returns_the_offset_or_raises_the_error_of_the_partition():
    with FakeBroker({ApiKey.PRODUCE: produced}) as broker:
        with producer_of(broker, **{"request.required.acks": -1}) as producer:
            assert producer.send("t", 0, MessageSet.of([b"x"])) == 7
            with pytest.raises(RejectedError, match="produce to t-1: NOT_LEADER"):
                producer.send("t", 1, MessageSet.of([b"x"]))
            data = {KEY: MessageSet.of([b"x"]), ("t", 1): MessageSet.of([b"y"])}
            response = producer.send(ProducerRequest(data, ack_timeout_ms=77))
            assert response.has_error
            assert response.status == {KEY: (0, 7), ("t", 1): (6, 7)}
            sent = broker.requests
            assert [(one.acks, one.timeout_ms) for one in sent] == [(-1, 10000)] * 2 + [(-1, 77)]


def test_sync_producer_expects_no_response_with_acks_0():
    with FakeBroker({ApiKey.PRODUCE: produced}) as broker, producer_of(broker) as producer:
        assert producer.send("t", 1, MessageSet.of([b"x"])) is None
        request = ProducerRequest({KEY: MessageSet.of([b"y"])}, required_acks=1)
        assert producer.send(request).status == {KEY: (0, 7)}
        assert broker.connections == 1


def test_sync_producer_sends_nothing_twice():
    answers = [None, produced]

    def once(request, state):
        answer = answers.pop(0)
        return answer(request, state) if answer else None

    with FakeBroker({ApiKey.PRODUCE: once}) as broker:
        with producer_of(broker, **{"request.required.acks": 1}) as producer:
            with pytest.raises(ConnectionLost):
                producer.send("t", 0, MessageSet.of([b"x"]))
            assert producer.send("t", 0, MessageSet.of([b"x"])) == 7
            assert broker.connections == 2


def test_wrong_settings_and_arguments_are_named():
    with pytest.raises(SettingRefused, match=r"did you mean request\.required\.acks"):
        SyncProducer("h", 1, {"request.requred.acks": 1})
    producer = SyncProducer("h", 1, request_timeout_ms=5)
    assert producer.ack_timeout_ms == 5
    with pytest.raises(TypeError, match="topic, partition, message_set"):
        producer.send("t", 0)
    for wrong in (lambda: TopicMetadataRequest("t"), lambda: SimpleConsumer("h", 1).send("t")):
        with pytest.raises(TypeError):
            wrong()
    for wrong in (
        lambda: TopicMetadataRequest([], 1),
        lambda: OffsetRequest({}, 1),
        lambda: OffsetFetchRequest("g", [], 2),
        lambda: OffsetCommitRequest("g", {}, 7),
    ):
        with pytest.raises(ValueError, match="version"):
            wrong()


def test_responses_without_errors_raise_none():
    FetchResponse({KEY: FetchResponsePartition(0, 1, MessageSet())}).raise_for_error()


def test_names_of_the_package_are_loaded_when_they_are_asked_for():
    for name in dir(legacy):
        assert getattr(legacy, name) is not None
    with pytest.raises(AttributeError, match="Nothing"):
        legacy.Nothing  # noqa: B018
