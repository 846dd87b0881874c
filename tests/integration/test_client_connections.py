"""Connections to servers that are not a proper broker, and to one with authentication."""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker, Respond, sasl_responses

from kbroker.client.batches import transactions
from kbroker.client.batches.fetch import RangeFetch
from kbroker.client.batches.offsets import LATEST, commit, committed, list_offsets, retention_of
from kbroker.client.batches.produce import BatchProducer
from kbroker.client.batches.transactions import ProducerIdentity
from kbroker.client.connections import cluster as cluster_module
from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.connections.security import Security
from kbroker.client.errors import (
    AuthenticationFailed,
    ClientError,
    ConnectionLost,
    ProtocolViolation,
    RejectedError,
    Timeout,
    TopicChanged,
    UnreachableError,
    UnsupportedByBroker,
)
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from kbroker.protocol.messages.describe_configs import DescribeConfigsResponse
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.find_coordinator import FindCoordinatorResponse
from kbroker.protocol.messages.init_producer_id import InitProducerIdResponse
from kbroker.protocol.messages.list_offsets import ListOffsetsResponse
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.protocol.messages.offset_commit import OffsetCommitResponse
from kbroker.protocol.messages.offset_fetch import OffsetFetchResponse
from kbroker.protocol.messages.produce import ProduceResponse
from kbroker.protocol.messages.txn_offset_commit import TxnOffsetCommitResponse
from kbroker.record.builder import BatchBuilder
from kbroker.record.compression import ZSTD
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
NAME, PASSWORD = "ali=ce,x", "pass,w=ord"


def secured(bootstrap: str, mechanism: str, password: str = PASSWORD) -> Cluster:
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": NAME,
        "sasl.password": password,
    }
    return Cluster(bootstrap, Security.from_options(options), deadline=30)


def on_the_wire(mechanism: str) -> str:
    return NAME if mechanism == "PLAIN" else NAME.replace("=", "=3D").replace(",", "=2C")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_client_says_who_it_is_before_anything_else(mechanism):
    answers = sasl_responses(mechanism, on_the_wire(mechanism), PASSWORD)
    with FakeBroker(answers) as broker, secured(broker.bootstrap, mechanism) as cluster:
        assert cluster.topics() == {}

        kinds = [type(request).__name__ for request in broker.requests]
    assert kinds[:2] == ["ApiVersionsRequest", "SaslHandshakeRequest"]
    assert kinds[-1] == "MetadataRequest"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wrong_password_is_told_at_once(mechanism):
    answers = sasl_responses(mechanism, on_the_wire(mechanism), PASSWORD)

    with FakeBroker(answers) as broker, pytest.raises(AuthenticationFailed) as caught:
        secured(broker.bootstrap, mechanism, "wrong").topics()

    assert "wrong user or password" in str(caught.value)
    kinds = [type(request).__name__ for request in broker.requests]
    assert kinds.count("SaslHandshakeRequest") == 1, "it is not tried again"


def test_mechanism_that_is_not_offered_is_told_with_those_that_are():
    answers = sasl_responses("PLAIN", NAME, PASSWORD)

    with FakeBroker(answers) as broker, pytest.raises(AuthenticationFailed, match="only PLAIN"):
        secured(broker.bootstrap, "SCRAM-SHA-256").topics()


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">i", -5),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">ii", 6, 99) + b"\0\0",
        struct.pack(">ii", 10, 1) + b"\0\0\x7f\xff\xff\xff",
    ],
    ids=["http", "negative", "short", "other-request", "false-count"],
)
def test_server_that_is_no_broker_is_found_out(data):
    with (
        FakeBroker({ApiKey.API_VERSIONS: lambda request, state: data}) as broker,
        pytest.raises((ProtocolViolation, UnreachableError), match=r"not a Kafka response"),
    ):
        Cluster(broker.bootstrap, deadline=0.5).topics()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (bytes.fromhex("15030300020246"), "the listener speaks TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a web server, or a proxy, responds"),
    ],
)
def test_other_protocol_is_told_by_its_name(data, told):
    """The message was "a frame of 352518912 bytes"."""
    with (
        FakeBroker({ApiKey.API_VERSIONS: lambda request, state: data}) as broker,
        pytest.raises((ProtocolViolation, UnreachableError), match=told),
    ):
        Cluster(broker.bootstrap, deadline=0.5).topics()


