"""A link over each security protocol: long messages, lost connections, sessions that end."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker, sasl_responses
from support.network.peer_loop import PeerLoop
from support.security.secured_peers import HOST, PASSWORD, USER, SecuredPeers

from kbroker.peers.connecting import Connecting
from kbroker.peers.link import Link, LinkFailed, LinkTimeouts, PeerAddress
from kbroker.peers.security import PeerSecurity
from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse

pytestmark = pytest.mark.unit

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
LONG = 3_000  # topics, each with a long name


class Caller:
    """A link in a loop. ``now_ms`` can be moved on."""

    def __init__(self, security: PeerSecurity | None) -> None:
        self.loop = PeerLoop()
        self.ahead_ms = 0
        self.connecting = Connecting(security)
        self.loop.add_reader(self.connecting.fd, self.connecting.run)
        times = LinkTimeouts(20_000, 20_000)
        self.link = Link(self.loop, self.connecting, "1", times, self.now_ms)

    def now_ms(self) -> int:
        return self.loop.now_ms() + self.ahead_ms

    def ask(self, broker: FakeBroker, request: Message | None = None) -> Any:
        pending = self.link.ask(PeerAddress(HOST, broker.port), request or MetadataRequest(), 1)
        self.loop.run_until(lambda: pending.done)
        if pending.error is not None:
            raise pending.error
        return pending.value

    def close(self) -> None:
        self.link.close()
        self.loop.remove_reader(self.connecting.fd)
        self.loop.close()


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> SecuredPeers:
    return SecuredPeers(tmp_path_factory.mktemp("site"))


@pytest.fixture
def callers() -> Iterator[list[Caller]]:
    made: list[Caller] = []
    yield made
    for each in made:
        each.close()


def start(
    peers: SecuredPeers, callers: list[Caller], protocol: str, lifetime_ms: int = 0
) -> tuple[Caller, FakeBroker]:
    answers = sasl_responses("PLAIN", USER, PASSWORD, lifetime_ms)
    context = peers.server_context() if protocol.endswith("SSL") else None
    security = None
    if protocol != "PLAINTEXT":
        security = PeerSecurity(peers.config(protocol), protocol)
    callers.append(Caller(security))
    return callers[-1], FakeBroker(answers, context=context)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_requests_and_responses_of_any_length_arrive(
    peers: SecuredPeers, callers: list[Caller], protocol: str
) -> None:
    """Of many TLS records, and more than a socket takes at once."""
    caller, broker = start(peers, callers, protocol)
    names = [f"{number:0>240}" for number in range(LONG)]

    def long(request: Any, state: dict[str, Any]) -> Message:
        topics = [MetadataResponse.MetadataResponseTopic(name=one) for one in names]
        return MetadataResponse(topics=topics)

    broker.answers[ApiKey.METADATA] = long
    with broker:
        topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        for _ in range(2):
            response = caller.ask(broker, MetadataRequest(topics=topics))
            assert [topic.name for topic in response.topics] == names
            assert [topic.name for topic in broker.requests[-1].topics] == names
    assert broker.connections == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_response_in_pieces_is_put_together(
    peers: SecuredPeers, callers: list[Caller], protocol: str
) -> None:
    caller, broker = start(peers, callers, protocol)

    def pieces(request: Any, state: dict[str, Any]) -> Iterator[bytes]:
        frame = state["frame_of"](MetadataResponse(topics=[]))
        return (frame[at : at + 1] for at in range(len(frame)))

    broker.answers[ApiKey.METADATA] = pieces
    with broker:
        assert caller.ask(broker).topics == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_connection_that_is_lost_fails_the_request_and_is_made_again(
    peers: SecuredPeers, callers: list[Caller], protocol: str
) -> None:
    caller, broker = start(peers, callers, protocol)
    whole = broker.answers[ApiKey.METADATA]
    broker.answers[ApiKey.METADATA] = lambda request, state: None
    with broker:
        with pytest.raises(LinkFailed, match="it closed the connection"):
            caller.ask(broker)
        broker.answers[ApiKey.METADATA] = whole

        assert caller.ask(broker).brokers[0].port == broker.port
    assert broker.connections == 2


@pytest.mark.parametrize(("lifetime_ms", "connections"), [(0, 1), (100_000, 2)])
def test_session_that_is_about_to_end_is_renewed_with_the_next_request(
    peers: SecuredPeers, callers: list[Caller], lifetime_ms: int, connections: int
) -> None:
    """The other broker would close the connection at that request (KIP-368)."""
    caller, broker = start(peers, callers, "SASL_SSL", lifetime_ms)
    with broker:
        caller.ask(broker)
        caller.ahead_ms = 84_000
        caller.ask(broker)
        assert broker.connections == 1

        caller.ahead_ms = 90_000
        caller.ask(broker)

    assert broker.connections == connections


def test_failed_login_fails_the_request_with_the_reason(
    peers: SecuredPeers, callers: list[Caller]
) -> None:
    caller, broker = start(peers, callers, "SASL_SSL")
    broker.answers |= sasl_responses("PLAIN", USER, "another")
    with broker, pytest.raises(LinkFailed, match="cannot connect: the login of this broker as"):
        caller.ask(broker)


def test_broker_that_is_not_there_fails_the_request(callers: list[Caller]) -> None:
    with socket.create_server((HOST, 0)) as held:
        port = held.getsockname()[1]
    callers.append(Caller(None))
    pending = callers[0].link.ask(PeerAddress(HOST, port), MetadataRequest(), 1)
    callers[0].loop.run_until(lambda: pending.done)

    assert isinstance(pending.error, LinkFailed)
