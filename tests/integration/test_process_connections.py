"""Accepted connections: distributed, limited, counted again when they close or their process
dies.
"""

from __future__ import annotations

import os
import re
import resource
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from support.brokers.all_processes import wait_until_all_serve
from support.brokers.process_harness import Client, double_broker, health, http_get
from support.clients.wire_client import WireClient

from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    settings = getattr(request, "param", {})
    with double_broker(**settings) as started:
        yield started


def open_connections(broker: Broker) -> int:
    return sum(entry.get("connections", 0) for entry in health(broker)["processes"])


def is_served(broker: Broker) -> int:
    """The pid of the network process that serves a new connection, 0 if it is rejected."""
    try:
        with Client(broker) as client:
            return client.ask()
    except OSError:
        return 0


def served_clients(broker: Broker, count: int) -> list[Client]:
    """Open so many connections, as soon as the broker has noticed the end of the previous ones."""

    def ask_all() -> bool:
        clients.extend(Client(broker) for _ in range(count))
        try:
            return all(client.ask() for client in clients)
        except OSError:
            while clients:
                clients.pop().close()
            return False

    clients: list[Client] = []
    wait_until(ask_all)
    return clients


def test_connections_are_spread_evenly(broker: Broker) -> None:
    wait_until_all_serve(broker)
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(broker)) for _ in range(20)]

        served = Counter(client.ask() for client in clients)

    assert sorted(served.values()) == [10, 10]


@pytest.mark.parametrize("broker", [{"max_connections_per_ip": 3}], indirect=True)
def test_connection_above_the_limit_of_its_address_is_closed(broker: Broker) -> None:
    with ExitStack() as stack:
        _one, two, _three = (stack.enter_context(c) for c in served_clients(broker, 3))

        with Client(broker) as four:
            assert four.is_closed(timeout=30)

        two.close()
        wait_until(lambda: is_served(broker))  # once the acceptor has noticed
    refused = http_get(broker, "/metrics")[1]
    assert "max.connections.per.ip" in broker.log_text
    assert 'kbroker_connections_refused_total{process="acceptor-0"}' in refused


@pytest.mark.parametrize(
    "broker", [{"max_connections_per_ip_overrides": "localhost:1,nobody.invalid:1"}], indirect=True
)
def test_limit_of_a_host_name_is_for_its_addresses(broker: Broker) -> None:
    wait_until(lambda: "no address of nobody.invalid" in broker.log_text)
    with served_clients(broker, 1)[0]:
        with Client(broker) as two:
            assert two.is_closed(timeout=30)


@pytest.mark.parametrize("broker", [{"max_connections": 2}], indirect=True)
def test_connection_above_the_total_waits_until_one_closes(broker: Broker) -> None:
    wait_until(lambda: open_connections(broker) == 0)
    http_get(broker, "/metrics")  # shares of time are those since somebody asked
    with Client(broker) as one, Client(broker) as two, Client(broker) as three:
        assert one.ask() and two.ask()
        assert not three.is_closed(timeout=0.2)

        one.close()

        assert three.ask()
    blocked = r'kbroker_acceptor_blocked_nanoseconds_total\{[^}]*listener="PLAINTEXT"\} (\d+)'
    (found,) = re.findall(blocked, http_get(broker, "/metrics")[1])
    assert int(found) > 0
    name = "kafka_network_acceptor_acceptorblocked_percent"
    shares = rf'{name}\{{listener="PLAINTEXT"\}} ([0-9.]+)\n'
    wait_until(lambda: any(map(float, re.findall(shares, http_get(broker, "/metrics")[1]))))


@pytest.mark.parametrize("broker", [{"max_connection_creation_rate": 20}], indirect=True)
def test_connections_above_the_rate_are_delayed_not_refused(broker: Broker) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(broker)) for _ in range(30)]

        assert all(client.ask() for client in clients)


@pytest.mark.parametrize("broker", [{"max_connections_per_ip": 2}], indirect=True)
def test_connections_of_a_dead_network_process_are_forgotten(broker: Broker) -> None:
    first, second = served_clients(broker, 2)
    victims = {first.ask(), second.ask()}

    for pid in victims:
        os.kill(pid, signal.SIGKILL)

    assert first.is_closed(timeout=30) and second.is_closed(timeout=30)

    wait_until(lambda: is_served(broker) not in {0, *victims})
    first.close()
    second.close()


def admitted(stack: ExitStack, address: tuple[str, int]) -> WireClient | None:
    """A client that is served. The acceptor learns of closed connections a little later than the
    others.
    """
    client = stack.enter_context(WireClient(address))
    try:
        client.metadata()
    except OSError:
        client.close()
        return None
    return client


def test_restarted_acceptor_knows_the_addresses_of_open_connections() -> None:
    """Including those that close while it counts."""
    with Broker({"max.connections.per.ip": 6}) as broker, ExitStack() as stack:
        address = (broker.host, broker.port)
        wait_until(lambda: open_connections(broker) == 0)
        first = [stack.enter_context(WireClient(address)) for _ in range(4)]
        assert all(client.metadata() for client in first)
        before = broker.pids["acceptor-0"]
        os.kill(before, signal.SIGKILL)
        first.pop().close()
        wait_until(lambda: broker.pids.get("acceptor-0", before) != before)
        first.pop().close()
        wait_until(lambda: open_connections(broker) == 2)

        more = [wait_until(lambda: admitted(stack, address)) for _ in range(4)]
        with pytest.raises(OSError), WireClient(address) as refused:
            refused.metadata()
        more.pop().close()
        wait_until(lambda: open_connections(broker) == 5)
        wait_until(lambda: admitted(stack, address))


def test_acceptor_without_descriptors_pauses_and_recovers(broker: Broker) -> None:
    pid = broker.pids["acceptor-0"]
    wait_until_all_serve(broker)
    taken = settled_descriptors(pid)
    lowest_free = min(set(range(len(taken) + 1)) - taken)
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest_free, hard))
    with Client(broker) as client:
        wait_until(lambda: "cannot accept connections: Too many open files" in broker.log_text)
        ticks_before = cpu_ticks(pid)
        assert not client.is_closed(timeout=0.5)
        spent = cpu_ticks(pid) - ticks_before

        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))

        assert client.ask()
    assert spent <= 10, "it spun while it could not accept"


def settled_descriptors(pid: int) -> set[int]:
    """The open file descriptors of a process once its links to the others exist: unchanged for a
    while.
    """
    seen: list[set[int]] = []

    def is_settled() -> bool:
        seen.append(set(map(int, os.listdir(f"/proc/{pid}/fd"))))
        return len(seen) > 20 and all(other == seen[-1] for other in seen[-20:])

    wait_until(is_settled)
    return seen[-1]


def cpu_ticks(pid: int) -> int:
    """CPU time of a process in hundredths of a second."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