def test_length_that_is_false_costs_no_memory():
    def huge(request: Any, state: dict[str, Any]) -> bytes | None:
        if state.setdefault("sent", 0):
            return None
        state["sent"] = 1
        return struct.pack(">i", 0x7FFFFFFF) + b"\0" * 100

    with FakeBroker({ApiKey.METADATA: huge}) as broker:
        cluster = Cluster(broker.bootstrap, deadline=0.5)
        began = time.monotonic()
        with pytest.raises(ClientError):
            cluster.topics()
    assert time.monotonic() - began < 20, "a request may take 30 s, a call without a deadline 60"


def test_broker_that_says_nothing_is_waited_for_no_longer_than_the_deadline():
    silent = FakeBroker({ApiKey.API_VERSIONS: lambda request, state: b""})
    began = time.monotonic()

    with silent, pytest.raises((Timeout, UnreachableError)):
        Cluster(silent.bootstrap, deadline=0.5).topics()

    assert time.monotonic() - began < 20, "a request may take 30 s, a call without a deadline 60"


def test_broker_of_old_is_asked_in_its_versions():
    old = {ApiKey.API_VERSIONS: (0, 0), ApiKey.METADATA: (0, 1)}
    with FakeBroker(versions=old) as broker, Cluster(broker.bootstrap, deadline=30) as cluster:
        assert cluster.topics() == {}
        with pytest.raises(UnsupportedByBroker, match="FIND_COORDINATOR"):
            cluster.call_coordinator("g", 0, MetadataRequest(), lambda response: 0, what="x")


def test_coordinator_that_has_moved_is_asked_where_it_is_now():
    """The old coordinator was asked for as long as offsets are retained."""
    found = FindCoordinatorResponse
    config = DescribeConfigsResponse
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # it does not listen
        places = [(7, nobody.getsockname()[1])]

        def coordinator(request: Any, state: dict[str, Any]) -> Any:
            node, port = places.pop() if places else (0, broker.port)
            return found(node_id=node, host="127.0.0.1", port=port)

        def configs(request: Any, state: dict[str, Any]) -> Any:
            (asked,) = request.resources
            row = config.DescribeConfigsResourceResult(name="offsets.retention.minutes", value="5")
            assert asked.resource_name == "0"
            return config(results=[config.DescribeConfigsResult(configs=[row])])

        answers = {ApiKey.FIND_COORDINATOR: coordinator, ApiKey.DESCRIBE_CONFIGS: configs}
        with FakeBroker(answers) as broker, Cluster(broker.bootstrap) as cluster:
            assert retention_of(cluster, "g", deadline=10) == 300
    assert not places


def test_connection_that_ends_before_the_response_is_made_again():
    def flaky(request: Any, state: dict[str, Any]) -> Any:
        calls.append(request)
        return broker.metadata(request, state) if len(calls) > 2 else None

    calls: list[Any] = []
    with FakeBroker({ApiKey.METADATA: flaky}) as broker, Cluster(broker.bootstrap) as cluster:
        assert cluster.topics() == {}
    assert len(calls) == 3


def topic_row(name: str, leaders: Sequence[int], topic_id: bytes = bytes(16)) -> Any:
    rows = [
        MetadataResponse.MetadataResponsePartition(
            partition_index=number, leader_id=leader, replica_nodes=[leader], isr_nodes=[leader]
        )
        for number, leader in enumerate(leaders)
    ]
    return MetadataResponse.MetadataResponseTopic(name=name, topic_id=topic_id, partitions=rows)


def test_connection_that_the_broker_ends_is_closed():
    with FakeBroker({ApiKey.METADATA: lambda request, state: None}) as broker:
        deadline = time.monotonic() + 30
        connection = Connection("127.0.0.1", broker.port, deadline=deadline)
        with pytest.raises(ConnectionLost):
            connection.call(MetadataRequest(topics=[]), deadline)

    assert connection.closed


