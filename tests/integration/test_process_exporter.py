"""The exporter over HTTP, from outside."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator

import pytest
from support.brokers.process_harness import Client, double_broker, health, http_get, tell
from support.clients.wire_client import WireClient

from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with double_broker(worker_restart_backoff_ms=1) as started:
        wait_until(lambda: http_get(started, "/health")[0] == 200)  # one is enough to serve
        yield started


def raw(broker: Broker, request: bytes) -> bytes:
    host, _, port = broker.metrics_url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(request)
        response = b""
        while data := sock.recv(65536):
            response += data
    return response


def test_health_names_every_process_and_its_state(broker: Broker) -> None:
    status, _ = http_get(broker, "/health")
    document = health(broker)

    assert status == 200
    assert document["status"] == "ok"
    assert {entry["name"]: entry["pid"] for entry in document["processes"]} == broker.pids


def test_health_is_503_until_a_restarted_process_serves(broker: Broker) -> None:
    order = tell(broker, "io-0", "slow")
    broker.kill("io", 0)
    wait_until(lambda: http_get(broker, "/health")[0] == 503)
    states = {entry["name"]: entry["state"] for entry in health(broker)["processes"]}

    order.unlink()

    assert states["io-0"] == "starting"
    assert states["io-1"] == "ready"
    wait_until(lambda: http_get(broker, "/health")[0] == 200)
    restarts = {entry["name"]: entry["restarts"] for entry in health(broker)["processes"]}
    assert restarts["io-0"] == 1
    assert restarts["io-1"] == 0


def test_metrics_are_prometheus_text_with_counts(broker: Broker) -> None:
    with Client(broker) as client:
        client.ask()

    status, text = http_get(broker, "/metrics")

    assert status == 200
    assert "# TYPE kbroker_connections_accepted_total counter" in text
    assert 'kbroker_process_up{process="network-0"} 1' in text
    # The acceptor counts a connection when it has handed it over: its client may be served before.
    wait_until(lambda: accepted(broker) >= 2)


def accepted(broker: Broker) -> int:
    lines = http_get(broker, "/metrics")[1].splitlines()
    taken = [line for line in lines if line.startswith("kbroker_connections_accepted_total")]
    return int(taken[0].split()[1])


def test_other_paths_are_404(broker: Broker) -> None:
    assert http_get(broker, "/consolex")[0] == 404
    assert http_get(broker, "/metricsx")[0] == 404


def test_probes_tell_which_check_fails(broker: Broker) -> None:
    assert http_get(broker, "/livez") == (200, "ok\n")
    assert http_get(broker, "/livez?verbose")[1].splitlines() == [
        "[+]supervisor ok",
        "livez check passed",
    ]
    order = tell(broker, "io-0", "slow")
    broker.kill("io", 0)
    wait_until(lambda: "[-]io-0 failed: not ready" in http_get(broker, "/healthz?verbose")[1])
    status, text = http_get(broker, "/readyz")

    order.unlink()

    assert (status, "io-0" in text) == (503, True)
    assert http_get(broker, "/readyz?full")[0] == 400
    wait_until(lambda: http_get(broker, "/health")[0] == 200)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nX: " + b"x" * 9000, b"431"),
        (b"HEAD /metrics HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /metrics HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /jmx?qry=%FF HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /jmx?a=1&b=2 HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /jmx?" + b"&".join(b"a%d=1" % i for i in range(40)) + b" HTTP/1.1\r\n\r\n", b"400"),
    ],
)
def test_odd_request_gets_its_status(broker: Broker, request_bytes: bytes, status: bytes) -> None:
    response = raw(broker, request_bytes)

    assert response.split()[1] == status


def test_silent_client_is_dropped_and_delays_nobody(broker: Broker) -> None:
    host, _, port = broker.metrics_url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as silent:
        assert http_get(broker, "/health")[0] == 200
        assert silent.recv(1) == b""


def test_metrics_say_that_topics_are_missing_while_the_controller_process_is_silent() -> None:
    with Broker({}) as broker:
        with WireClient((broker.host, broker.port)) as client:
            client.create_topic("known")
        pid = broker.kill("controller", 0, signal.SIGSTOP)
        try:
            silent = http_get(broker, "/metrics")[1]
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: "\nkbroker_topics_known 1\n" in http_get(broker, "/metrics")[1])
        heard = http_get(broker, "/metrics")[1]

        assert "\nkbroker_topics_known 0\n" in silent
        assert 'topic="known"' not in silent
        assert 'topic="known"' in heard
        assert "what topics there are is not known yet" in broker.log_text
