"""Which requests are allowed before authentication, and which close the connection."""

from __future__ import annotations

import struct
from itertools import product

import pytest
from support.network.net_loop_harness import Harness, framed, produce, received, serving
from support.running.in_one import in_one

from kbroker._ext.network.connection import (
    AUTHENTICATING,
    FAILED,
    HANDSHAKE,
    SERVING,
    SESSION,
    TOKENS,
)
from kbroker.config.broker_keys import BROKER_KEYS
from kbroker.protocol.api import ApiKey
from kbroker.protocol.header import encode_request_header

pytestmark = pytest.mark.unit


@pytest.fixture
def harness():
    return Harness()


def request(key: ApiKey, version: int = 0) -> bytes:
    return framed(encode_request_header(key, version, 7, "me"))


ALLOWED = {
    HANDSHAKE: {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE},
    AUTHENTICATING: {ApiKey.SASL_AUTHENTICATE},
    FAILED: set(),
}


@in_one("phase key", product(ALLOWED, ApiKey), harness=Harness)
def test_phase_before_authentication_allows_its_own_requests_only(harness, phase, key):
    """A Produce or Fetch that is served here, or a commit that is forwarded undecoded, is rejected
    as well: the client has not been identified yet.
    """
    client = harness.connect(phase)

    client.send(request(key, version=1))
    harness.turn()

    if key in ALLOWED[phase]:
        assert [frame[:2] for _, frame in harness.dispatched] == [struct.pack(">h", key)]
        assert harness.closed == []
    else:
        assert harness.dispatched == []
        assert harness.descriptors() == []
        reason = f"a request (API key {int(key)}) before authentication was complete"
        assert harness.closed == [reason]


def test_request_without_a_response_does_not_hold_up_the_next(harness):
    """The last token of GSSAPI after SaslHandshake 0 has none."""
    client = harness.connect()
    client.send(request(ApiKey.METADATA) * 2)
    harness.turn()
    harness.loop.respond(harness.dispatched[0][0], False)
    harness.turn()
    harness.loop.respond(harness.dispatched[1][0], b"\0\0\0\7")
    harness.turn()

    assert received(client) == framed(b"\0\0\0\7")
    assert harness.closed == []


def test_phase_serving_is_where_a_plain_connection_starts(harness):
    harness.connect()

    assert harness.connection.phase == SERVING


def test_phase_changes_between_two_requests_of_a_connection(harness):
    """As in an authenticator: the response to one request decides which may be next."""
    serving(harness)
    client = harness.connect(HANDSHAKE)
    client.send(request(ApiKey.SASL_HANDSHAKE))
    harness.turn()

    harness.connection.phase = AUTHENTICATING
    client.send(request(ApiKey.SASL_AUTHENTICATE))
    harness.turn()
    harness.connection.phase = SERVING
    client.send(request(ApiKey.METADATA))
    harness.turn()

    assert [frame[1] for _, frame in harness.dispatched] == [17, 36, 3]
    assert harness.closed == []


def test_phase_before_authentication_starts_one_request_after_the_other(harness):
    """A Produce after the handshake is not read before the handshake has its response, and then it
    closes the connection.
    """
    client = harness.connect(HANDSHAKE)

    client.send(request(ApiKey.SASL_HANDSHAKE) + produce(7))
    harness.turn()
    assert len(harness.dispatched) == 1
    assert harness.closed == []

    harness.loop.respond(harness.dispatched[0][0], b"\0\0\0\7")
    harness.turn()
    assert received(client) == framed(b"\0\0\0\7"), "the answer is sent first"
    assert harness.closed == ["a request (API key 0) before authentication was complete"]


@pytest.mark.parametrize("token", [b"", b"\0u\0p", b"1234567", b"\0\0\0\0longer than a header"])
def test_phase_tokens_dispatches_each_frame_as_it_is_and_responds_without_a_header(harness, token):
    """The tokens of SaslHandshake 0 have no request header, and PLAIN's may have four bytes. One
    that looks like a Produce request is not taken for one.
    """
    serving(harness)
    client = harness.connect(TOKENS)

    client.send(framed(token))
    harness.turn()

    assert [frame for _, frame in harness.dispatched] == [token]
    assert received(client) == framed(b"\0\0\0\2")
    assert harness.closed == []


def test_phase_tokens_takes_one_token_after_the_other(harness):
    client = harness.connect(TOKENS)

    client.send(framed(b"one") + framed(b"two"))
    harness.turn()

    assert [frame for _, frame in harness.dispatched] == [b"one"]


