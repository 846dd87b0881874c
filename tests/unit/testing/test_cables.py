"""Connections between brokers that tests cut and restore."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from kbroker.testing import wait_until
from kbroker.testing.cables import CLIENT_ID_BYTES_MAX, Cables

pytestmark = pytest.mark.unit

SILENCE_S = 0.2


def request(client_id: str | None) -> bytes:
    """One of no body."""
    name = (client_id or "").encode()
    size = -1 if client_id is None else len(name)
    return struct.pack(">ihhih", 10 + len(name), 18, 0, 1, size) + name


class Echo:
    """A server that echoes its input, and notes it."""

    def __init__(self) -> None:
        self.heard = b""
        self._connections: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while part := connection.recv(65536):
                self.heard += part
                connection.sendall(part)

    def end_all(self) -> None:
        """End all connections."""
        for connection in self._connections:
            connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def cables() -> Iterator[Cables]:
    made = Cables()
    yield made
    made.close()


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def is_answered(connection: socket.socket, data: bytes) -> bool:
    """Whether these bytes come back."""
    connection.sendall(data)
    return hears(connection, data)


def hears(connection: socket.socket, data: bytes) -> bool:
    """Whether exactly these bytes arrive; waits for them."""
    connection.settimeout(30)
    heard = b""
    while len(heard) < len(data) and (part := connection.recv(len(data) - len(heard))):
        heard += part
    return heard == data


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(SILENCE_S)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    return False


@pytest.mark.parametrize("name", ["broker-2-fetcher-0", "2", "broker-2-txn-marker-sender"])
def test_connection_of_the_broker_that_is_cut_off_says_nothing_until_healed(
    cables: Cables, echo: Echo, name: str
) -> None:
    address = cables.to_broker("1", echo.port)
    with connect(address) as cut, connect(address) as other:
        assert is_answered(cut, request(name))
        assert is_answered(other, request("broker-3-fetcher-0"))

        cables.cut("2", "1")

        assert is_answered(other, b"other")
        cut.sendall(b"cut")
        assert is_silent(cut)
        cables.heal("1")
        assert hears(cut, b"cut")


@pytest.mark.parametrize("name", [None, "", "rdkafka", "x" * (CLIENT_ID_BYTES_MAX + 1)])
def test_connection_of_a_client_is_never_cut(cables: Cables, echo: Echo, name: str | None) -> None:
    address = cables.to_broker("1", echo.port)
    cables.cut("1", "2")
    with connect(address) as client:
        assert is_answered(client, request(name))


def test_new_connection_over_a_cut_waits_and_is_served_when_healed(
    cables: Cables, echo: Echo
) -> None:
    address = cables.from_broker("1", "zookeeper", echo.port)
    cables.cut("1", "zookeeper")
    with connect(address) as client:
        client.sendall(b"late")
        assert is_silent(client)
        cables.heal()
        assert hears(client, b"late")


def test_end_of_a_connection_does_not_pass_a_cut(cables: Cables, echo: Echo) -> None:
    with connect(cables.from_broker("1", "zookeeper", echo.port)) as client:
        assert is_answered(client, b"data")
        cables.cut("1", "zookeeper")
        client.shutdown(socket.SHUT_WR)  # the server answers with the end of its side
        assert is_silent(client)
        cables.heal("zookeeper", "1")
        client.settimeout(30)
        assert client.recv(1) == b""


@pytest.mark.parametrize("sender", ["1", "zookeeper"])
def test_one_way_cut_holds_what_is_sent_that_way_and_nothing_else(
    cables: Cables, echo: Echo, sender: str
) -> None:
    """The echo is held on the way there, or on the way back after it has arrived."""
    ends = {"1", "zookeeper"}
    (receiver,) = ends - {sender}
    with connect(cables.from_broker("1", "zookeeper", echo.port)) as client:
        assert is_answered(client, b"before")
        cables.cut_one_way(sender, receiver)
        client.sendall(b"held")
        wait_until(lambda: (b"held" in echo.heard) == (sender == "zookeeper"), 30)
        assert is_silent(client)
        cables.heal(sender)
        assert hears(client, b"held")
    assert b"held" in echo.heard


@pytest.mark.parametrize("way", [("1", "zookeeper"), ("zookeeper", "1")])
def test_connection_needs_both_directions(cables: Cables, echo: Echo, way: tuple[str, str]) -> None:
    address = cables.from_broker("1", "zookeeper", echo.port)
    cables.cut_one_way(*way)
    with connect(address) as client:
        client.sendall(b"late")
        assert is_silent(client)
        assert echo.heard == b""
        cables.heal()
        assert hears(client, b"late")


def test_end_of_a_connection_passes_the_direction_that_is_open(cables: Cables, echo: Echo) -> None:
    with connect(cables.from_broker("1", "zookeeper", echo.port)) as client:
        assert is_answered(client, b"data")
        cables.cut_one_way("1", "zookeeper")
        echo.end_all()
        client.settimeout(30)
        assert client.recv(1) == b""


def test_connection_that_is_given_up_during_a_cut_is_never_heard_of(
    cables: Cables, echo: Echo
) -> None:
    """ZooKeeper would give it the session of the connection that came after it."""
    address = cables.from_broker("1", "zookeeper", echo.port)
    cables.cut("1", "zookeeper")
    with connect(address) as client:
        client.sendall(b"given up")
    cables.heal()
    with connect(address) as client:
        assert is_answered(client, b"next")
    assert echo.heard == b"next"


def test_server_that_is_down_ends_the_connection(cables: Cables, echo: Echo) -> None:
    address = cables.from_broker("1", "zookeeper", echo.port)
    echo.close()
    with connect(address) as client:
        assert client.recv(1) == b""
