"""Handshakes in their thread, with Python's own TLS at the other end."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.errors import InvariantError
from kbroker.security.certificates import Authority, create_authority
from kbroker.security.principal import ANONYMOUS, KafkaPrincipal
from kbroker.security.tls.principal_mapping import PrincipalMapping
from kbroker.workers.base import now_ms
from kbroker.workers.network import handshakes
from kbroker.workers.network.arrival import Arrival
from kbroker.workers.network.handshakes import HandshakeEnd, Handshakes

pytestmark = pytest.mark.unit


def await_readable(fd: int) -> None:
    """Not with select(), as the process may have more than 1,024 descriptors."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll(20_000)


ARRIVAL = Arrival(0, "198.51.100.4", 40123, ("192.0.2.7", 9093))


class Site:
    """The sides' contexts. tls: the listener's."""

    def __init__(self, place: Path, client_auth: ssl.VerifyMode = ssl.CERT_NONE) -> None:
        self.place = place
        self.authority = create_authority("test CA")
        key = place / "server.pem"
        key.write_bytes(self.authority.issue("server", hosts=["localhost"], server=True).pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(key)
        context.load_verify_locations(cadata=self.authority.certificate.decode())
        context.verify_mode = client_auth
        rules = PrincipalMapping("RULE:^CN=(a.*)$/$1/")
        self.tls: Any = SimpleNamespace(context=context, mapping=rules, uses_sasl=False)

    def client(self, name: str | None = None, signer: Authority | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.authority.certificate.decode())
        if name is not None:
            key = self.place / "client.pem"
            key.write_bytes((signer or self.authority).issue(name).pem)
            context.load_cert_chain(key)
        return context


@pytest.fixture
def served() -> Iterator[Handshakes]:
    made = Handshakes(now_ms)
    yield made
    made.close()


def arrive(served: Handshakes, site: Site) -> socket.socket:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(20)
    served.start(ours, ARRIVAL, site.tls)
    return theirs


def result(served: Handshakes) -> HandshakeEnd:
    while True:
        await_readable(served.fd)
        if found := served.results():
            assert len(found) == 1
            return found[0]


def wrap(context: ssl.SSLContext, plain: socket.socket) -> ssl.SSLSocket:
    return context.wrap_socket(plain, server_hostname="localhost")


def test_client_without_certificate_is_nobody(tmp_path: Path, served: Handshakes) -> None:
    site = Site(tmp_path)
    secured = wrap(site.client(), arrive(served, site))
    done = result(served)

    assert (done.principal, done.reason, served.count) == (ANONYMOUS, "", 0)
    assert done.connected is not None
    done.connected.setblocking(True)
    done.connected.send(b"x")
    assert secured.recv(1) == b"x"
    secured.close()
    done.connected.close()


@pytest.mark.parametrize(
    ("name", "uses_sasl", "principal"),
    [("alice", False, KafkaPrincipal("User", "alice")), ("alice", True, ANONYMOUS)],
)
def test_principal_is_that_of_the_certificate_unless_there_is_a_login(
    tmp_path: Path, served: Handshakes, name: str, uses_sasl: bool, principal: KafkaPrincipal
) -> None:
    site = Site(tmp_path, ssl.CERT_REQUIRED)
    site.tls.uses_sasl = uses_sasl
    secured = wrap(site.client(name), arrive(served, site))
    done = result(served)

    assert (done.principal, done.reason) == (principal, "")
    assert done.connected is not None
    done.connected.close()
    secured.close()


def refused(secured: ssl.SSLSocket) -> str:
    """What the client reads, although it goes on writing."""
    with suppress(OSError):
        secured.send(b"x" * 100_000)
    with pytest.raises(ssl.SSLError) as told:
        secured.recv(1)
    secured.close()
    return str(told.value).lower()


@pytest.mark.parametrize(
    ("name", "foreign", "reason", "alert"),
    [
        (None, False, "the client has shown no certificate", "certificate required"),
        ("alice", True, "the certificate is not accepted", "alert"),
    ],
)
def test_refused_client_is_named_and_reads_the_alert(
    tmp_path: Path,
    served: Handshakes,
    name: str | None,
    foreign: bool,
    reason: str,
    alert: str,
) -> None:
    site = Site(tmp_path, ssl.CERT_REQUIRED)
    context = site.client(name, create_authority("another CA") if foreign else None)
    for _ in range(20):
        secured = wrap(context, arrive(served, site))
        assert alert in refused(secured).replace("_", " ")
        done = result(served)
        assert done.connected is None
        assert reason in done.reason
    assert served.count == 0


def test_certificate_that_no_rule_matches_is_refused(tmp_path: Path, served: Handshakes) -> None:
    site = Site(tmp_path, ssl.CERT_REQUIRED)
    secured = wrap(site.client("bob"), arrive(served, site))
    done = result(served)

    assert done.connected is None
    assert done.reason == "no rule of ssl.principal.mapping.rules matches: 'CN=bob'"
    secured.close()


def test_client_that_goes_away_is_no_line_in_the_log(tmp_path: Path, served: Handshakes) -> None:
    site = Site(tmp_path)
    for sent in (b"", b"\x16\x03\x01\x02\x00\x01"):
        theirs = arrive(served, site)
        theirs.send(sent)
        theirs.close()
        assert result(served) == HandshakeEnd(ARRIVAL, None, None, "")


def test_every_result_is_told_of(tmp_path: Path, served: Handshakes) -> None:
    """The loop is told of the first of several; they end while it takes those of before."""
    site, count, found = Site(tmp_path), 300, 0
    for _ in range(count):
        arrive(served, site).close()

    while found < count:
        await_readable(served.fd)
        found += len(served.results())

    assert (found, served.count) == (count, 0)


def test_silent_client_is_ended_at_its_time(tmp_path: Path, served: Handshakes) -> None:
    site = Site(tmp_path)
    served.timeout_ms = 1
    for sent in (b"", b"\x16\x03\x01\x02\x00\x01"):
        theirs = arrive(served, site)
        theirs.send(sent)
        assert result(served).reason == "no TLS handshake within 1 ms"
        while theirs.recv(100):  # an alert, if it had begun
            pass
        theirs.close()


def test_client_that_stalls_gives_its_place_to_those_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "BEGUN_MAX", 1)
    monkeypatch.setattr(handshakes, "HURRY_MS", 1)
    served, site = Handshakes(now_ms), Site(tmp_path)
    stalls = arrive(served, site)
    stalls.send(b"\x16\x03\x01\x02\x00\x01")
    secured = wrap(site.client(), arrive(served, site))
    results = []
    while len(results) < 2:
        await_readable(served.fd)
        results += served.results()

    assert sorted(each.reason for each in results) == [
        "",
        "a TLS handshake that is too slow while others wait",
    ]
    for each in results:
        if each.connected is not None:
            each.connected.close()
    secured.close()
    served.close()


