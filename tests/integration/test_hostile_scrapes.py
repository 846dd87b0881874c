"""Slow and hostile HTTP clients of the exporter: each costs its connection and nothing else."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from support.brokers.process_harness import http_get
from support.running.sanitizer import SANITIZED

from kbroker.client.admin import topics as topic_admin
from kbroker.client.connections.cluster import Cluster
from kbroker.exposition.http import REQUEST_BYTES_MAX
from kbroker.testing import Broker, wait_until
from kbroker.workers.exporter.exporter import CONNECTIONS_MAX, SCRAPES_MAX

pytestmark = pytest.mark.integration

PARTITIONS = 100
TOPIC = "orders-".ljust(249, "x")  # so that little has much text
SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
GROWTH_MIB_MAX = 16


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        with Cluster(running.bootstrap) as cluster:
            topic_admin.create_topics(cluster, [topic_admin.NewTopic(TOPIC, PARTITIONS)])
        wait_until(lambda: len(http_get(running, "/metrics")[1]) > 400_000)
        yield running


def connect(broker: Broker, window: int = 0) -> socket.socket:
    """window: of the receiver, so that its kernel does not read for it."""
    host, _, port = broker.metrics_url.removeprefix("http://").rpartition(":")
    sock = socket.socket()
    if window:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    sock.settimeout(60)
    sock.connect((host, int(port)))
    return sock


def resident_mib(broker: Broker) -> float:
    status = Path(f"/proc/{broker.pids['exporter-0']}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def is_closed(sock: socket.socket) -> bool:
    """Whether the other side has closed, whatever is left to read."""
    sock.setblocking(False)
    try:
        while sock.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def read_all(sock: socket.socket) -> bytes:
    found = b""
    with suppress(ConnectionResetError):
        while data := sock.recv(65536):
            found += data
    return found


def test_readers_that_do_not_read_keep_nobody_from_the_figures(broker: Broker) -> None:
    before = resident_mib(broker)
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(broker, window=2048)) for _ in range(3 * SCRAPES_MAX)]
        for sock in slow:
            sock.sendall(SCRAPE)
            assert len(sock.recv(10)) == 10  # it has begun
        began = time.monotonic()

        status, text = http_get(broker, "/metrics")

        assert (status, text.count("kafka_log_log_size{")) == (200, PARTITIONS)
        assert time.monotonic() - began < 30
        growth = resident_mib(broker) - before
        assert growth < GROWTH_MIB_MAX or SANITIZED, growth
        # The oldest have made room; the others may go on reading.
        assert read_all(slow[-1]).endswith(b"0\r\n\r\n")
        wait_until(lambda: all(is_closed(sock) for sock in slow[: 2 * SCRAPES_MAX]))


def test_more_connections_than_there_may_be_are_closed_and_the_others_time_out(
    broker: Broker,
) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(connect(broker)) for _ in range(CONNECTIONS_MAX + 20)]
        wait_until(lambda: sum(is_closed(sock) for sock in silent) >= 20)
        # Silent ones are gone after some seconds.
        wait_until(lambda: all(is_closed(sock) for sock in silent))
    wait_until(lambda: http_get(broker, "/health")[0] == 200)


def test_request_that_comes_a_byte_at_a_time_is_cut_off(broker: Broker) -> None:
    with connect(broker) as sock:
        began = time.monotonic()
        sent = 0

        def is_over() -> bool:
            nonlocal sent
            try:
                sock.sendall(b"G" if not sent else b"x")
                sent += 1
            except OSError:
                return True
            return is_closed(sock)

        wait_until(is_over, timeout=60)

    assert time.monotonic() - began >= 4
    assert sent < REQUEST_BYTES_MAX
    assert http_get(broker, "/livez")[0] == 200


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 5000, b"431"),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"GET /livez HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 50_000, b"200"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\n123456789", b"405"),
        (b"GET /metrics?x=1 HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /groups HTTP/1.1\r\n\r\n", b"200"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n", b"400"),
        (b"GET /livez HTTP/1.1\r\n\r\n" * 100, b"200"),
    ],
    ids=["headers", "path", "body", "post", "query", "groups", "tls", "pipelined"],
)
def test_hostile_request_gets_one_answer_and_an_end(
    broker: Broker, request_bytes: bytes, status: bytes
) -> None:
    with connect(broker) as sock:
        with suppress(OSError):  # it may have closed before it has all
            sock.sendall(request_bytes)
        answer = read_all(sock)

    assert answer.split()[1] == status
    assert answer.count(b"HTTP/1.1 ") == 1
    assert http_get(broker, "/livez")[0] == 200


def test_clients_that_leave_in_the_middle_leave_nothing(broker: Broker) -> None:
    descriptors = Path(f"/proc/{broker.pids['exporter-0']}/fd")
    before = len(list(descriptors.iterdir()))
    for number in range(100):
        with connect(broker, window=2048) as sock:
            sock.sendall(SCRAPE[: 5 + number % len(SCRAPE)])
            if number % 3 == 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
    wait_until(lambda: len(list(descriptors.iterdir())) <= before)
    assert http_get(broker, "/livez")[0] == 200


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/health?all", "/health takes no query"),
        ("/groups?group=x", "/groups takes no query"),
        ("/waiting?x", "/waiting takes no query"),
        ("/jmx?name=x", "only qry is allowed"),
        ("/readyz?why", "only ?verbose is allowed"),
    ],
)
def test_query_that_a_path_does_not_take_is_refused(
    broker: Broker, path: str, allowed: str
) -> None:
    """It would be taken for an answer to what was asked."""
    status, text = http_get(broker, path)

    assert status == 400
    assert allowed in text


@pytest.mark.parametrize(
    "path",
    [
        *("/metrics", "/metrics/cluster", "/jmx", "/quotas", "/groups", "/waiting"),
        *("/health", "/livez", "/", "/api/v1"),
    ],
)
def test_page_of_another_site_reads_nothing(broker: Broker, path: str) -> None:
    """Its name may point to this machine (DNS rebinding): one rule holds for all pages."""

    def status(host: bytes) -> int:
        with connect(broker) as sock:
            sock.sendall(b"GET %b HTTP/1.1\r\n%b\r\n" % (path.encode(), host))
            return int(sock.recv(4096).split()[1])

    for host in (b"Host: evil.example\r\n", b"hOST:evil.example:80\r\n", b"Host:\r\n"):
        assert status(host) == 403
    for host in (b"Host: 127.0.0.1\r\n", b"Host: LOCALHOST:9644\r\n", b"Host: [::1]:1\r\n"):
        assert status(host) != 403


def test_scraper_without_a_host_is_no_browser(broker: Broker) -> None:
    with connect(broker) as sock:
        sock.sendall(b"GET /quotas HTTP/1.0\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
