"""Connections over TLS that announce a lot, send little, or never read (exams S2 and S4)."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from support.clients.wire_client import WireClient, batch_of
from support.faults.hostile_harness import MIB, GoodClient, nothing_dies
from support.network.frames import request_frame
from support.running.pace import hold
from support.security.secured import SecuredClient, Site, address_of

from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]

CONNECTIONS, CONNECTIONS_OF_SCALE, CONNECTIONS_MAX = 100, 250, 5_000
ANNOUNCED = 100 * MIB
FIRST_MS = 3_000
TOPIC = "good"
LISTENERS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# Kept by OpenSSL and the broker for a connection that has shaken hands.
TLS_BYTES = 96 << 10


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def broker(site: Site) -> Iterator[Broker]:
    settings = site.settings(*LISTENERS) | {
        "connection.first.request.timeout.ms": str(FIRST_MS),
        "auto.create.topics.enable": "false",
        "max.connections.per.ip": str(2 * CONNECTIONS_MAX),
    }
    with Broker(settings) as started:
        with WireClient((started.host, started.port)) as client:
            client.create_topic(TOPIC)
            client.create_topic("large")
            for _ in range(8):
                client.produce("large", {0: batch_of([b"z" * 500_000])})
        yield started


@pytest.fixture
def count(scale: int) -> int:
    return CONNECTIONS if scale == 1 else min(CONNECTIONS_OF_SCALE * scale, CONNECTIONS_MAX)


def connect(broker: Broker, site: Site, listener: str) -> SecuredClient:
    """With its handshake, and without a login."""
    context = site.client_context() if "SSL" in listener else None
    return SecuredClient(address_of(broker, listener), context=context)


def is_closed(sock: socket.socket, seconds: float) -> bool:
    """What arrives before the end is skipped."""
    sock.settimeout(seconds)
    try:
        while sock.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_announced_megabytes_of_strangers_cost_nothing(
    broker: Broker, site: Site, count: int
) -> None:
    """Before the login (CVE-2022-34917): 512 KiB are the most, and more is closed at once."""
    frame = struct.pack(">ihhih", ANNOUNCED, 36, 2, 1, -1) + b"x" * 1000
    for listener in ("SASL_PLAINTEXT", "SASL_SSL"):
        with nothing_dies(broker, 64 * MIB), ExitStack() as stack, GoodClient(broker, TOPIC):
            clients = []
            for _ in range(count):
                client = stack.enter_context(connect(broker, site, listener))
                client.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
                client.socket.sendall(frame)
                clients.append(client)
            for client in clients:
                assert is_closed(client.socket, 30), listener


def test_announced_megabytes_of_clients_cost_nothing(
    broker: Broker, site: Site, count: int
) -> None:
    frame = struct.pack(">ihhih", ANNOUNCED, 0, 9, 1, -1) + b"x" * 1000
    with (
        nothing_dies(broker, 64 * MIB + count * TLS_BYTES),
        ExitStack() as stack,
        GoodClient(broker, TOPIC),
    ):
        for _ in range(count):
            client = stack.enter_context(connect(broker, site, "SSL"))
            client.socket.sendall(frame)
        hold(1)


@pytest.mark.parametrize("listener", ["SSL", "SASL_SSL"])
def test_byte_by_byte_request_is_closed_in_time(
    broker: Broker, site: Site, listener: str, count: int
) -> None:
    request = request_frame(ApiVersionsRequest(), 0, 1, None)
    with (
        nothing_dies(broker, 16 * MIB + count * TLS_BYTES),
        GoodClient(broker, TOPIC),
        ExitStack() as stack,
    ):
        clients = [stack.enter_context(connect(broker, site, listener)) for _ in range(count)]
        began = time.monotonic()
        for position in range(2):
            for client in clients:
                with suppress(OSError):  # closed already
                    client.socket.sendall(request[position : position + 1])
            hold(0.5)
        for client in clients:
            assert is_closed(client.socket, 30)
        assert time.monotonic() - began < 30 + count / 20


def test_handshake_byte_by_byte_is_closed_in_time(broker: Broker, site: Site, count: int) -> None:
    """Half a hello: no handshake begins, and none ever ends."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = site.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    hello = outgoing.read()
    with (
        nothing_dies(broker, 16 * MIB + count * TLS_BYTES),
        GoodClient(broker, TOPIC),
        ExitStack() as stack,
    ):
        sockets = [
            stack.enter_context(socket.create_connection(address_of(broker, "SSL"), timeout=30))
            for _ in range(count)
        ]
        for position in range(20):
            for sock in sockets:
                with suppress(OSError):
                    sock.sendall(hello[position : position + 1])
            hold(0.05)
        with connect(broker, site, "SSL") as client:
            assert client.metadata(TOPIC).topics[0].error_code == 0
        for sock in sockets:
            assert is_closed(sock, 60)


def test_clients_that_never_read_delay_nobody(broker: Broker, site: Site, count: int) -> None:
    """Each fetches 4 MB over and over, and reads nothing of it."""
    cls = FetchRequest
    part = cls.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=8 * MIB)
    topics = [cls.FetchTopic(topic="large", partitions=[part])]
    fetch = cls(max_wait_ms=0, max_bytes=8 * MIB, topics=topics)
    frame = request_frame(fetch, 11, 1, "deaf")
    deaf = count // 2
    with (
        nothing_dies(broker, 64 * MIB + deaf * TLS_BYTES * 4),
        GoodClient(broker, TOPIC),
        ExitStack() as stack,
    ):
        for _ in range(deaf):
            client = stack.enter_context(connect(broker, site, "SSL"))
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.socket.sendall(frame * 20)
        hold(2)


def test_connections_that_come_and_go_leave_nothing(broker: Broker, site: Site, count: int) -> None:
    """Reset in the middle of a handshake, after it, and with a request half sent."""
    with nothing_dies(broker, 32 * MIB), GoodClient(broker, TOPIC):
        for number in range(count * 3):
            if number % 3 == 0:
                with socket.create_connection(address_of(broker, "SSL"), timeout=30) as sock:
                    sock.sendall(b"\x16\x03\x01")
                    linger = struct.pack("ii", 1, 0)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                continue
            with connect(broker, site, "SSL") as client:
                if number % 3 == 1:
                    client.socket.sendall(b"\0\0")
    wait_until(lambda: open_connections(broker) < 20, 60, "all are closed in the broker")


def open_connections(broker: Broker) -> int:
    import psutil

    return sum(
        len([c for c in psutil.Process(pid).net_connections("tcp") if c.status == "ESTABLISHED"])
        for title, pid in broker.pids.items()
        if title.startswith("network")
    )
