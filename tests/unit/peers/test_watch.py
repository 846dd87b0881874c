"""A watch over real sockets: what ends a connection, and what is found where it was."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker
from support.network.peer_loop import PeerLoop
from support.security.secured_peers import HOST, SecuredPeers

from kbroker.cluster.control_requests import LiveBroker
from kbroker.config.loader import BrokerConfig
from kbroker.ipc.pending import run
from kbroker.peers.connecting import Connecting
from kbroker.peers.endpoints import PeerListener
from kbroker.peers.evidence import HURRIED_ATTEMPTS, Hearing
from kbroker.peers.link import Link, LinkFailed, LinkTimeouts
from kbroker.peers.security import PeerSecurity
from kbroker.peers.watch import PeerWatches, WatchedBroker
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.peer_status import PeerStatusResponse

pytestmark = pytest.mark.unit

LISTENER = PeerListener("PLAINTEXT", "PLAINTEXT")
ME, OTHER, EPOCH = 1, 2, 70


class Peer:
    """Another broker that can be killed: its listener and its connections end. context: of TLS."""

    def __init__(self, context: ssl.SSLContext | None = None, **answer: Any) -> None:
        self.answer = {"broker_id": OTHER, "broker_epoch": EPOCH, "hearing": 0, **answer}
        self.connections: list[socket.socket] = []
        self.is_killed = False
        self.broker = FakeBroker({ApiKey.PEER_STATUS: self._status}, context=context)
        serve = self.broker._serve

        def serving(connection: socket.socket) -> None:
            self.connections.append(connection.dup())  # TLS takes the first one
            if self.is_killed:  # while it was accepted
                self.close_connections()
            serve(connection)

        self.broker._serve = serving  # type: ignore[method-assign]

    def _status(self, request: Any, state: dict[str, Any]) -> PeerStatusResponse:
        return PeerStatusResponse(**self.answer)

    def close_connections(self) -> None:
        while self.connections:
            with self.connections.pop() as connection, suppress(OSError):  # it has ended already
                connection.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        self.is_killed = True
        self.broker.listener.shutdown(socket.SHUT_RDWR)
        self.broker.listener.close()
        self.close_connections()


class Watching:
    """A broker that watches others; the owner of its watches."""

    def __init__(
        self, listener: PeerListener = LISTENER, security: PeerSecurity | None = None
    ) -> None:
        self.loop = PeerLoop()
        self.ahead_ms = 0
        self.connecting = Connecting(security)
        self.loop.add_reader(self.connecting.fd, self.connecting.run)
        self._listener = listener
        self.watches = PeerWatches(ME, self._link, listener, self.loop, self.now_ms)
        self.loop.ticks.append(lambda _: self.watches.tick(self.now_ms()))
        self.told: list[str] = []

    def now_ms(self) -> int:
        return self.loop.now_ms() + self.ahead_ms

    def _link(self) -> Link:
        return Link(self.loop, self.connecting, str(ME), LinkTimeouts(20_000, 20_000), self.now_ms)

    def watch(self, port: int, host: str = "127.0.0.1", *, answers: bool = True) -> None:
        name, protocol = self._listener
        live = LiveBroker([[name, host, port, protocol]], None)
        self.watches.watch({OTHER: WatchedBroker(EPOCH, live, answers)}, self)

    @property
    def evidence(self) -> Any:
        return self.watches.evidence(OTHER)

    def gone(self, broker_id: int) -> None:
        self.told.append(f"{broker_id} gone")

    def reached(self, broker_id: int) -> None:
        self.told.append(f"{broker_id} reached")

    def wait(self, *told: str) -> None:
        self.loop.run_until(lambda: self.told == list(told))

    def attempts(self, count: int) -> None:
        """Let this many attempts end."""
        evidence = self.evidence
        until = evidence._attempts + count
        self.loop.run_until(lambda: evidence._attempts >= until)

    def close(self) -> None:
        self.watches.close()
        self.loop.remove_reader(self.connecting.fd)
        self.loop.close()


@pytest.fixture
def watching() -> Iterator[Watching]:
    made = Watching()
    yield made
    made.close()


@pytest.mark.parametrize("answers", [True, False])
def test_broker_that_was_killed_is_gone(watching: Watching, answers: bool) -> None:
    """Nothing is asked of a Kafka: it is only connected to."""
    peer = Peer()
    watching.watch(peer.broker.port, answers=answers)
    watching.wait("2 reached")
    assert len(peer.broker.requests) == answers
    assert (watching.evidence.epoch, watching.evidence.hearing) == (EPOCH, Hearing.HEARS)

    peer.kill()

    watching.wait("2 reached", "2 gone")
    assert watching.evidence.is_gone


def test_connection_that_is_closed_alone_is_made_again(watching: Watching) -> None:
    """One of its processes has died, or the connection was idle for too long."""
    peer = Peer()
    watching.watch(peer.broker.port)
    watching.wait("2 reached")
    peer.close_connections()
    watching.wait("2 reached", "2 reached")
    peer.kill()
    watching.wait("2 reached", "2 reached", "2 gone")


def test_broker_that_is_back_is_told_once_it_is_reached(watching: Watching) -> None:
    peer = Peer()
    port = peer.broker.port
    watching.watch(port)
    watching.wait("2 reached")
    peer.kill()
    watching.wait("2 reached", "2 gone")
    back = Peer(broker_epoch=EPOCH + 5)
    back.broker.listener.close()
    with socket.create_server(("127.0.0.1", port)) as listener:
        back.broker.listener = listener
        threading.Thread(target=back.broker._accept, daemon=True).start()
        watching.wait("2 reached", "2 gone", "2 reached")
        assert watching.evidence.epoch == EPOCH + 5
        back.kill()


def no_kafka(listener: socket.socket, said: bytes) -> None:
    """Another program, which says this to whoever connects, and closes."""

    def serve() -> None:
        try:
            while True:
                with listener.accept()[0] as connection:
                    connection.sendall(said)
        except OSError:
            pass

    threading.Thread(target=serve, daemon=True).start()


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Those that say why nothing happens."""
    said = (record.getMessage() for record in caplog.records)
    return [line for line in said if "its session decides" in line]


