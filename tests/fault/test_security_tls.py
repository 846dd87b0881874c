"""Clients that would have a TLS listener speak weakly, believe them, or fall over (exam S10)."""

from __future__ import annotations

import os
import random
import selectors
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.clients.wire_client import WireClient, batch_of
from support.faults.hostile_harness import MIB, GoodClient, nothing_dies
from support.running.pace import hold
from support.security.secured import HOST, SecuredClient, Site, address_of

from kbroker.security.certificates import create_authority
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

TOPIC = "good"
OPENSSL = shutil.which("openssl")
WEAK = "@SECLEVEL=0"  # or this side's OpenSSL would refuse to offer what is weak


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def broker(site: Site) -> Iterator[Broker]:
    settings = site.settings("PLAINTEXT", "SSL") | {
        "listeners": f"PLAINTEXT://{HOST}:0,SSL://{HOST}:0,MUTUAL://{HOST}:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,MUTUAL:SSL",
        "listener.name.mutual.ssl.client.auth": "required",
        "max.connection.creation.rate": "100000",
    }
    with Broker(settings) as started:
        with WireClient((started.host, started.port)) as client:
            client.create_topic(TOPIC)
        yield started


def offering(site: Site, *versions: ssl.TLSVersion, ciphers: str = "ALL") -> ssl.SSLContext:
    """A client that offers these versions and ciphers."""
    context = site.client_context()
    context.set_ciphers(f"{ciphers}:{WEAK}")
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    return context


def is_served(broker: Broker, context: ssl.SSLContext, listener: str = "SSL") -> bool:
    """Whether a client gets an answer. In TLS 1.3, a server rejects a client's certificate when the
    client believes that the handshake is done.
    """
    try:
        with SecuredClient(address_of(broker, listener), context=context) as client:
            return not client.metadata(TOPIC).topics[0].error_code
    except OSError:
        return False


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_versions_that_are_sound_are_served_without_compression(
    broker: Broker, site: Site, version: ssl.TLSVersion
) -> None:
    with SecuredClient(address_of(broker, "SSL"), context=offering(site, version)) as client:
        assert isinstance(client.socket, ssl.SSLSocket)
        assert client.socket.version() == version.name.replace("_", ".")
        assert client.socket.compression() is None
        assert client.metadata(TOPIC).topics[0].error_code == 0


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_versions_are_refused_and_named(
    broker: Broker, site: Site, version: ssl.TLSVersion
) -> None:
    assert not is_served(broker, offering(site, version))
    # One line for both versions, as those about a client are limited.
    wait_until(lambda: "ssl.enabled.protocols" in broker.log_text, 20, "the reason is logged")


@pytest.mark.parametrize("ciphers", ["aNULL", "eNULL", "PSK", "AES128-SHA", "CAMELLIA"])
def test_weak_ciphers_are_refused(broker: Broker, site: Site, ciphers: str) -> None:
    """Without authentication, without encryption, without forward secrecy."""
    try:
        context = offering(site, ssl.TLSVersion.TLSv1_2, ciphers=ciphers)
    except ssl.SSLError:
        pytest.skip(f"OpenSSL of this machine has no {ciphers}")
    assert not is_served(broker, context)


def clients_keys(site: Site) -> dict[str, bytes]:
    """What a client may show that is not accepted."""
    long_ago = datetime.now(UTC) - timedelta(days=3)
    later = datetime.now(UTC) + timedelta(days=3)
    stranger = create_authority("another CA")
    own = create_authority("alice")
    return {
        "expired": site.authority.issue("alice", days=1, starts_at=long_ago).pem,
        "not valid yet": site.authority.issue("alice", days=1, starts_at=later).pem,
        "of another authority": stranger.issue("alice").pem,
        "an authority's own": own.key + own.certificate,
    }


@pytest.mark.parametrize(
    "what", ["expired", "not valid yet", "of another authority", "an authority's own", "none"]
)
def test_certificates_of_clients_that_prove_nothing_are_refused(
    broker: Broker, site: Site, tmp_path: Path, what: str
) -> None:
    context = site.client_context()
    if what != "none":
        path = tmp_path / "client.pem"
        path.write_bytes(clients_keys(site)[what])
        context.load_cert_chain(path)
    before = len(broker.log_text)

    assert not is_served(broker, context, "MUTUAL")

    good = tmp_path / "good.pem"
    good.write_bytes(site.authority.issue("alice").pem)
    accepted = site.client_context()
    accepted.load_cert_chain(good)
    assert is_served(broker, accepted, "MUTUAL")
    wait_until(lambda: "certificate" in broker.log_text[before:].lower() or "times" in
               broker.log_text[before:], 20, "the log has the reason")  # fmt: skip


@pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed")
def test_renegotiation_is_refused(broker: Broker, site: Site) -> None:
    """Which would have the broker do one handshake after the other on a single connection."""
    host, port = address_of(broker, "SSL")
    command = [str(OPENSSL), "s_client", "-connect", f"{host}:{port}", "-tls1_2",
               "-CAfile", str(site.ca_file)]  # fmt: skip
    with nothing_dies(broker):
        # Told at once: the broker would close the connection after 30 s without a request.
        done = subprocess.run(command, input=b"R\n", capture_output=True, timeout=20)
    said = (done.stdout + done.stderr).decode(errors="replace")
    assert "RENEGOTIATING" in said
    assert "no renegotiation" in said
    assert is_served(broker, site.client_context())


