"""Control requests from the wire: what hosting gets, and the responses."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kbroker.cluster.control_requests import (
    ControlRequest,
    ControlResponse,
    KnownPartition,
    LeaderAndIsr,
    LedPartition,
    Sender,
    StoppedPartition,
    StopReplica,
    UpdateMetadata,
)
from kbroker.cluster.topic_ids import local_topic_id
from kbroker.errors import ErrorCode, WireError
from kbroker.hosting import control_server
from kbroker.hosting.control_server import ControlServer
from kbroker.ipc.calls import ControlMessage
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.peers.control_codec import API_OF, response_from_wire, to_wire
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey, response_class

pytestmark = pytest.mark.unit

NETWORK = Address(ProcessKind.NETWORK, 0)
CLUSTER = "a-cluster"
SENDER = Sender(9, 5, 100)
LED = LedPartition("t", 0, 5, 0, 3, [0, 1], 7, [0, 1], True, [], [])
IDS = {"t": local_topic_id(CLUSTER, "t")}


class Hosts:
    """Records requests; ``answer`` is returned for all of them."""

    def __init__(self, answer: ControlResponse = ControlResponse()) -> None:
        self.taken: list[ControlRequest] = []
        self.answer = answer
        self.pauses: list[Pending[None]] = []

    def take(self, request: ControlRequest) -> Pending[ControlResponse]:
        self.taken.append(request)
        done: Pending[ControlResponse] = Pending()
        done.resolve(self.answer)
        return done

    def sleep(self, delay_ms: int) -> Pending[None]:
        self.pauses.append(Pending())
        return self.pauses[-1]


def message(request: Any, version: int) -> ControlMessage:
    body = codec.encode(to_wire(request, version), version)
    return ControlMessage(API_OF[type(request)], version, body)


def serve(hosts: Hosts, asked: ControlMessage) -> Any:
    outcome = run(ControlServer(hosts, CLUSTER, hosts.sleep).serve(NETWORK, asked))
    while not outcome.done:
        hosts.pauses[-1].resolve()
    return outcome


def answer_of(hosts: Hosts, request: Any, version: int) -> ControlResponse:
    outcome = serve(hosts, message(request, version))
    assert outcome.error is None, outcome.error
    decoded = codec.decode_exact(response_class(API_OF[type(request)]), version, outcome.value.body)
    return response_from_wire(decoded, request, version)


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (LeaderAndIsr(SENDER, [LED], IDS), 4),
        (UpdateMetadata(SENDER, [KnownPartition("t", 0, 5, 0, 3, [0], 7, [0], [])], IDS, {}), 6),
        (StopReplica(SENDER, [StoppedPartition("t", 0, 3, True)]), 3),
    ],
)
def test_request_reaches_hosting_as_the_controller_meant_it(request_, version):
    hosts = Hosts()

    assert answer_of(hosts, request_, version) == ControlResponse()
    assert hosts.taken == [request_]


def test_response_of_hosting_reaches_the_controller():
    answer = ControlResponse(partitions={("t", 0): ErrorCode.KAFKA_STORAGE_ERROR})

    assert answer_of(Hosts(answer), LeaderAndIsr(SENDER, [LED], IDS), 4) == answer


def test_stale_controller_is_told_so():
    answer = ControlResponse(ErrorCode.STALE_CONTROLLER_EPOCH)

    assert answer_of(Hosts(answer), LeaderAndIsr(SENDER, [LED], IDS), 4) == answer


def test_every_truncation_is_malformed_and_nothing_is_taken():
    hosts = Hosts()
    asked = message(LeaderAndIsr(SENDER, [LED], IDS), 4)

    for length in range(len(asked.body)):
        cut = ControlMessage(asked.api_key, asked.version, asked.body[:length])
        reply = serve(hosts, cut).value
        assert reply.body is None and "LeaderAndIsrRequest" in reply.reason

    assert hosts.taken == []


def test_impossible_request_is_rejected_and_logged(caplog):
    hosts = Hosts()
    bad = LeaderAndIsr(SENDER, [LED._replace(topic="../x")], {})

    with caplog.at_level(logging.WARNING):
        error = serve(hosts, message(bad, 4)).error

    assert isinstance(error, WireError) and error.code is ErrorCode.INVALID_REQUEST
    assert hosts.taken == []
    assert "rejected a LEADER_AND_ISR request (1 times): topic name '../x'" in caplog.text


def test_array_longer_than_the_request_is_malformed():
    body = codec.encode(to_wire(StopReplica(SENDER, []), 0), 0)[:-4] + b"\x7f\xff\xff\xff"

    reply = serve(Hosts(), ControlMessage(ApiKey.STOP_REPLICA, 0, body)).value

    assert reply.body is None and reply.reason


def test_topics_of_more_partitions_than_a_cluster_has_are_rejected():
    """An image also lists the partitions before a named one."""
    last = [StoppedPartition(f"t{n}", 99_999, 0, False) for n in range(3)]

    error = serve(Hosts(), message(StopReplica(SENDER, last), 3)).error

    assert isinstance(error, WireError) and "300000 partitions" in error.message


def test_long_request_is_decoded_in_slices(monkeypatch):
    """The process sends heartbeats in between."""
    monkeypatch.setattr(control_server, "SLICE_NS", 1)
    hosts = Hosts()
    partitions = [LED._replace(partition=number) for number in range(1000)]
    request = LeaderAndIsr(SENDER, partitions, IDS)

    assert answer_of(hosts, request, 4) == ControlResponse()
    assert hosts.taken == [request]
    assert len(hosts.pauses) > 10