def test_leader_that_is_no_broker_any_more_is_waited_for_within_the_deadline():
    """While the leader of another partition has a request already."""

    def metadata(request: Any, state: dict[str, Any]) -> Any:
        response: Any = broker.metadata(request, state)
        if request.topics:
            response.topics = [topic_row("t", (0, 9))]
        return response

    def offsets(request: Any, state: dict[str, Any]) -> Any:
        row = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, offset=7)
        topic = ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=[row])
        return ListOffsetsResponse(topics=[topic])

    answers = {ApiKey.METADATA: metadata, ApiKey.LIST_OFFSETS: offsets}
    with FakeBroker(answers) as broker, Cluster(broker.bootstrap) as cluster:
        cluster.topics(["t"])
        cluster.close()  # so that the only connection is that to the first leader
        with pytest.raises(Timeout, match="no broker has that id"):
            list_offsets(cluster, {("t", 0): LATEST, ("t", 1): LATEST}, deadline=0.5)
        assert list_offsets(cluster, {("t", 0): LATEST})["t", 0].offset == 7


def test_coordinator_is_asked_where_it_is_now():
    def offsets(request: Any, state: dict[str, Any]) -> Any:
        row = OffsetFetchResponse.OffsetFetchResponsePartition(
            partition_index=0, committed_offset=5, metadata=""
        )
        topic = OffsetFetchResponse.OffsetFetchResponseTopic(name="t", partitions=[row])
        return OffsetFetchResponse(topics=[topic])

    def metadata(request: Any, state: dict[str, Any]) -> Any:
        row = MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=1)
        response: Any = broker.metadata(request, state)
        response.brokers = [*response.brokers, row]
        return response

    def coordinator(request: Any, state: dict[str, Any]) -> Any:
        return FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=moved.port)

    answers = {ApiKey.METADATA: metadata, ApiKey.FIND_COORDINATOR: coordinator}
    with FakeBroker({ApiKey.OFFSET_FETCH: offsets}) as moved, FakeBroker(answers) as broker:
        with Cluster(broker.bootstrap, deadline=30) as cluster:
            cluster.topics()
            assert committed(cluster, "g", [("t", 0)])["t", 0].offset == 5


