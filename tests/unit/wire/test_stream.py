"""Frames of one connection: whole, in pieces, too long, out of order, of strangers."""

from __future__ import annotations

import struct

import pytest

from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey
from kbroker.protocol.header import decode_request_header, encode_response_header
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.wire.stream import FIRST_FRAME_BYTES_MAX, Malformed, RequestInFlight, Stream

pytestmark = pytest.mark.unit

VERSION = 12
THROTTLE_MS = 7


def response_to(pending: RequestInFlight, number: int | None = None) -> bytes:
    number = pending.correlation_id if number is None else number
    body = encode_response_header(number, pending.api, pending.version)
    body += codec.encode(MetadataResponse(throttle_time_ms=THROTTLE_MS), pending.version)
    return struct.pack(">i", len(body)) + body


def asked(stream: Stream) -> RequestInFlight:
    pending, _ = stream.message(MetadataRequest(), VERSION)
    return pending


def test_requests_are_framed_and_numbered() -> None:
    stream = Stream("me")
    for number in (1, 2):
        pending, frame = stream.message(ApiVersionsRequest(), 0)
        (size,) = struct.unpack_from(">i", frame)
        header = decode_request_header(frame, 4)

        assert size == len(frame) - 4
        assert (header.client_id, header.correlation_id) == ("me", number)
        assert (pending.api, pending.correlation_id) == (ApiKey.API_VERSIONS, number)
    assert stream.in_flight == 2


@pytest.mark.parametrize("piece", [1, 3, 4, 5, 1 << 10])
def test_responses_are_taken_in_order_whatever_the_pieces(piece: int) -> None:
    stream = Stream("me")
    requests = [asked(stream), asked(stream)]
    data = b"".join(map(response_to, requests))
    taken = []
    while data:
        with stream.space() as space:
            count = min(piece, len(space), len(data))
            space[:count] = data[:count]
        data = data[count:]
        if stream.received(count):
            taken.append(stream.take())

    assert [pending for pending, _ in taken] == requests
    assert [pending.decoded(body).throttle_time_ms for pending, body in taken] == [THROTTLE_MS] * 2
    assert stream.in_flight == 0


def test_request_without_response_is_not_waited_for() -> None:
    stream = Stream("me")
    stream.request(ApiKey.PRODUCE, 9, [b""], expects_response=False)
    pending = asked(stream)

    assert stream.feed(response_to(pending))
    assert stream.take()[0] is pending


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"\x15\x03\x03\x00", "the listener speaks TLS"),
        (b"HTTP", "a web server"),
        (struct.pack(">i", -1), "a frame of -1 bytes"),
        (struct.pack(">i", 3), "a frame of 3 bytes"),
        (struct.pack(">i", FIRST_FRAME_BYTES_MAX + 1), "a frame of 1048577 bytes"),
        (b"\x7f\xff\xff\xff", "a frame of 2147483647 bytes"),
    ],
)
def test_stranger_is_recognized_by_the_first_bytes(head: bytes, why: str) -> None:
    stream = Stream("me", FIRST_FRAME_BYTES_MAX)
    asked(stream)

    with pytest.raises(Malformed, match=why):
        stream.feed(head)


def test_long_frame_costs_memory_as_it_arrives() -> None:
    stream = Stream("me")
    asked(stream)
    buffer = bytearray()
    stream.buffers = lambda: buffer

    stream.feed(struct.pack(">i", (1 << 31) - 1))
    stream.space().release()

    assert len(buffer) <= 16 << 20


@pytest.mark.parametrize("number", [0, 2, -1])
def test_response_to_another_request_is_malformed(number: int) -> None:
    stream = Stream("me")
    pending = asked(stream)
    stream.feed(response_to(pending, number))

    with pytest.raises(Malformed, match=f"the response to request {number} instead of 1"):
        stream.take()


def test_response_without_a_request_is_malformed() -> None:
    stream, other = Stream("me"), Stream("other")
    stream.feed(response_to(asked(other)))

    with pytest.raises(Malformed, match="without a request"):
        stream.take()


def test_more_than_the_response_is_malformed_where_one_is_asked_for() -> None:
    stream = Stream("me")
    data = response_to(asked(stream))

    with pytest.raises(Malformed, match="more than the response"):
        stream.feed(data + b"\0")


@pytest.mark.parametrize("left_out", [1, 4, 8])
def test_body_that_ends_too_early_is_malformed(left_out: int) -> None:
    stream = Stream("me")
    body = response_to(asked(stream))[4:-left_out]
    assert stream.feed(struct.pack(">i", len(body)) + body)

    with pytest.raises(Malformed):
        pending, rest = stream.take()
        pending.decoded(rest)


def test_next_connection_begins_anew() -> None:
    stream = Stream("me")
    asked(stream)
    stream.feed(b"\0\0")
    stream.reset()

    pending = asked(stream)
    assert stream.feed(response_to(pending))
    assert stream.take()[0] is pending
