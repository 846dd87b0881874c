"""Accepted connections: spread, limited, counted again when they close or their process dies."""

from __future__ import annotations

import os
import resource
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from process_harness import Client, double_broker, health, http_get

from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    settings = getattr(request, "param", {})
    with double_broker(**settings) as started:
        yield started


def open_connections(broker: Broker) -> int:
    return sum(entry.get("connections", 0) for entry in health(broker)["processes"])


def test_connections_are_spread_evenly(broker: Broker) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(broker)) for _ in range(20)]

        served = Counter(client.ask() for client in clients)

    assert sorted(served.values()) == [10, 10]


@pytest.mark.parametrize("broker", [{"max_connections_per_ip": 3}], indirect=True)
def test_connection_above_the_limit_of_its_address_is_closed(broker: Broker) -> None:
    wait_until(lambda: open_connections(broker) == 0)  # the one that asked whether it is up
    with Client(broker) as one, Client(broker) as two, Client(broker) as three:
        assert all(client.ask() for client in (one, two, three))

        with Client(broker) as four:
            assert four.is_closed(timeout=5)

        two.close()
        wait_until(lambda: open_connections(broker) == 2)
        with Client(broker) as five:
            assert five.ask()
    assert "max.connections.per.ip" in broker.log_text
    assert (
        'kbroker_connections_refused_total{process="acceptor-0"} 1'
        in (http_get(broker, "/metrics")[1])
    )


@pytest.mark.parametrize("broker", [{"max_connections": 2}], indirect=True)
def test_connection_above_the_total_waits_until_one_closes(broker: Broker) -> None:
    wait_until(lambda: open_connections(broker) == 0)
    with Client(broker) as one, Client(broker) as two, Client(broker) as three:
        assert one.ask() and two.ask()
        assert not three.is_closed(timeout=0.2)

        one.close()

        assert three.ask()


@pytest.mark.parametrize("broker", [{"max_connection_creation_rate": 20}], indirect=True)
def test_connections_above_the_rate_are_delayed_not_refused(broker: Broker) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(broker)) for _ in range(30)]

        assert all(client.ask() for client in clients)


@pytest.mark.parametrize("broker", [{"max_connections_per_ip": 2}], indirect=True)
def test_connections_of_a_dead_network_process_are_forgotten(broker: Broker) -> None:
    wait_until(lambda: open_connections(broker) == 0)
    first, second = Client(broker), Client(broker)
    victims = {first.ask(), second.ask()}

    for pid in victims:
        os.kill(pid, signal.SIGKILL)

    assert first.is_closed(timeout=5) and second.is_closed(timeout=5)

    def is_served() -> bool:
        try:
            with Client(broker) as client:
                return client.ask() not in victims
        except OSError:
            return False

    assert wait_until(is_served)
    first.close()
    second.close()


def test_acceptor_without_descriptors_pauses_and_recovers(broker: Broker) -> None:
    pid = broker.pids["acceptor-0"]
    taken = set(map(int, os.listdir(f"/proc/{pid}/fd")))
    lowest_free = min(set(range(len(taken) + 1)) - taken)
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest_free, hard))
    with Client(broker) as client:
        wait_until(lambda: "cannot accept connections: Too many open files" in broker.log_text)
        ticks_before = cpu_ticks(pid)
        assert not client.is_closed(timeout=0.5)
        spent = cpu_ticks(pid) - ticks_before

        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))

        client._sock.settimeout(5)
        assert client.ask()
    assert spent <= 10, "it spun while it could not accept"


def cpu_ticks(pid: int) -> int:
    """CPU time of a process in hundredths of a second."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
