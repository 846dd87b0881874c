"""Names with several addresses, of which some are silent or refuse."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from support.network.silent_address import silent_address

from kbroker.client.connections import addresses

pytestmark = pytest.mark.unit


class Hosts:
    """Addresses of a name, of which a test says what they do."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.found: list[tuple[str, int]] = []

    def serving(self) -> tuple[str, int]:
        listener = self._stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.found.append(listener.getsockname())
        return self.found[-1]

    def silent(self) -> None:
        self.found.append(self._stack.enter_context(silent_address()))

    def refusing(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.found.append(listener.getsockname())


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    with ExitStack() as stack:
        made = Hosts(stack)
        monkeypatch.setattr(
            socket,
            "getaddrinfo",
            lambda *_, **__: [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in made.found
            ],
        )
        yield made


@pytest.mark.parametrize("before", ["silent", "refusing"])
def test_an_address_that_does_not_serve_costs_a_moment(hosts, before):
    getattr(hosts, before)()
    address = hosts.serving()

    with addresses.connect("name", 1, 20.0) as made:
        assert made.getpeername() == address


def test_the_first_address_is_taken_if_it_serves(hosts):
    address = hosts.serving()
    hosts.serving()

    with addresses.connect("name", 1, 20.0) as made:
        assert made.getpeername() == address


def test_that_all_addresses_refuse_is_told_at_once(hosts):
    hosts.refusing()
    hosts.refusing()

    with pytest.raises(ConnectionRefusedError):
        addresses.connect("name", 1, 20.0)


@pytest.mark.parametrize("count", [1, 2])
def test_silent_addresses_time_out(hosts, count):
    for _ in range(count):
        hosts.silent()

    with pytest.raises(TimeoutError):
        addresses.connect("name", 1, 0.3)
