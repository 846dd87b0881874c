"""Which requests are allowed before authentication, and which close the connection."""

from __future__ import annotations

import struct

import pytest
from support.net_loop_harness import Harness, framed, produce, received, serving

from kbroker._ext.network.connection import AUTHENTICATING, HANDSHAKE, SERVING
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
}


@pytest.mark.parametrize("phase", ALLOWED)
@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.name)
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


@pytest.mark.parametrize("token", [b"", b"\0u\0p", b"1234567"])
def test_phase_authenticating_a_short_frame_is_a_token_and_no_bad_length(harness, token):
    """The tokens of SaslHandshake 0 have no request header, and PLAIN's may have four bytes. No
    listener supports it yet, so they close the connection here, but not as a malformed frame.
    """
    client = harness.connect(AUTHENTICATING)

    client.send(framed(token))
    harness.turn()

    reason = f"{len(token)} bytes that are not a request, before authentication was complete"
    assert harness.closed == [reason]


@pytest.mark.parametrize("phase", [HANDSHAKE, SERVING])
def test_phase_others_reject_a_frame_shorter_than_any_header(harness, phase):
    client = harness.connect(phase)

    client.send(framed(b"1234567"))
    harness.turn()

    assert harness.closed == ["a request of 7 bytes, shorter than any header"]


def test_phase_authenticating_rejects_a_negative_length(harness):
    client = harness.connect(AUTHENTICATING)

    client.send(struct.pack(">i", -1))
    harness.turn()

    assert harness.closed == ["a negative request length (-1)"]
