"""A TLS connection whose bytes are carried by hand, against Python's own TLS at the other end."""

from __future__ import annotations

import random
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.network import tls_sockets
from support.network.tls_sockets import Site
from support.running.pace import hold

from kbroker.security.tls import tls_socket
from kbroker.security.tls.tls_socket import RECEIVE_BYTES, RECORD_BYTES, TlsSocket

pytestmark = pytest.mark.unit

PATIENCE_S = 20


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return tls_sockets.make_site(tmp_path_factory.mktemp("site"))


@pytest.fixture
def plain() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    for end in ends:
        end.settimeout(PATIENCE_S)
    yield ends
    for end in ends:
        end.close()


def beside(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def told(ours: TlsSocket) -> bool:
    """Whether the descriptor says that there is something to receive."""
    asked = select.poll()
    asked.register(ours.fileno(), select.POLLIN)
    return bool(asked.poll(0))


def shake(
    site: Site, plain: tuple[socket.socket, socket.socket]
) -> tuple[TlsSocket, ssl.SSLSocket]:
    """Both of them block."""
    ours = TlsSocket(plain[0], site.client, server_hostname="localhost")
    thread = beside(ours.do_handshake)
    theirs = site.server.wrap_socket(plain[1], server_side=True)
    thread.join(PATIENCE_S)
    return ours, theirs


def test_blocking_ends_exchange_bytes(
    site: Site, plain: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = shake(site, plain)
    data = random.Random(1).randbytes(1_000_003)
    thread = beside(lambda: ours.sendall(data))
    found = bytearray()
    while len(found) < len(data):
        found += theirs.recv(100_000)
    thread.join(PATIENCE_S)
    assert found == data

    thread = beside(lambda: theirs.sendall(data))
    found.clear()
    while len(found) < len(data):
        found += ours.recv(len(data))
    assert found == data
    thread.join(PATIENCE_S)


@pytest.mark.parametrize("farewell", [True, False])
def test_end_of_the_stream_is_empty(
    site: Site, plain: tuple[socket.socket, socket.socket], farewell: bool
) -> None:
    ours, theirs = shake(site, plain)
    theirs.sendall(b"last")
    if farewell:
        theirs.settimeout(0)
        with pytest.raises(ssl.SSLWantReadError):
            theirs.unwrap()
    else:
        theirs.close()
    assert ours.recv(100) == b"last"
    assert ours.recv(100) == b""


def test_call_that_does_not_block_is_repeated_when_the_socket_is_ready(
    site: Site, plain: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = shake(site, plain)
    ours.setblocking(False)
    with pytest.raises(BlockingIOError):
        ours.recv(100)

    expected = bytearray()
    with pytest.raises(BlockingIOError):
        while True:
            data = random.Random(len(expected)).randbytes(40_000)
            taken = ours.send(memoryview(data))
            assert 0 < taken <= RECORD_BYTES
            expected += data[:taken]
    assert ours.has_unsent
    found = bytearray()
    while len(found) < len(expected):
        found += theirs.recv(100_000)
        if ours.has_unsent:
            try:
                assert ours.send(b"") == 0
            except BlockingIOError:
                continue
    assert found == expected
    assert not ours.has_unsent


def test_what_has_left_the_socket_is_told_of(
    site: Site, plain: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = shake(site, plain)
    ours.setblocking(False)
    with pytest.raises(BlockingIOError):
        ours.recv(100)  # what the handshake has left
    theirs.sendall(b"a" * 100)
    assert ours.recv(60) == b"a" * 60
    assert not told(ours)
    assert (ours.has_received, ours.recv(60)) == (True, b"a" * 40)
    assert (ours.has_received, told(ours)) == (False, False)

    theirs.sendall(b"b" * RECORD_BYTES + b"c")
    assert RECORD_BYTES + 100 < RECEIVE_BYTES
    assert ours.recv(RECORD_BYTES) == b"b" * RECORD_BYTES
    assert ours.has_received, "one call of the socket has received both records"
    assert ours.recv(10) == b"c"


def test_time_limit_counts_for_a_whole_call(
    site: Site, plain: tuple[socket.socket, socket.socket]
) -> None:
    """A peer that sends a byte now and then does not extend it."""
    ours, theirs = shake(site, plain)
    ending = threading.Event()
    raw = plain[1] if plain[1].fileno() >= 0 else socket.socket(fileno=theirs.detach())

    def drip() -> None:
        raw.sendall(b"\x17\x03\x03\x10\x00")
        while not ending.is_set():
            raw.sendall(b"x")
            hold(0.05)

    thread = beside(drip)
    ours.settimeout(0.4)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        ours.recv(100)
    assert 0.3 < time.monotonic() - began < 10
    ending.set()
    thread.join(PATIENCE_S)
    raw.close()


def test_call_that_took_long_leaves_the_next_one_the_whole_time(
    site: Site, plain: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock on which each look at it takes twenty seconds."""
    ours, theirs = shake(site, plain)
    clock = SimpleNamespace(monotonic=lambda times=count(0.0, 20.0): next(times))
    monkeypatch.setattr(tls_socket, "time", clock)
    ours.settimeout(30)
    for _ in range(3):
        theirs.sendall(b"x")
        assert ours.recv(1) == b"x"


def test_silent_peer_ends_a_handshake_by_its_time_limit(
    site: Site, plain: tuple[socket.socket, socket.socket]
) -> None:
    ours = TlsSocket(plain[0], site.client, server_hostname="localhost")
    ours.settimeout(0.2)
    with pytest.raises(TimeoutError):
        ours.do_handshake()


def test_failed_handshake_tells_the_peer_why(
    site: Site, tmp_path: Path, plain: tuple[socket.socket, socket.socket]
) -> None:
    other = tls_sockets.make_site(tmp_path)
    ours = TlsSocket(plain[0], other.client, server_hostname="localhost")
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            theirs = site.server.wrap_socket(plain[1], server_side=True)
            theirs.recv(100)
        except ssl.SSLError as error:
            failures.append(error)

    thread = beside(serve)
    with pytest.raises(ssl.SSLCertVerificationError):
        ours.do_handshake()
    thread.join(PATIENCE_S)
    (failure,) = failures
    assert "ALERT_UNKNOWN_CA" in str(failure)
    ours.close()


def test_end_during_a_handshake_is_an_error(
    site: Site, plain: tuple[socket.socket, socket.socket]
) -> None:
    ours = TlsSocket(plain[0], site.client, server_hostname="localhost")
    plain[1].shutdown(socket.SHUT_WR)
    with pytest.raises(ssl.SSLEOFError):
        ours.do_handshake()