def test_close_ends_the_handshakes_that_are_there(tmp_path: Path) -> None:
    served, site = Handshakes(now_ms), Site(tmp_path)
    waiting = [arrive(served, site) for _ in range(3)]
    assert served.hosts() == {ARRIVAL.host: 3}
    served.close()
    assert [each.recv(1) for each in waiting] == [b""] * 3


def test_connection_that_arrives_during_the_shutdown_is_closed(tmp_path: Path) -> None:
    """The acceptor may have handed it over before."""
    served, site = Handshakes(now_ms), Site(tmp_path)
    served.close()
    assert arrive(served, site).recv(1) == b""
    assert served.count == 0


def test_failure_that_nobody_expects_ends_one_handshake_alone(
    tmp_path: Path, served: Handshakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends no thread, and no other client's handshake."""
    site = Site(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(served, "_shake", lambda each: {}["broken"])
        with suppress(OSError):
            wrap(site.client(), arrive(served, site))
        assert result(served).reason == "a failed TLS handshake: KeyError"

    secured = wrap(site.client(), arrive(served, site))
    done = result(served)
    assert done.principal == ANONYMOUS
    assert done.connected is not None
    done.connected.close()
    secured.close()


def test_end_of_the_thread_ends_the_process(tmp_path: Path, served: Handshakes) -> None:
    """Every later connection would wait until its client gives up."""
    served._expire = lambda: {}["broken"]  # type: ignore[method-assign]
    theirs = arrive(served, Site(tmp_path))
    await_readable(served.fd)
    with pytest.raises(InvariantError, match="has ended"):
        served.results()
    theirs.close()