def refused_rows(response: Any, topic: str, partition: str) -> Respond:
    """The second of two partitions is not authorized."""

    def refuse(request: Any, state: dict[str, Any]) -> Any:
        codes = {3: 0, 4: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        row, rows = getattr(response, partition), getattr(response, topic)
        partitions = [row(partition_index=n, error_code=int(code)) for n, code in codes.items()]
        return response(topics=[rows(name="t", partitions=partitions)])

    return refuse


@pytest.mark.parametrize("asked", ["read", "commit", "commit-in-transaction", "add"])
def test_partition_that_may_not_be_used_is_named(asked):
    """The error only named the group or the transaction, not the unauthorized topic."""

    def added(request: Any, state: dict[str, Any]) -> Any:
        cls = AddPartitionsToTxnResponse
        codes = {3: ErrorCode.OPERATION_NOT_ATTEMPTED, 4: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        rows = [
            cls.AddPartitionsToTxnPartitionResult(partition_index=n, partition_error_code=int(code))
            for n, code in codes.items()
        ]
        topic = cls.AddPartitionsToTxnTopicResult(name="t", results_by_partition=rows)
        return cls(results_by_topic_v3_and_below=[topic])

    def coordinator(request: Any, state: dict[str, Any]) -> Any:
        return FindCoordinatorResponse(node_id=0, host="127.0.0.1", port=broker.port)

    answers: dict[int, Respond] = {
        ApiKey.FIND_COORDINATOR: coordinator,
        ApiKey.ADD_PARTITIONS_TO_TXN: added,
    }
    for cls in (OffsetFetchResponse, OffsetCommitResponse, TxnOffsetCommitResponse):
        name = cls.__name__
        answers[cls.API_KEY] = refused_rows(cls, f"{name}Topic", f"{name}Partition")
    identity = ProducerIdentity("x", 1, 0, implicit=True)
    offsets = {("t", 3): (1, ""), ("t", 4): (1, "")}
    with FakeBroker(answers) as broker, Cluster(broker.bootstrap, deadline=30) as cluster:
        with pytest.raises(RejectedError, match=r": t-4: TOPIC_AUTHORIZATION_FAILED") as caught:
            if asked == "read":
                committed(cluster, "g", offsets)
            elif asked == "commit":
                commit(cluster, "g", offsets)
            elif asked == "add":
                transactions.add_partitions(cluster, identity, offsets)
            else:
                transactions.commit_offsets(cluster, identity, "g", offsets)
    assert caught.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_producer_that_may_write_nowhere_is_told_what_it_needs():
    """Kafka rejects its InitProducerId, with an error of the cluster that names no topic."""

    def refused(request: Any, state: dict[str, Any]) -> Any:
        return InitProducerIdResponse(error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))

    with FakeBroker({ApiKey.INIT_PRODUCER_ID: refused}) as broker:
        with Cluster(broker.bootstrap) as cluster, pytest.raises(RejectedError, match="Write on"):
            transactions.init_producer(cluster)


def test_zstd_is_refused_by_name_where_the_broker_does_not_know_it():
    """Kafka before 2.1 returns UNKNOWN_SERVER_ERROR."""

    def metadata(request: Any, state: dict[str, Any]) -> Any:
        response: Any = broker.metadata(request, state)
        response.topics = [topic_row("t", [0])]
        return response

    def failing(request: Any, state: dict[str, Any]) -> Any:
        cls = ProduceResponse
        row = cls.PartitionProduceResponse(index=0, error_code=-1)
        topic = cls.TopicProduceResponse(name="t", partition_responses=[row])
        return cls(responses=[topic])

    answers: dict[int, Respond] = {ApiKey.METADATA: metadata, ApiKey.PRODUCE: failing}
    versions = {int(key): key.versions for key in ApiKey if key < 40}
    versions[ApiKey.PRODUCE] = (0, 5)
    builder = BatchBuilder(ZSTD)
    builder.append(b"v", timestamp=1)
    with FakeBroker(answers, versions) as broker, Cluster(broker.bootstrap) as cluster:
        with (
            pytest.raises(RejectedError, match=r"t-0: .* before Kafka 2.1") as caught,
            BatchProducer(cluster, idempotent=False) as producer,
        ):
            producer.send("t", 0, bytearray(builder.build()), 1)
            producer.flush()
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_refused_batch_is_told_with_what_is_wrong_with_its_first_record():
    """Kafka 4 rejects timestamps an hour ahead: the limit is only in the record's error message."""

    def metadata(request: Any, state: dict[str, Any]) -> Any:
        response: Any = broker.metadata(request, state)
        response.topics = [topic_row("t", [0])]
        return response

    def refused(request: Any, state: dict[str, Any]) -> Any:
        cls = ProduceResponse
        told = "Timestamp 17 is out of range"
        row = cls.PartitionProduceResponse(
            index=0,
            error_code=int(ErrorCode.INVALID_TIMESTAMP),
            error_message="Some were rejected",
            record_errors=[
                cls.BatchIndexAndErrorMessage(batch_index=2, batch_index_error_message=told)
            ],
        )
        topic = cls.TopicProduceResponse(name="t", partition_responses=[row])
        return cls(responses=[topic])

    builder = BatchBuilder()
    builder.append(b"v", timestamp=17)
    answers: dict[int, Respond] = {ApiKey.METADATA: metadata, ApiKey.PRODUCE: refused}
    with FakeBroker(answers) as broker, Cluster(broker.bootstrap) as cluster:
        with (
            pytest.raises(RejectedError, match="Some were rejected: Timestamp 17 is out of range"),
            BatchProducer(cluster, idempotent=False) as producer,
        ):
            producer.send("t", 0, bytearray(builder.build()), 1)
            producer.flush()


def test_topic_that_is_gone_is_told_as_such():
    with FakeBroker() as broker, Cluster(broker.bootstrap) as cluster:
        with pytest.raises(RejectedError) as caught:
            list(RangeFetch(cluster, "t", 0, 0, 10, deadline=1.0))

    assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topic_recreated_is_read_where_the_old_one_was_heard_of_before():
    old, new = b"o" * 16, b"n" * 16
    ids = [old]

    def metadata(request: Any, state: dict[str, Any]) -> Any:
        response: Any = broker.metadata(request, state)
        response.topics = [topic_row("t", [0], ids[-1])]
        return response

    def fetch(request: Any, state: dict[str, Any]) -> Any:
        asked = request.topics[0].topic_id
        builder = BatchBuilder()
        builder.append(b"v", timestamp=1)
        row = FetchResponse.PartitionData(
            partition_index=0,
            error_code=0 if asked == ids[-1] else int(ErrorCode.UNKNOWN_TOPIC_ID),
            high_watermark=1,
            records=builder.build() if asked == ids[-1] else None,
        )
        topic = FetchResponse.FetchableTopicResponse(topic_id=asked, partitions=[row])
        return FetchResponse(responses=[topic])

    with FakeBroker({ApiKey.METADATA: metadata, ApiKey.FETCH: fetch}) as broker:
        for planned in (new, None):
            with Cluster(broker.bootstrap, deadline=30) as cluster:
                ids.append(old)
                cluster.topics(["t"])
                ids.append(new)
                (found,) = RangeFetch(cluster, "t", 0, 0, 1, topic_id=planned)
                assert found.next_offset == 1
                with pytest.raises(TopicChanged, match="planned"):
                    list(RangeFetch(cluster, "t", 0, 0, 1, topic_id=old))


@pytest.mark.parametrize("lifted", [True, False])
def test_reader_above_its_quota_waits_as_long_as_it_is_told(lifted):
    """Kafka responds without any partition, which was taken for a deleted topic."""

    def metadata(request: Any, state: dict[str, Any]) -> Any:
        response: Any = broker.metadata(request, state)
        response.topics = [topic_row("t", [0])]
        return response

    def fetch(request: Any, state: dict[str, Any]) -> Any:
        asked.append(time.monotonic())
        if len(asked) == 1 or not lifted:
            return FetchResponse(throttle_time_ms=200)
        builder = BatchBuilder()
        builder.append(b"v", timestamp=1)
        row = FetchResponse.PartitionData(high_watermark=1, records=builder.build())
        return FetchResponse(
            responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[row])]
        )

    asked: list[float] = []
    with FakeBroker({ApiKey.METADATA: metadata, ApiKey.FETCH: fetch}) as broker:
        with Cluster(broker.bootstrap) as cluster:
            reader = RangeFetch(cluster, "t", 0, 0, 1, deadline=30 if lifted else 1.5)
            if lifted:
                assert [one.next_offset for one in reader] == [1]
            else:
                with pytest.raises(Timeout, match="QUOTA"):
                    list(reader)
    assert len(asked) == 2 or not lifted
    assert min(then - one for one, then in itertools.pairwise(asked)) >= 0.2


def test_partitions_that_were_added_are_heard_of_in_time(monkeypatch):
    leaders = [0]

    def metadata(request: Any, state: dict[str, Any]) -> Any:
        response: Any = broker.metadata(request, state)
        response.topics = [topic_row("t", leaders)]
        return response

    with FakeBroker({ApiKey.METADATA: metadata}) as broker, Cluster(broker.bootstrap) as cluster:
        cluster.topic_to_write("t")
        leaders.append(0)
        assert len(cluster.topic_to_write("t").partitions) == 1
        monkeypatch.setattr(cluster_module, "_METADATA_AGE_S", 0.0)
        assert len(cluster.topic_to_write("t").partitions) == 2


def test_name_that_no_topic_may_have_is_refused_at_once_and_for_that(
    kbroker_broker: Broker,
) -> None:
    """It was retried until the timeout, and then unknown."""
    began = time.monotonic()

    with (
        Cluster(kbroker_broker.bootstrap) as cluster,
        pytest.raises(RejectedError, match="topic x y: INVALID_TOPIC_EXCEPTION"),
    ):
        cluster.topic_to_write("x y")

    assert time.monotonic() - began < 4
