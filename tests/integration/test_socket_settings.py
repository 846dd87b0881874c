"""The effect of a listener's configs on the connections of a real broker."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest
from support.clients.wire_client import WireClient, batch_of

from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

IDLE_MS = 1500


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "connections.max.idle.ms": IDLE_MS,
        "socket.send.buffer.bytes": 50_000,
        "socket.receive.buffer.bytes": 70_000,
        "fetch.max.bytes": 5000,
    }
    with Broker(settings) as started:
        with WireClient((started.host, started.port)) as client:
            client.create_topic("t")
        yield started


@pytest.fixture
def client(broker: Broker) -> Iterator[WireClient]:
    with WireClient((broker.host, broker.port)) as connected:
        yield connected


def test_connection_is_closed_when_idle_and_not_before(client: WireClient) -> None:
    began = time.monotonic()
    client.metadata("t")

    assert client.is_closed(30)
    assert time.monotonic() - began >= IDLE_MS / 1000


def test_connection_that_waits_for_data_is_not_idle(client: WireClient) -> None:
    """A long poll may exceed the idle timeout."""
    end = client.offset("t", 0, -1)

    assert client.fetch("t", 0, end, max_wait_ms=2 * IDLE_MS).error_code == 0
    assert not client.is_closed(IDLE_MS / 2000), "it is idle from the answer on"
    assert client.metadata("t").topics[0].error_code == 0


@pytest.mark.skipif(shutil.which("ss") is None, reason="ss (iproute2) shows the buffers")
def test_socket_buffers_have_the_sizes_that_are_set(broker: Broker, client: WireClient) -> None:
    """Linux doubles the requested size."""
    client.metadata("t")

    command = ["ss", "-tmn", f"sport = :{broker.port}"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "rb140000," in shown and "tb100000," in shown, shown


def test_fetch_returns_fetch_max_bytes_at_most(client: WireClient) -> None:
    for _ in range(3):
        client.produce("t", {0: batch_of([b"x" * 4000])})

    assert len(client.fetch("t", 0, 0).records) == 5000


@pytest.mark.parametrize("given", [None, 200_000])
def test_buffers_of_clients_are_the_systems_unless_they_are_set(
    monkeypatch: pytest.MonkeyPatch, given: int | None
) -> None:
    """A size that is set turns off that the system sizes the buffer to the connection, and a
    consumer's had no effect.
    """
    asked: list[tuple[int, int]] = []
    own = socket.socket.setsockopt

    def note(one: socket.socket, level: int, option: int, *value: int) -> None:
        if level == socket.SOL_SOCKET and option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            asked.append((option, value[0]))
        own(one, level, option, *value)

    monkeypatch.setattr(socket.socket, "setsockopt", note)
    settings = {} if given is None else {"receive.buffer.bytes": given}
    with Broker() as broker:
        where = {"bootstrap.servers": broker.bootstrap}
        with KafkaProducer(where) as producer:
            producer.send("t", b"x").result(30)
        assert asked == []
        with KafkaConsumer({**where, **settings, "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([("t", 0)])
            wait_until(lambda: consumer.poll(1.0))
    assert set(asked) == (set() if given is None else {(socket.SO_RCVBUF, given)})