def client_hello(site: Site, name: str) -> bytes:
    """The first bytes of a client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = site.client_context().wrap_bio(incoming, outgoing, server_hostname=name)
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def spoilt(hello: bytes, chance: random.Random) -> bytes:
    """Bytes flipped, cut, repeated, with lengths of any size or junk for the server's name."""
    data = bytearray(hello)
    kind = chance.randrange(6)
    if kind == 0:
        for _ in range(chance.randrange(1, 9)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == 1:
        del data[chance.randrange(1, len(data)) :]
    elif kind == 2:
        data[3:5] = chance.randbytes(2)
    elif kind == 3:
        place = chance.randrange(5, len(data) - 2)
        data[place : place + 2] = chance.choice((b"\xff\xff", b"\0\0", b"\x7f\xff"))
    elif kind == 4:
        start = hello.find(b"elsewhere.example")
        data[start : start + 17] = chance.randbytes(17)
    else:
        data *= chance.randrange(2, 5)
    return bytes(data)


def test_spoilt_hellos_harm_nobody(broker: Broker, site: Site, seed: int, scale: int) -> None:
    chance = random.Random(seed)
    hello = client_hello(site, "elsewhere.example")
    address = address_of(broker, "SSL")
    with nothing_dies(broker, 32 * MIB), GoodClient(broker, TOPIC):
        for _ in range(150 * scale):
            with socket.create_connection(address, timeout=30) as sock:
                with suppress(OSError):
                    sock.sendall(spoilt(hello, chance))
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(65536):
                        pass
    assert is_served(broker, site.client_context())


def test_handshakes_that_stop_half_way_delay_nobody(broker: Broker, site: Site, scale: int) -> None:
    """Each client says hello and nothing more; others shake hands meanwhile (exam S4)."""
    hello = client_hello(site, "elsewhere.example")
    sockets: list[socket.socket] = []
    try:
        with nothing_dies(broker, 128 * MIB), GoodClient(broker, TOPIC):
            for _ in range(min(200 * scale, 4_000)):
                sock = socket.create_connection(address_of(broker, "SSL"), timeout=30)
                sockets.append(sock)
                sock.sendall(hello)
            began = time.monotonic()
            assert is_served(broker, site.client_context())
            assert time.monotonic() - began < 15, "it waits for those that stand still"
    finally:
        for sock in sockets:
            sock.close()


def test_clients_that_connect_at_once_are_all_served(
    broker: Broker, site: Site, scale: int
) -> None:
    """Four thousand handshakes (at scale 20) cost those who are connected nothing but their share
    of the processor.
    """
    context = site.client_context()
    with nothing_dies(broker, 64 * MIB), GoodClient(broker, TOPIC), ExitStack() as stack:
        waiting = selectors.DefaultSelector()
        count = 100 if scale == 1 else min(200 * scale, 4_000)
        for _ in range(count):
            plain = socket.create_connection(address_of(broker, "SSL"), timeout=30)
            plain.setblocking(False)
            client = stack.enter_context(
                context.wrap_socket(plain, do_handshake_on_connect=False, server_hostname=HOST)
            )
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
            waiting.register(client, selectors.EVENT_READ)
        began = time.monotonic()
        while waiting.get_map():
            left = len(waiting.get_map())
            assert time.monotonic() - began < 60 + count / 20, f"{left} still wait"
            for key, _ in waiting.select(1):
                with suppress(ssl.SSLWantReadError):
                    key.fileobj.do_handshake()  # type: ignore[union-attr]
                    waiting.unregister(key.fileobj)
        waiting.close()
    assert is_served(broker, context)


class Writer:
    """Writes on one connection, which is never replaced, until told to stop."""

    def __init__(self, connect: Callable[[], SecuredClient]) -> None:
        self.written = 0
        self.problem = ""
        self._connect = connect

    def run(self, stopping: threading.Event) -> None:
        try:
            with self._connect() as client:
                while not stopping.is_set():
                    assert client.produce(TOPIC, {0: batch_of([b"v"])})[0].error_code == 0
                    self.written += 1
                    hold(0.005)
        except Exception as error:
            self.problem = repr(error)


def test_rotation_of_certificates_ends_no_connection(
    broker: Broker, site: Site, scale: int
) -> None:
    """New clients are shown the new certificate within seconds; established ones stay."""
    address, context = address_of(broker, "SSL"), site.client_context()
    writers = [Writer(lambda: SecuredClient(address, context=context)) for _ in range(5)]
    stopping = threading.Event()
    threads = [threading.Thread(target=one.run, args=(stopping,)) for one in writers]
    for thread in threads:
        thread.start()
    try:
        for _ in range(min(scale, 20)):
            wanted = rotate(site)
            wait_until(lambda w=wanted: all(shown(broker, site) == w for _ in range(10)), 60)
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    assert [one.problem for one in writers] == [""] * len(writers)
    assert all(one.written for one in writers)


def rotate(site: Site) -> bytes:
    """Replace the broker's key and certificate; returns the new one in DER."""
    issued = site.authority.issue("broker", hosts=["localhost", HOST], server=True)
    new = site.store.with_suffix(".new")
    new.write_bytes(issued.pem)
    os.replace(new, site.store)
    return ssl.PEM_cert_to_DER_cert(issued.certificate.decode())


def shown(broker: Broker, site: Site) -> bytes | None:
    context = site.client_context()
    with SecuredClient(address_of(broker, "SSL"), context=context) as client:
        assert isinstance(client.socket, ssl.SSLSocket)
        return client.socket.getpeercert(binary_form=True)
