"""The TLS clients of the benchmarks, at toy size, against a server of a few lines."""

from __future__ import annotations

import shutil
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.security.secured import Site

from kbroker.client.admin import users as admin
from kbroker.client.connections.cluster import Cluster as BrokerCluster
from kbroker.testing import Broker

pytest.importorskip("confluent_kafka")

from perf import secure_clients, security

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not shutil.which("cc"), reason="a C compiler is not installed"),
    pytest.mark.skipif(
        not Path("/usr/include/openssl/ssl.h").exists(),
        reason="OpenSSL's headers are not installed",
    ),
]


class Answering:
    """A server that answers each frame with a prefix and an error code."""

    def __init__(self, site: Site, prefix: bytes, code: int, *, has_tls: bool = True) -> None:
        self._has_tls = has_tls
        self._answer = prefix + struct.pack(">h", code)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(site.store)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = ("127.0.0.1", int(self.listener.getsockname()[1]))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                plain, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with suppress(OSError, struct.error), plain:
            secured = plain
            if self._has_tls:
                secured = self._context.wrap_socket(plain, server_side=True)
            stream = secured.makefile("rb")
            while head := stream.read(12):
                size, _, _, number = struct.unpack(">ihhi", head)
                stream.read(size - 8)
                body = struct.pack(">i", number) + self._answer
                secured.sendall(struct.pack(">i", len(body)) + body)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield Site(tmp_path_factory.mktemp("site"))


def run(site: Site, server: Answering, prefix: bytes, what: str) -> dict[str, float]:
    marks: list[int] = []
    frames = [secure_clients.api_versions_frame()]
    found = secure_clients.tls_load(
        server.address,
        site.ca_file,
        frames,
        prefix,
        2,
        0.2,
        0.1,
        lambda: marks.append(0),
        what=what,
    )
    assert len(marks) == 2
    return found


@pytest.mark.parametrize("what", ["load", "connect"])
def test_answered_requests_and_connections_are_counted(site: Site, what: str) -> None:
    server = Answering(site, b"prefix", 0)

    found = run(site, server, b"prefix", what)

    assert found["count"] > 0
    assert found["seconds"] >= 0.2
    assert what == "connect" or 0 < found["p50_us"] <= found["p99_us"]
    server.listener.close()


@pytest.mark.parametrize("has_tls", [False, True])
def test_paced_requests_are_one_a_second_on_each_socket(site: Site, has_tls: bool) -> None:
    server = Answering(site, b"prefix\0\0\0\1", 0, has_tls=has_tls)
    marks: list[int] = []

    found = secure_clients.tls_load(
        server.address, site.ca_file if has_tls else None, [secure_clients.api_versions_frame()],
        b"prefix\0\0\0\0", 20, 1.0, 0.2, lambda: marks.append(0), what="paced",
    )  # fmt: skip

    assert len(marks) == 3
    assert 10 <= found["count"] <= 21
    server.listener.close()


@pytest.mark.parametrize(("prefix", "code"), [(b"prefix", 7), (b"other!", 0)])
@pytest.mark.parametrize("what", ["load", "connect"])
def test_wrong_answer_ends_the_run(site: Site, what: str, prefix: bytes, code: int) -> None:
    server = Answering(site, prefix, code)

    with pytest.raises(RuntimeError, match="tls_load: an"):
        run(site, server, b"prefix", what)
    server.listener.close()


def test_logins_are_counted_and_a_wrong_password_ends_the_run(site: Site) -> None:
    settings = site.settings("PLAINTEXT", "SASL_SSL", mechanisms=secure_clients.MECHANISM)
    with Broker(settings) as broker:
        with BrokerCluster(broker.bootstrap) as cluster:
            admin.set_password(cluster, "zoe", "Zq7-zoe", [secure_clients.MECHANISM], 4096)
        host, _, port = broker.listeners["SASL_SSL"].rpartition(":")
        login = secure_clients.Login((host, int(port)), site.ca_file, "zoe", "Zq7-zoe")
        security.await_login(login)

        def logged_in(salted: bytes) -> float:
            return secure_clients.tls_load(
                (host, int(port)),
                site.ca_file,
                [secure_clients.sasl_handshake_frame()],
                salted,
                2,
                0.2,
                0.1,
                lambda: None,
                what="login",
                user="zoe",
            )["count"]

        assert logged_in(login.salted) > 0
        with pytest.raises(RuntimeError, match="tls_load: an error code"):
            logged_in(bytes(64))


def test_cells_are_those_of_the_table() -> None:
    chosen = security.parse_arguments(["--cells", "tls_one16,scram_connect", "--quick"])

    assert (chosen.cells, chosen.runs) == (["tls_one16", "scram_connect"], 1)
    with pytest.raises(SystemExit):
        security.parse_arguments(["--cells", "tls_none"])
