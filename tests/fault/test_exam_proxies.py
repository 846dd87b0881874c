"""The way to a broker in the exam of clients, where frames are seen, and where TLS hides them."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from fault.clients.proxies import LOCALHOST, OF_FRAMES, Proxy

pytestmark = pytest.mark.unit

# A response to ApiVersions, which the proxy leaves alone: size, correlation id.
FRAME = struct.pack(">ihhi", 8, 18, 0, 7)
WAIT_S = 20.0


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends everything back."""
    listener = socket.create_server((LOCALHOST, 0))

    def serve(end: socket.socket) -> None:
        with end:
            while part := end.recv(4096):
                end.sendall(part)

    def accept() -> None:
        while True:
            try:
                end, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(end,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()


def connected(proxy: Proxy) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


@pytest.mark.parametrize("sees_frames", [True, False])
def test_what_is_silent_arrives_when_it_is_healed(echo, sees_frames):
    proxy = Proxy(echo, sees_frames=sees_frames)
    with connected(proxy) as client:
        client.sendall(FRAME)
        assert client.recv(64) == FRAME

        proxy.harm("silent")
        client.sendall(FRAME)
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.recv(64)
        client.settimeout(WAIT_S)
        proxy.harm("")
        assert client.recv(64) == FRAME
    proxy.close()


@pytest.mark.parametrize("sees_frames", [True, False])
def test_what_is_cut_ends(echo, sees_frames):
    proxy = Proxy(echo, sees_frames=sees_frames)
    with connected(proxy) as client:
        client.sendall(FRAME)
        assert client.recv(64) == FRAME
        proxy.harm("cut")
        assert client.recv(64) == b""
    proxy.close()


def test_a_connection_that_is_encrypted_ends_once_in_the_place_of_a_response(echo):
    proxy = Proxy(echo, sees_frames=False)
    proxy.harm("once")
    with connected(proxy) as client:
        client.sendall(b"anything")
        assert client.recv(64) == b""
    proxy.close()


@pytest.mark.parametrize("harm", OF_FRAMES)
def test_what_is_encrypted_is_not_changed(echo, harm):
    proxy = Proxy(echo, sees_frames=False)
    with pytest.raises(AssertionError):
        proxy.harm(harm)
    proxy.close()
