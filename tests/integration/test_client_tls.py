"""TLS of the client, against a broker behind a TLS proxy."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")

from support.clients import client_topics as topics  # noqa: E402
from support.security import certificates  # noqa: E402
from support.security.certificates import Certificate  # noqa: E402

from kbroker.client.connections.cluster import Cluster  # noqa: E402
from kbroker.client.connections.security import Security  # noqa: E402
from kbroker.client.errors import (  # noqa: E402
    AuthenticationFailed,
    ClientError,
    SettingRefused,
    UnreachableError,
)
from kbroker.testing import Broker  # noqa: E402

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not certificates.OPENSSL, reason="openssl is not installed"),
]


class TlsProxy:
    """Accepts TLS connections and forwards their data to a broker."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.target = ("127.0.0.1", 0)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                plain, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(plain,), daemon=True).start()

    def serve(self, plain: socket.socket) -> None:
        with suppress(OSError), plain:
            outer = self.context.wrap_socket(plain, server_side=True)
            inner = socket.create_connection(self.target)
            back = threading.Thread(target=self.copy, args=(inner, outer), daemon=True)
            back.start()
            self.copy(outer, inner)

    @staticmethod
    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.listener.close()


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificate]:
    place = tmp_path_factory.mktemp("pems")
    return {
        "server": certificates.make(place, "server"),
        "client": certificates.make(place, "client", "secret"),
        "stranger": certificates.make(place, "stranger"),
    }


@pytest.fixture(scope="module")
def bootstrap(pems: dict[str, Certificate]) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pems["server"].both)
    context.load_verify_locations(pems["client"].certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # reports the reason in the handshake
    proxy = TlsProxy(context)
    advertised = f"PLAINTEXT://127.0.0.1:{proxy.port}"
    with Broker({"advertised.listeners": advertised}) as broker:
        listening = broker.config["listeners"].rpartition(":")[2]
        proxy.target = ("127.0.0.1", int(listening) or broker.port)
        yield f"127.0.0.1:{proxy.port}"
        proxy.close()


def librdkafka_names(pems: dict[str, Certificate]) -> dict[str, str]:
    return {
        "ssl.ca.location": str(pems["server"].certificate),
        "ssl.certificate.location": str(pems["client"].certificate),
        "ssl.key.location": str(pems["client"].key),
        "ssl.key.password": "secret",
    }


def java_names(pems: dict[str, Certificate]) -> dict[str, str]:
    return {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(pems["server"].certificate),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(pems["client"].both),
        "ssl.key.password": "secret",
        "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
    }


def java_text(pems: dict[str, Certificate]) -> dict[str, str]:
    return {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": pems["server"].certificate.read_text(),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": pems["client"].certificate.read_text(),
        "ssl.keystore.key": pems["client"].key.read_text(),
        "ssl.key.password": "secret",
        "ssl.endpoint.identification.algorithm": "",
    }


def java_lines_joined(pems: dict[str, Certificate]) -> dict[str, str]:
    """In a properties file, as lines that end with a backslash, as Java allows."""
    return {
        name: " ".join(value.split("\n")) if name != "ssl.keystore.key" else value.replace("\n", "")
        for name, value in java_text(pems).items()
    }


def cluster_with(bootstrap: str, settings: dict[str, str], deadline: float = 30) -> Cluster:
    security = Security.from_options({"security.protocol": "SSL", **settings})
    return Cluster(bootstrap, security, deadline=deadline)


@pytest.mark.parametrize("names", [librdkafka_names, java_names, java_text, java_lines_joined])
def test_records_are_written_and_read_over_tls(bootstrap, pems, names):
    with cluster_with(bootstrap, names(pems)) as cluster:
        topic = names.__name__
        topics.create(cluster, topic)
        topics.write(cluster, topic, 20_000, batch_bytes=40_000)

        found = topics.values(cluster, topic)

    assert found == [b"%d" % n for n in range(20_000)]


def test_server_that_is_not_trusted_is_refused_at_once(bootstrap, pems):
    settings = librdkafka_names(pems)
    settings["ssl.ca.location"] = str(pems["stranger"].certificate)

    with pytest.raises(AuthenticationFailed, match="not trusted"):
        cluster_with(bootstrap, settings).topics()


def test_server_is_not_looked_at_when_that_is_asked_for(bootstrap, pems):
    settings = librdkafka_names(pems)
    settings["ssl.ca.location"] = str(pems["stranger"].certificate)
    settings["enable.ssl.certificate.verification"] = "false"

    with cluster_with(bootstrap, settings) as cluster:
        assert cluster.topics(["nothing"]) == {}


def test_client_without_a_certificate_is_told_that_it_is_refused(bootstrap, pems):
    settings = {"ssl.ca.location": str(pems["server"].certificate)}

    with pytest.raises(ClientError, match="handshake"):
        cluster_with(bootstrap, settings, deadline=1).topics()


def test_plain_client_at_a_tls_port_is_told_within_its_deadline(bootstrap):
    with pytest.raises(ClientError):
        Cluster(bootstrap, deadline=1, request_timeout=1).topics()


def test_tls_client_at_a_plain_port_is_told_within_its_deadline(kbroker_broker, pems):
    with pytest.raises((UnreachableError, ClientError), match="TLS"):
        cluster_with(kbroker_broker.bootstrap, librdkafka_names(pems), deadline=1).topics()


@pytest.mark.parametrize("missing", ["ssl.ca.location", "ssl.certificate.location"])
def test_file_that_is_not_there_is_told_by_its_setting(
    kbroker_broker, pems, missing, tmp_path: Path
):
    settings = {**librdkafka_names(pems), missing: str(tmp_path / "absent.pem")}

    with pytest.raises(SettingRefused) as caught:
        cluster_with(kbroker_broker.bootstrap, settings).topics()

    assert caught.value.setting == missing
    assert "absent.pem" in str(caught.value)


def test_wrong_password_of_a_key_is_told(bootstrap, pems):
    settings = {**librdkafka_names(pems), "ssl.key.password": "wrong"}

    with pytest.raises(SettingRefused, match="cannot be used"):
        cluster_with(bootstrap, settings).topics()