@pytest.mark.parametrize("phase", [HANDSHAKE, AUTHENTICATING, SERVING, SESSION])
def test_phase_others_reject_a_frame_shorter_than_any_header(harness, phase):
    client = harness.connect(phase)

    client.send(framed(b"1234567"))
    harness.turn()

    assert harness.closed == ["a request of 7 bytes, shorter than any header"]


@pytest.mark.parametrize("phase", [HANDSHAKE, AUTHENTICATING, TOKENS])
def test_phase_before_authentication_limits_a_frame(harness, phase):
    """CVE-2022-34917: a client that has not authenticated could make a broker allocate 100 MB."""
    harness.loop.unknown_frame_max = 1000
    client = harness.connect(phase)

    client.send(struct.pack(">i", 1001))
    harness.turn()

    setting = "sasl.server.max.receive.size, before authentication"
    assert harness.closed == [f"a request of 1001 bytes, more than {setting} (1000)"]


@pytest.mark.parametrize("phase", [HANDSHAKE, AUTHENTICATING, TOKENS])
def test_phase_before_authentication_costs_no_more_than_the_smallest_connection(harness, phase):
    """Whatever a client claims and sends, with the limit that a broker has by default."""
    limit = BROKER_KEYS["sasl.server.max.receive.size"].default
    harness.loop.unknown_frame_max = limit
    client = harness.connect(phase)

    for part in (struct.pack(">i", limit), bytes(100), bytes(30_000), bytes(limit - 30_101)):
        client.send(part)
        harness.turn()
        assert 0 < harness.arena.allocated <= 65_536

    assert harness.closed == []


@pytest.mark.parametrize("phase", [SERVING, SESSION])
def test_phase_serving_has_the_limit_of_all_requests(harness, phase):
    harness.loop.unknown_frame_max = 1000
    client = harness.connect(phase)

    client.send(struct.pack(">i", 1001))
    harness.turn()

    assert harness.closed == []


@in_one("key", ApiKey, harness=Harness)
def test_phase_session_that_has_ended_takes_only_what_renews_it(harness, key):
    """KIP-368: a client that does not authenticate again is disconnected at its next request."""
    client = harness.connect(SESSION)
    harness.connection.session_end_ms = 1

    client.send(request(key, version=1))
    harness.turn()

    if key in {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}:
        assert len(harness.dispatched) == 1
        assert harness.closed == []
    else:
        assert harness.dispatched == []
        assert harness.descriptors() == []
        (reason,) = harness.closed
        assert reason.startswith("its session has ended")


def test_phase_session_serves_until_it_ends_and_pipelines(harness):
    client = harness.connect(SESSION)
    harness.connection.session_end_ms = 1 << 60

    client.send(produce(7, correlation_id=1) + produce(7, correlation_id=2))
    harness.turn()

    assert len(harness.descriptors()) == 2
    assert harness.closed == []


@pytest.mark.parametrize("phase", [HANDSHAKE, AUTHENTICATING, TOKENS])
def test_phase_before_authentication_does_not_last_for_ever(harness, phase):
    """Also for a client that sends something now and then."""
    client = harness.connect(phase)
    if phase == HANDSHAKE:
        serving(harness)
        client.send(request(ApiKey.API_VERSIONS))
        harness.turn()
    harness.loop.set_timeouts(60_000, 30_000, 60_000, 60_000)
    harness.loop.sweep()
    assert harness.closed == []

    harness.loop.set_timeouts(60_000, -1, 60_000, 60_000)
    harness.loop.sweep()

    assert harness.closed == ["no authentication within -1 ms"]


def test_connection_that_ends_sends_the_response_and_reads_no_more(harness):
    """As after a failed authentication: the client gets to know why, and nothing else."""
    client = harness.connect(AUTHENTICATING)
    client.send(request(ApiKey.SASL_AUTHENTICATE) * 2)
    harness.turn()
    ((token, _),) = harness.dispatched

    harness.loop.end(harness.connection)
    harness.turn()
    assert received(client) == b""
    harness.loop.respond(token, b"\0\0\0\7")
    harness.turn()

    assert client.recv(100) == framed(b"\0\0\0\7")
    assert client.recv(100) == b"", "the broker has closed its side"
    client.close()
    harness.turn()
    assert len(harness.dispatched) == 1
    assert harness.closed == [None]


def test_phase_authenticating_rejects_a_negative_length(harness):
    client = harness.connect(AUTHENTICATING)

    client.send(struct.pack(">i", -1))
    harness.turn()

    assert harness.closed == ["a negative request length (-1)"]