@pytest.mark.parametrize("answer", [{"broker_epoch": -1}, {"error_code": 31}])
def test_broker_without_a_registration_is_not_reached(
    watching: Watching, answer: dict[str, int]
) -> None:
    """It may be the next run of one that is gone: its end would say nothing of the registration."""
    peer = Peer(**answer)
    watching.watch(peer.broker.port)
    watching.attempts(3)
    assert watching.told == []
    peer.answer |= {"broker_epoch": EPOCH, "error_code": 0}
    watching.wait("2 reached")
    peer.kill()


PROGRAMS = {"another program": b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", "a trap for scanners": b""}


@pytest.mark.parametrize("what", [*PROGRAMS, "another broker"])
def test_something_else_at_its_port_is_no_evidence(
    watching: Watching, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says that the session decides."""
    caplog.set_level(logging.INFO)
    peer = Peer()
    port = peer.broker.port
    watching.watch(port)
    watching.wait("2 reached")
    peer.kill()
    with socket.create_server(("127.0.0.1", port)) as listener:
        if what in PROGRAMS:
            no_kafka(listener, PROGRAMS[what])
        else:
            other = Peer(broker_id=9)
            other.broker.listener.close()
            other.broker.listener = listener
            threading.Thread(target=other.broker._accept, daemon=True).start()
        watching.attempts(HURRIED_ATTEMPTS + 2)
        assert watching.told == ["2 reached"]
        listener.shutdown(socket.SHUT_RDWR)
    assert len(lines_of(caplog)) == 1


def test_listener_whose_certificate_has_expired_is_no_evidence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker lives: its administrator has forgotten something."""
    caplog.set_level(logging.INFO)
    site = SecuredPeers(tmp_path)
    listener = PeerListener("SSL", "SSL")
    watching = Watching(listener, PeerSecurity(BrokerConfig(site.settings("SSL")), "SSL"))
    peer = Peer(site.server_context())
    watching.watch(peer.broker.port)
    watching.wait("2 reached")
    long_ago = datetime.now(UTC) - timedelta(days=3)
    site.issue([HOST], days=1, starts_at=long_ago)
    peer.broker.context = site.server_context()

    peer.close_connections()
    watching.attempts(HURRIED_ATTEMPTS + 2)

    assert watching.told == ["2 reached"]
    (line,) = lines_of(caplog)
    assert "certificate has expired" in line
    peer.kill()
    watching.close()


def test_port_that_is_scanned_is_refused_all_the_same(watching: Watching) -> None:
    """Whoever else tries the port of a dead broker, or of this one, changes nothing."""
    peer = Peer()
    watching.watch(peer.broker.port)
    with socket.create_connection(("127.0.0.1", peer.broker.port)):
        watching.wait("2 reached")
    peer.kill()
    for _ in range(100):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", peer.broker.port))
    watching.wait("2 reached", "2 gone")


def test_name_that_resolves_no_more_is_no_evidence(
    watching: Watching, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker is killed while the name server is gone, too: nobody has refused a connection."""
    caplog.set_level(logging.INFO)
    peer = Peer()
    watching.watch(peer.broker.port, "localhost")
    watching.wait("2 reached")

    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    peer.kill()
    watching.attempts(HURRIED_ATTEMPTS + 2)

    assert watching.told == ["2 reached"]
    (line,) = lines_of(caplog)
    assert "name resolution" in line


def test_address_that_does_not_resolve_is_no_evidence(watching: Watching) -> None:
    watching.watch(9092, "no.such.host.invalid")
    watching.attempts(4)
    assert watching.evidence.hearing is Hearing.UNKNOWN
    assert watching.told == []


def test_listener_that_it_has_no_more_is_no_evidence(watching: Watching) -> None:
    live = LiveBroker([["OTHER", "127.0.0.1", 1, "PLAINTEXT"]], None)
    watching.watches.watch({OTHER: WatchedBroker(EPOCH, live, True)}, watching)
    watching.attempts(4)
    assert watching.evidence.hearing is Hearing.UNKNOWN


def test_question_about_another_broker_goes_over_the_connection(watching: Watching) -> None:
    peer = Peer(hearing=int(Hearing.GONE))
    watching.watch(peer.broker.port)
    watching.wait("2 reached")
    answer = run(watching.watches.ask(OTHER, 3, 33))
    watching.loop.run_until(lambda: answer.done)
    assert answer.value is Hearing.GONE
    assert peer.broker.connections == 1
    asked = peer.broker.requests[-1]
    assert (asked.broker_id, asked.about_id, asked.about_epoch) == (ME, 3, 33)
    peer.kill()


def test_broker_that_is_not_connected_cannot_be_asked(watching: Watching) -> None:
    for broker_id in (OTHER, 9):
        answer = run(watching.watches.ask(broker_id, 3, 33))
        assert isinstance(answer.error, LinkFailed)


def test_question_that_finds_the_connection_lost_begins_attempts(watching: Watching) -> None:
    peer = Peer()
    watching.watch(peer.broker.port)
    watching.wait("2 reached")
    peer.kill()
    answer = run(watching.watches.ask(OTHER, 3, 33))
    watching.loop.run_until(lambda: answer.done)
    assert isinstance(answer.error, LinkFailed)
    watching.wait("2 reached", "2 gone")


def test_hearing_that_a_later_version_may_send_is_unknown(watching: Watching) -> None:
    peer = Peer(hearing=99)
    watching.watch(peer.broker.port)
    watching.wait("2 reached")
    answer = run(watching.watches.ask(OTHER, 3, 33))
    watching.loop.run_until(lambda: answer.done)
    assert answer.value is Hearing.UNKNOWN
    peer.kill()


def test_other_registration_is_watched_from_the_start(watching: Watching) -> None:
    peer, other = Peer(), Peer()
    watching.watch(peer.broker.port)
    watching.wait("2 reached")
    before = watching.evidence
    watching.watch(other.broker.port)
    watching.wait("2 reached", "2 reached")
    assert watching.evidence is not before
    watching.watches.watch({}, watching)
    assert watching.evidence is None
    peer.kill()
    other.kill()
