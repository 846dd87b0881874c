"""Connections to servers that are no proper broker, and to one that wants to know who comes."""

from __future__ import annotations

import struct
import time
from typing import Any

import pytest
from doubles.fake_broker import FakeBroker, sasl_answers

from kbroker.client.cluster import Cluster
from kbroker.client.errors import (
    AuthenticationFailed,
    ClientError,
    ProtocolViolation,
    Timeout,
    UnreachableError,
    UnsupportedByBroker,
)
from kbroker.client.security import Security
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.metadata import MetadataRequest

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
    return Cluster(bootstrap, Security.from_options(options), deadline=5)


def on_the_wire(mechanism: str) -> str:
    return NAME if mechanism == "PLAIN" else NAME.replace("=", "=3D").replace(",", "=2C")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_client_says_who_it_is_before_anything_else(mechanism):
    answers = sasl_answers(mechanism, on_the_wire(mechanism), PASSWORD)
    with FakeBroker(answers) as broker, secured(broker.bootstrap, mechanism) as cluster:
        assert cluster.topics() == {}

        kinds = [type(request).__name__ for request in broker.requests]
    assert kinds[:2] == ["ApiVersionsRequest", "SaslHandshakeRequest"]
    assert kinds[-1] == "MetadataRequest"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wrong_password_is_told_at_once(mechanism):
    answers = sasl_answers(mechanism, on_the_wire(mechanism), PASSWORD)
    began = time.monotonic()

    with FakeBroker(answers) as broker, pytest.raises(AuthenticationFailed) as caught:
        secured(broker.bootstrap, mechanism, "wrong").topics()

    assert "wrong user or password" in str(caught.value)
    assert time.monotonic() - began < 2, "it is not tried again"


def test_mechanism_that_is_not_offered_is_told_with_those_that_are():
    answers = sasl_answers("PLAIN", NAME, PASSWORD)

    with FakeBroker(answers) as broker, pytest.raises(AuthenticationFailed, match="but PLAIN"):
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
        pytest.raises((ProtocolViolation, UnreachableError), match=r"no Kafka answer"),
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
    assert time.monotonic() - began < 3


def test_broker_that_says_nothing_is_waited_for_no_longer_than_the_deadline():
    silent = FakeBroker({ApiKey.API_VERSIONS: lambda request, state: b""})
    began = time.monotonic()

    with silent, pytest.raises((Timeout, UnreachableError)):
        Cluster(silent.bootstrap, deadline=0.5).topics()

    assert time.monotonic() - began < 2


def test_broker_of_old_is_asked_in_its_versions():
    old = {ApiKey.API_VERSIONS: (0, 0), ApiKey.METADATA: (0, 1)}
    with FakeBroker(versions=old) as broker, Cluster(broker.bootstrap, deadline=2) as cluster:
        assert cluster.topics() == {}
        with pytest.raises(UnsupportedByBroker, match="FIND_COORDINATOR"):
            cluster.call_coordinator("g", 0, MetadataRequest(), lambda answer: 0, what="x")


def test_connection_that_ends_before_the_answer_is_made_again():
    def flaky(request: Any, state: dict[str, Any]) -> Any:
        calls.append(request)
        return broker.metadata(request, state) if len(calls) > 2 else None

    calls: list[Any] = []
    with FakeBroker({ApiKey.METADATA: flaky}) as broker, Cluster(broker.bootstrap) as cluster:
        assert cluster.topics() == {}
    assert len(calls) == 3
