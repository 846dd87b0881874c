"""Connections that are made in threads, while the loop goes on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker, sasl_responses
from support.network.peer_loop import PeerLoop
from support.security.secured_peers import HOST, PASSWORD, USER, SecuredPeers

from kbroker.peers.connecting import Connecting
from kbroker.peers.secured import Secured
from kbroker.peers.security import PeerSecurity
from kbroker.protocol.api import ApiKey

pytestmark = pytest.mark.unit


@pytest.fixture
def loop() -> Iterator[PeerLoop]:
    made = PeerLoop()
    yield made
    made.close()


def outcome_of(loop: PeerLoop, connecting: Connecting, host: str, port: int) -> Secured | OSError:
    outcomes: list[Secured | OSError] = []
    loop.add_reader(connecting.fd, connecting.run)
    connecting.connect(host, port, 20, -1, outcomes.append)
    loop.run_until(lambda: outcomes)
    loop.remove_reader(connecting.fd)
    return outcomes[0]


def test_connection_is_plain_without_security(loop: PeerLoop) -> None:
    with FakeBroker() as broker:
        outcome = outcome_of(loop, Connecting(), HOST, broker.port)

        assert isinstance(outcome, Secured)
        assert type(outcome.socket) is socket.socket and not outcome.socket.getblocking()
        outcome.socket.close()
    assert broker.requests == []


def test_address_where_nobody_listens_is_an_error(loop: PeerLoop) -> None:
    with socket.create_server((HOST, 0)) as held:
        port = held.getsockname()[1]

    assert isinstance(outcome_of(loop, Connecting(), HOST, port), ConnectionRefusedError)


def test_name_that_no_resolver_takes_is_an_error(loop: PeerLoop) -> None:
    outcome = outcome_of(loop, Connecting(), "a" * 64 + ".example", 1)

    assert isinstance(outcome, OSError) and "is no host name" in str(outcome)


def test_loop_goes_on_during_a_login(loop: PeerLoop, tmp_path: Path) -> None:
    """The other broker delays its answer to a failed one, and a signature takes milliseconds."""
    asked, released = threading.Event(), threading.Event()
    turns: list[int] = []

    def slow(request: Any, state: dict[str, Any]) -> Any:
        asked.set()
        assert released.wait(20), "the loop stands still"
        return answers[ApiKey.SASL_HANDSHAKE](request, state)

    def tick(now_ms: int) -> None:
        if asked.is_set():
            turns.append(now_ms)
            if len(turns) == 5:
                released.set()

    peers = SecuredPeers(tmp_path)
    answers = sasl_responses("PLAIN", USER, PASSWORD)
    loop.ticks.append(tick)
    slowed = {**answers, ApiKey.SASL_HANDSHAKE: slow}
    with FakeBroker(slowed, context=peers.server_context()) as broker:
        security = PeerSecurity(peers.config("SASL_SSL"), "SASL_SSL")
        outcome = outcome_of(loop, Connecting(security), HOST, broker.port)

    assert isinstance(outcome, Secured), outcome
    outcome.socket.close()
