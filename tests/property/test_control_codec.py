"""Control requests and responses: value → wire → value in every version; impossible values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.running.examples import examples

from kbroker.cluster.control_requests import (
    ControlResponse,
    KnownPartition,
    LeaderAndIsr,
    LedPartition,
    LiveBroker,
    Sender,
    StoppedPartition,
    StopReplica,
    UpdateMetadata,
)
from kbroker.cluster.topic_ids import local_topic_id
from kbroker.errors import ErrorCode, WireError
from kbroker.peers.control_codec import (
    API_OF,
    from_wire,
    merged,
    response_from_wire,
    response_to_wire,
    sendable,
    to_wire,
)
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey, request_class, response_class

pytestmark = pytest.mark.property

CLUSTER = "a-cluster"
EPOCHS = st.integers(0, 2**31 - 1)
BROKERS = st.lists(st.integers(0, 2**31 - 1), max_size=4, unique=True)
KEYS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "x" * 249]), st.integers(0, 9_999)),
    unique=True,
    max_size=6,
).map(sorted)
CODES = st.sampled_from([ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.STALE_CONTROLLER_EPOCH])


def versions(api: ApiKey) -> Any:
    first, last = request_class(api).VERSIONS
    return st.integers(first, last)


def senders(version: int, first_with_epoch: int) -> Any:
    epochs = st.integers(-1, 2**63 - 1) if version >= first_with_epoch else st.just(-1)
    return st.builds(Sender, EPOCHS, EPOCHS, epochs)


def over_the_wire(request: Any, version: int) -> Any:
    data = codec.encode(to_wire(request, version), version)
    message = codec.decode_exact(request_class(API_OF[type(request)]), version, data)
    return from_wire(message, version, CLUSTER)


def response_over_the_wire(
    response: ControlResponse, request: Any, version: int
) -> ControlResponse:
    data = codec.encode(response_to_wire(response, request, version), version)
    message = codec.decode_exact(response_class(API_OF[type(request)]), version, data)
    return response_from_wire(message, request, version)


def topic_ids(draw: Any, keys: Any, is_on_the_wire: bool) -> dict[str, bytes]:
    """In versions without ids, both sides compute them."""
    ids = {}
    for name in {name for name, _ in keys}:
        ids[name] = local_topic_id(CLUSTER, name)
        if is_on_the_wire:
            ids[name] = draw(st.binary(min_size=16, max_size=16).filter(any))
    return ids


@settings(max_examples=examples(60))
@given(st.data())
def test_leader_and_isr_round_trips(data):
    version = data.draw(versions(ApiKey.LEADER_AND_ISR))
    keys = data.draw(KEYS)
    moves = BROKERS if version >= 3 else st.just([])
    is_new = st.booleans() if version >= 1 else st.just(False)
    partitions = [
        LedPartition(
            *key,
            data.draw(EPOCHS),
            data.draw(st.integers(-1, 2**31 - 1)),
            data.draw(EPOCHS),
            data.draw(BROKERS),
            data.draw(EPOCHS),
            data.draw(BROKERS),
            data.draw(is_new),
            data.draw(moves),
            data.draw(moves),
        )
        for key in keys
    ]
    ids = topic_ids(data.draw, keys, version >= 5)
    request = LeaderAndIsr(data.draw(senders(version, 2)), partitions, ids)

    assert over_the_wire(request, version) == request


@settings(max_examples=examples(60))
@given(st.data())
def test_update_metadata_round_trips(data):
    version = data.draw(versions(ApiKey.UPDATE_METADATA))
    keys = data.draw(KEYS)
    offline = BROKERS if version >= 4 else st.just([])
    partitions = [
        KnownPartition(
            *key,
            data.draw(EPOCHS),
            data.draw(st.integers(-2, 2**31 - 1)),
            data.draw(st.integers(-1, 2**31 - 1)),
            data.draw(BROKERS),
            data.draw(EPOCHS),
            data.draw(BROKERS),
            data.draw(offline),
        )
        for key in keys
    ]
    ids = topic_ids(data.draw, keys, version >= 7)
    brokers = data.draw(st.dictionaries(EPOCHS, live_brokers(version), max_size=4))
    request = UpdateMetadata(data.draw(senders(version, 5)), partitions, ids, brokers)

    assert over_the_wire(request, version) == request


def live_brokers(version: int) -> Any:
    """Version 0 has one address, versions below 3 have no listener names."""
    protocols = st.sampled_from(["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
    names = st.text(min_size=1, max_size=5)
    hosts = st.text(min_size=1, max_size=9)

    def endpoint(protocol: str, name: str, host: str, port: int) -> list[Any]:
        return [name if version >= 3 else protocol, host, port, protocol]

    one = st.builds(
        endpoint,
        protocols if version else st.just("PLAINTEXT"),
        names,
        hosts,
        st.integers(1, 65_535),
    )
    size = (0, 3) if version else (1, 1)
    rack = st.none() | names if version >= 2 else st.none()
    return st.builds(LiveBroker, st.lists(one, min_size=size[0], max_size=size[1]), rack)


@settings(max_examples=examples(60))
@given(st.data())
def test_stop_replica_round_trips_in_as_many_requests_as_the_version_needs(data):
    version = data.draw(versions(ApiKey.STOP_REPLICA))
    epochs = st.integers(-2, 2**31 - 1) if version >= 3 else st.just(-1)
    partitions = [
        StoppedPartition(*key, data.draw(epochs), data.draw(st.booleans()))
        for key in data.draw(KEYS)
    ]
    request = StopReplica(data.draw(senders(version, 1)), partitions)

    sent = sendable(request, version)

    read = [over_the_wire(part, version) for part in sent]
    assert {one.sender for one in read} <= {request.sender}
    assert sorted(one for part in read for one in part.partitions) == sorted(partitions)
    assert len(sent) <= (1 if version >= 3 else 2)


@settings(max_examples=examples(60))
@given(st.data())
def test_responses_round_trip(data):
    kind = data.draw(st.sampled_from([LeaderAndIsr, UpdateMetadata, StopReplica]))
    version = data.draw(versions(API_OF[kind]))
    keys = data.draw(KEYS)
    sender, ids = Sender(1, 2), {name: local_topic_id(CLUSTER, name) for name, _ in keys}
    request: Any
    if kind is LeaderAndIsr:
        told = [LedPartition(*key, 2, 1, 0, [1], 0, [1]) for key in keys]
        request = LeaderAndIsr(sender, told, ids)
    elif kind is UpdateMetadata:
        request = UpdateMetadata(sender, [], ids, {})
    else:
        request = StopReplica(sender, [StoppedPartition(*key, 0, True) for key in keys])
    codes = {key: data.draw(CODES) for key in keys if data.draw(st.booleans())}
    if kind is UpdateMetadata:
        codes = {}
    error = ErrorCode.NONE if codes else data.draw(st.just(ErrorCode.NONE) | CODES)
    response = ControlResponse(error, codes)

    assert response_over_the_wire(response, request, version) == response


def test_responses_name_what_succeeded():
    """A controller takes a replica for deleted, or for online, if the response says so."""
    request = StopReplica(Sender(1, 2), [StoppedPartition("t", 0, -2, True)])

    message: Any = response_to_wire(ControlResponse(), request, 3)

    (entry,) = message.partition_errors
    assert (entry.topic_name, entry.partition_index, entry.error_code) == ("t", 0, 0)


def test_code_of_a_later_kafka_is_an_unknown_error():
    request = UpdateMetadata(Sender(1, 2), [], {}, {})

    response = response_from_wire(response_class(6)(error_code=999), request, 6)

    assert response.error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_merged_response_has_the_first_error_and_all_partitions():
    stale, down = ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.KAFKA_STORAGE_ERROR
    answers = [ControlResponse(partitions={("a", 0): down}), ControlResponse(stale)]

    assert merged(answers) == ControlResponse(stale, {("a", 0): down})
    assert merged([]) == ControlResponse()


LED = LedPartition("t", 0, 2, 1, 0, [1], 0, [1])
KNOWN = KnownPartition("t", 0, 2, 1, 0, [1], 0, [1])
STOPPED = StoppedPartition("t", 0, -2, True)
HERE = LiveBroker([["PLAINTEXT", "host", 9092, "PLAINTEXT"]], None)


def leader_and_isr(**changed: Any) -> LeaderAndIsr:
    return LeaderAndIsr(Sender(1, 2), [LED._replace(**changed)], {})


def update_metadata(**changed: Any) -> UpdateMetadata:
    return UpdateMetadata(Sender(1, 2), [KNOWN._replace(**changed)], {}, {1: HERE})


def with_address(host: str, port: int) -> UpdateMetadata:
    there = LiveBroker([["PLAINTEXT", host, port, "PLAINTEXT"]], None)
    return UpdateMetadata(Sender(1, 2), [], {}, {1: there})


@pytest.mark.parametrize(
    "request_",
    [
        leader_and_isr(topic=""),
        leader_and_isr(topic=".."),
        leader_and_isr(topic="../../etc/x"),
        leader_and_isr(topic="a\0b"),
        leader_and_isr(topic="x" * 250),
        leader_and_isr(partition=-1),
        leader_and_isr(partition=100_000),
        leader_and_isr(partition=2**31 - 1),
        leader_and_isr(leader_epoch=-1),
        leader_and_isr(leader=-2),
        leader_and_isr(partition_epoch=-1),
        leader_and_isr(replicas=[1, -1]),
        leader_and_isr(replicas=[1, 1]),
        leader_and_isr(isr=[1, 1]),
        leader_and_isr(adding_replicas=[-7]),
        LeaderAndIsr(Sender(1, 2), [LED, LED._replace(leader_epoch=5)], {}),
        update_metadata(topic="a/b"),
        update_metadata(partition=-1),
        update_metadata(partition=2**31 - 1),
        update_metadata(leader=-3),
        update_metadata(offline_replicas=[-1]),
        UpdateMetadata(Sender(1, 2), [KNOWN, KNOWN], {}, {}),
        UpdateMetadata(Sender(1, 2), [], {}, {-1: HERE}),
        with_address("", 9092),
        with_address("host", 0),
        with_address("host", 65_536),
        with_address("host", -1),
        StopReplica(Sender(1, 2), [STOPPED, STOPPED]),
        StopReplica(Sender(1, 2), [STOPPED._replace(topic="..")]),
        StopReplica(Sender(1, 2), [STOPPED._replace(partition=-2)]),
        StopReplica(Sender(1, 2), [STOPPED._replace(leader_epoch=-3)]),
    ],
)
def test_impossible_value_rejects_the_whole_request(request_):
    version = {LeaderAndIsr: 4, UpdateMetadata: 6, StopReplica: 3}[type(request_)]

    with pytest.raises(WireError) as caught:
        over_the_wire(request_, version)

    assert caught.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("number", [-1, 4, 2**15 - 1])
def test_unknown_security_protocol_is_impossible(number):
    message: Any = to_wire(with_address("host", 1), 6)
    message.live_brokers[0].endpoints[0].security_protocol = number

    with pytest.raises(WireError, match="security protocol"):
        from_wire(message, 6, CLUSTER)


def test_local_topic_id_depends_on_cluster_and_name():
    """Every broker of a cluster must compute the same bytes."""
    assert local_topic_id("c", "t").hex() == "3069da28910884bc9ded0036ecd6fed2"
    assert len({local_topic_id(c, t) for c in "ab" for t in "ab"}) == 4
