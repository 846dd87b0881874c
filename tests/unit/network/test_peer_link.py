"""The connection of a follower to its leader, over both transports."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from support.network import tls_sockets
from support.network.tls_sockets import Site

from kbroker._ext.sockets.peer_link import PeerLink
from kbroker._ext.sockets.transport import Transport

pytestmark = pytest.mark.unit

RECORD = 16384
FRAME_MAX = 1 << 22


class Ends(NamedTuple):
    link: PeerLink
    theirs: socket.socket


Make = Callable[[], Ends]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return tls_sockets.make_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(params=["plain", "tls"])
def ends(request: pytest.FixtureRequest, site: Site) -> Iterator[Ends]:
    if request.param == "tls":
        pair = tls_sockets.connect(site, client_side=True)
        made = Ends(PeerLink(pair.transport, "me", FRAME_MAX), pair.theirs)
    else:
        left, right = socket.socketpair()
        left.setblocking(False)
        made = Ends(PeerLink(Transport(left.detach()), "me", FRAME_MAX), right)
    made.theirs.setblocking(True)
    made.theirs.settimeout(20)
    yield made
    made.link.close()
    made.theirs.close()


def frame(number: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), number) + body


def test_request_and_response_arrive(ends: Ends) -> None:
    ends.link.request(1, 12, True, b"body")
    sent = ends.theirs.recv(100)
    assert sent == bytes.fromhex("00000011 0001 000c 00000001 0002 6d65 00") + b"body"
    assert ends.link.in_flight == 1 and not ends.link.has_unsent

    ends.theirs.sendall(frame(1, b"answer"))
    assert ends.link.receive(1000) == 14
    assert ends.link.take() == b"answer"
    assert ends.link.receive(1000) == 0, "nothing has arrived, and that does not block"


def test_nothing_of_a_record_is_left_where_no_event_tells_of_it(ends: Ends) -> None:
    """A limit that ends within a TLS record: the socket is empty, so nobody would call again."""
    ends.link.request(1, 12, True, b"")
    body = bytes(range(256)) * 200
    ends.theirs.sendall(frame(1, body))

    received = 0
    while (count := ends.link.receive(1000)) > 0:
        received += count
    assert received == 8 + len(body)
    assert ends.link.take() == body


def test_request_that_the_socket_does_not_take_is_sent_later(ends: Ends) -> None:
    body = bytes(range(256)) * 20_000
    ends.link.request(1, 12, False, body)
    assert ends.link.has_unsent

    received = bytearray()
    while len(received) < len(body):
        received += ends.theirs.recv(1 << 20)
        ends.link.flush()
    assert bytes(received[-len(body) :]) == body
    assert not ends.link.has_unsent


def test_end_of_the_stream_is_an_error_after_what_was_received(ends: Ends) -> None:
    ends.link.request(1, 12, True, b"")
    ends.theirs.recv(100)
    ends.theirs.sendall(frame(1, b"last"))
    ends.theirs.close()

    assert ends.link.receive(1000) == 12
    assert ends.link.take() == b"last"
    with pytest.raises(ConnectionResetError):
        ends.link.receive(1000)


def test_broken_record_is_an_error_with_its_reason(site: Site) -> None:
    pair = tls_sockets.connect(site, client_side=True)
    link = PeerLink(pair.transport, "me", FRAME_MAX)
    raw = socket.socket(fileno=pair.theirs.detach())
    raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))

    with pytest.raises(OSError, match=r"(?i)mac|decrypt|record"):
        for _ in range(3):
            link.receive(1000)
    with pytest.raises(OSError):
        link.request(1, 12, True, b"more")
    link.close()
    raw.close()


@pytest.mark.parametrize(
    "wrong",
    [struct.pack(">ii", 3, 0), struct.pack(">ii", FRAME_MAX + 1, 0), struct.pack(">ii", 8, 5)],
)
def test_response_that_cannot_be_is_an_error(ends: Ends, wrong: bytes) -> None:
    ends.link.request(1, 12, True, b"")
    ends.theirs.sendall(wrong)
    ends.link.receive(1000)

    with pytest.raises(ValueError, match="a response"):
        ends.link.take()
