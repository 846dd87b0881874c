"""Connections that announce a lot, send little or never read (exams S2 and S4)."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from support.clients.wire_client import WireClient, batch_of, produce_request
from support.faults.hostile_harness import MIB, GoodClient, nothing_dies, refused_count
from support.network.frames import request_frame
from support.running.pace import hold

from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

CONNECTIONS = 200
NETWORK_PROCESSES = 2
ANNOUNCED = 100 * MIB
TOPIC = "good"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "connection.first.request.timeout.ms": 3000,
        "num.network.threads": NETWORK_PROCESSES,
        "auto.create.topics.enable": "false",
    }
    with Broker(settings) as started:
        with WireClient((started.host, started.port)) as client:
            client.create_topic(TOPIC)
        yield started


def connect_many(stack: ExitStack, broker: Broker, count: int) -> list[socket.socket]:
    return [
        stack.enter_context(socket.create_connection((broker.host, broker.port), timeout=30))
        for _ in range(count)
    ]


def test_announced_megabytes_cost_nothing(broker: Broker) -> None:
    with (
        nothing_dies(broker, 64 * MIB),
        ExitStack() as stack,
        GoodClient(broker, TOPIC),
    ):
        sockets = connect_many(stack, broker, CONNECTIONS)
        for sock in sockets:
            sock.sendall(struct.pack(">ihhih", ANNOUNCED, 0, 9, 1, -1) + b"x" * 1000)
        hold(1)


def test_unfinished_requests_do_not_starve_others(broker: Broker) -> None:
    """Unfinished requests with more bytes than the arena."""
    part = struct.pack(">ihhih", ANNOUNCED, 0, 9, 1, -1) + b"x" * (2 * MIB)
    with (
        nothing_dies(broker, 512 * MIB),  # the arenas, and memory counted by the kernel
        ExitStack() as good,
        ExitStack() as stack,
    ):
        for _ in range(4):  # in each network process there is one
            good.enter_context(GoodClient(broker, TOPIC, longest_s=2))
        with GoodClient(broker, TOPIC, record_bytes=700_000, longest_s=20, least=1):
            flood(connect_many(stack, broker, CONNECTIONS), part, 4)
            hold(1)  # with the arena as full as it gets


def flood(sockets: list[socket.socket], data: bytes, seconds: float) -> None:
    """Send ``data`` on each, as far as the other side accepts it."""
    left = {sock: memoryview(data) for sock in sockets}
    for sock in sockets:
        sock.setblocking(False)
    end = time.monotonic() + seconds
    while left and time.monotonic() < end:
        for sock in list(left):
            try:
                left[sock] = left[sock][sock.send(left[sock]) :]
            except BlockingIOError:
                continue
            except OSError:  # closed: that is one way to deal with it
                del left[sock]
                continue
            if not left[sock]:
                del left[sock]
        hold(0.01)


def test_slow_first_request_is_closed_in_time(broker: Broker) -> None:
    request = request_frame(ApiVersionsRequest(), 0, 1, None)
    refused = refused_count(broker)
    began = time.monotonic()
    with nothing_dies(broker), GoodClient(broker, TOPIC), ExitStack() as stack:
        sockets = connect_many(stack, broker, CONNECTIONS)
        for position in range(2):
            for sock in sockets:
                with suppress(OSError):  # closed already, if the machine stood still meanwhile
                    sock.sendall(request[position : position + 1])
            hold(0.5)
        for sock in sockets:
            sock.settimeout(20)
            with suppress(ConnectionResetError):
                assert sock.recv(1) == b""
    assert time.monotonic() - began > 2.5
    wait_until(
        lambda: refused_count(broker) - refused >= CONNECTIONS, 30, "each was closed for a reason"
    )
    assert "no request within 3000 ms" in broker.log_text


def test_repeated_offence_is_a_line_in_the_log_not_one_each(broker: Broker) -> None:
    """A client that repeats a failing produce without acks, and gets only a closed connection, must
    not fill the disk with log lines.
    """
    reason = "a produce with acks=0 failed"
    request = produce_request("absent", {0: batch_of([b"x"])}, acks=0)
    refused = refused_count(broker)
    began = time.monotonic()
    with nothing_dies(broker):
        for _ in range(CONNECTIONS):
            with WireClient((broker.host, broker.port)) as client:
                client.send(request, 8)
                assert client.is_closed(30)

    wait_until(lambda: refused_count(broker) - refused >= CONNECTIONS, 30, "all are counted")
    lines_max = NETWORK_PROCESSES * (2 + (time.monotonic() - began) / 10)
    assert 1 <= broker.log_text.count(reason) <= lines_max


def test_clients_that_never_read_delay_nobody(broker: Broker) -> None:
    """50 clients fetch 1 MiB repeatedly, and read nothing."""
    with WireClient((broker.host, broker.port)) as client:
        client.create_topic("large")
        for _ in range(8):
            client.produce("large", {0: batch_of([b"z" * 500_000])})
    cls = FetchRequest
    part = cls.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=8 * MIB)
    fetch = cls(
        max_wait_ms=0, max_bytes=8 * MIB, topics=[cls.FetchTopic(topic="large", partitions=[part])]
    )
    frame = request_frame(fetch, 11, 1, "deaf")
    with (
        nothing_dies(broker, 64 * MIB),
        GoodClient(broker, TOPIC),
        ExitStack() as stack,
    ):
        sockets = connect_many(stack, broker, 50)
        for sock in sockets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(frame * 50)
        hold(2)


def test_producers_that_never_read_delay_nobody(broker: Broker) -> None:
    """Responses pile up in the broker no further than the limit of requests in flight."""
    request = produce_request(TOPIC, {0: batch_of([b"x"])})
    frame = request_frame(request, 8, 1, "deaf")
    with (
        nothing_dies(broker, 64 * MIB),
        GoodClient(broker, TOPIC),
        ExitStack() as stack,
    ):
        sockets = connect_many(stack, broker, 20)
        for sock in sockets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            for sock in sockets:
                try:
                    sock.send(frame * 20)
                except BlockingIOError:
                    continue
            hold(0.005)


def test_connections_that_come_and_go_leave_nothing(broker: Broker) -> None:
    with nothing_dies(broker), GoodClient(broker, TOPIC):
        for number in range(1000):
            with socket.create_connection((broker.host, broker.port), timeout=30) as sock:
                if number % 3 == 0:
                    linger = struct.pack("ii", 1, 0)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                elif number % 3 == 1:
                    sock.sendall(b"\0\0")
        hold(2.5)  # they are accepted at max.connection.creation.rate
        wait_until(lambda: open_sockets(broker) < 20, 30, "all closed in the broker")


def open_sockets(broker: Broker) -> int:
    """Connections that the network processes hold."""
    import psutil

    return sum(
        len([c for c in psutil.Process(pid).net_connections("tcp") if c.status == "ESTABLISHED"])
        for title, pid in broker.pids.items()
        if title.startswith("network")
    )
