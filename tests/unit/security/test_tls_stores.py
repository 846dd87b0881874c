"""Key and trust stores, and the contexts that listeners make of them."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from support.running.descriptors import open_files
from support.security.certificates import OPENSSL
from support.security.java_stores import jks, jks_key, jks_trusted, pkcs12_of

from kbroker.client.connections.security import Security
from kbroker.client.errors import SettingRefused
from kbroker.config.loader import load_properties
from kbroker.errors import ConfigError
from kbroker.peers.security import tls_reason
from kbroker.security.certificates import Authority, Issued, create_authority
from kbroker.security.tls.contexts import reason_of, server_context
from kbroker.security.tls.listener import ListenerTls
from kbroker.security.tls.listeners import FILES_MS, TlsListeners

pytestmark = pytest.mark.unit

PASSWORD = "store-secret"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return create_authority("test CA")


@pytest.fixture(scope="module")
def issued(authority: Authority) -> Issued:
    return authority.issue("broker", hosts=["localhost"], server=True)


def configs(**settings: Any) -> Any:
    pairs = [("listeners", "SSL://127.0.0.1:0")]
    pairs += [(name.replace("_", "."), str(value)) for name, value in settings.items()]
    return load_properties(pairs)[0].of_listener("SSL")


def pem(path: Path, **more: Any) -> Any:
    return configs(ssl_keystore_type="PEM", ssl_keystore_location=path, **more)


def shake(server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, Any]:
    """The certificate that the client sees."""
    left, right = socket.socketpair()
    ends = []
    for end, used, options in (
        (left, server, {"server_side": True}),
        (right, client, {"server_hostname": "localhost"}),
    ):
        end.setblocking(False)
        ends.append(used.wrap_socket(end, do_handshake_on_connect=False, **options))
    waiting = list(ends)
    while waiting:
        for each in list(waiting):
            try:
                each.do_handshake()
                waiting.remove(each)
            except ssl.SSLWantReadError:
                continue
    found = ends[1].getpeercert()
    for each in ends:
        each.close()
    assert found is not None
    return found


def trusting(authority: Authority) -> ssl.SSLContext:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=authority.certificate.decode())
    return client


# -- kinds of stores


@pytest.mark.parametrize("kind", ["PEM", "PKCS12", "JKS", "inline", "encrypted"])
def test_key_stores_of_each_kind_serve_their_certificate(
    authority: Authority, issued: Issued, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "store"
    if kind == "PEM":
        path.write_bytes(issued.pem)
        used = pem(path)
    elif kind == "inline":
        used = configs(
            ssl_keystore_type="PEM",
            ssl_keystore_key=issued.key.decode().replace("\n", " "),
            ssl_keystore_certificate_chain=issued.chain.decode().replace("\n", " "),
        )
    elif kind == "encrypted":
        key = serialization.load_pem_private_key(issued.key, None).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"key-secret"),
        )
        path.write_bytes(key + issued.chain)
        used = pem(path, ssl_key_password="key-secret")
    else:
        of_java = jks(PASSWORD, jks_key(issued, PASSWORD))
        path.write_bytes(pkcs12_of(issued, PASSWORD) if kind == "PKCS12" else of_java)
        used = configs(ssl_keystore_location=path, ssl_keystore_password=PASSWORD)

    served = server_context(used)

    assert shake(served.context, trusting(authority))["subject"] == ((("commonName", "broker"),),)
    assert served.certificate.subject == "CN=broker"


@pytest.mark.parametrize("kind", ["PEM", "JKS"])
def test_trust_stores_of_each_kind_accept_their_clients_only(
    authority: Authority, issued: Issued, tmp_path: Path, kind: str
) -> None:
    key, trust = tmp_path / "key.pem", tmp_path / "trust"
    key.write_bytes(issued.pem)
    if kind == "PEM":
        trust.write_bytes(authority.certificate)
        more = {"ssl_truststore_type": "PEM"}
    else:
        trust.write_bytes(jks(PASSWORD, jks_trusted(authority.certificate)))
        more = {"ssl_truststore_password": PASSWORD}
    used = pem(key, ssl_truststore_location=trust, ssl_client_auth="required", **more)
    server = server_context(used).context

    for signer, accepted in ((authority, True), (create_authority("another CA"), False)):
        client = trusting(authority)
        own = tmp_path / "client.pem"
        own.write_bytes(signer.issue("alice").pem)
        client.load_cert_chain(own)
        if accepted:
            shake(server, client)
        else:
            with pytest.raises(ssl.SSLError):
                shake(server, client)
    with pytest.raises(ssl.SSLError):
        shake(server, trusting(authority))


# -- what does not load


@pytest.mark.parametrize(
    ("content", "more", "told"),
    [
        (b"", {}, "an empty file"),
        (b"nothing", {}, "one private key in PEM, found 0"),
        (b"nothing", {"ssl_keystore_type": "JKS"}, "password of the key store"),
        (
            b"nothing",
            {"ssl_keystore_type": "JKS", "ssl_keystore_password": "p"},
            "a store of type JKS or PKCS12",
        ),
        (
            b"\x30\x82\xff\xff" + b"x" * 50,
            {"ssl_keystore_type": "PKCS12", "ssl_keystore_password": "p"},
            "a store that loads",
        ),
        (
            b"\xfe\xed\xfe\xed" + b"x" * 50,
            {"ssl_keystore_type": "JKS", "ssl_keystore_password": "p"},
            "damaged, or its password is wrong",
        ),
        (b"\xce\xce\xce\xce", {"ssl_keystore_type": "JKS", "ssl_keystore_password": "p"}, "JCEKS"),
        (b"nothing", {"ssl_keystore_type": "BKS"}, "JKS, PKCS12, PEM"),
    ],
)
def test_key_store_that_does_not_load_is_refused_with_the_reason(
    tmp_path: Path, content: bytes, more: dict[str, str], told: str
) -> None:
    path = tmp_path / "store"
    path.write_bytes(content)
    settings = {"ssl_keystore_type": "PEM", "ssl_keystore_location": path, **more}
    with pytest.raises(ConfigError, match=told):
        server_context(configs(**settings))


def weak(authority: Authority, place: Path, bits: int, digest: str) -> Issued:
    """A certificate of the authority that OpenSSL makes, but does not take."""
    (place / "ca.crt").write_bytes(authority.certificate)
    (place / "ca.key").write_bytes(authority.key)

    def openssl(*words: str) -> None:
        subprocess.run([str(OPENSSL), *words], cwd=place, check=True, capture_output=True)

    openssl("req", "-new", "-newkey", f"rsa:{bits}", "-nodes", "-keyout", "weak.key", "-out",
            "weak.csr", "-subj", "/CN=localhost")  # fmt: skip
    openssl("x509", "-req", "-in", "weak.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-days", "2",
            "-set_serial", "7", f"-{digest}", "-out", "weak.crt")  # fmt: skip
    made = (place / "weak.crt").read_bytes()
    return Issued((place / "weak.key").read_bytes(), made, made + authority.certificate)


@pytest.mark.skipif(OPENSSL is None, reason="needs openssl")
@pytest.mark.parametrize(
    ("bits", "digest", "told"),
    [
        (2048, "sha1", "signed with SHA-1 .*-sigalg SHA256withRSA"),
        (1024, "sha256", "RSA key of less than 2048 bits.*-keysize 3072"),
    ],
    ids=["sha-1", "1024-bits"],
)
def test_java_store_that_openssl_finds_too_weak_says_what_to_do(
    authority: Authority, tmp_path: Path, bits: int, digest: str, told: str
) -> None:
    """Java takes it from a private authority; the broker and the client of one name the way out."""
    if digest == "sha1" and ssl.OPENSSL_VERSION_INFO >= (3, 2):
        pytest.skip("this OpenSSL takes it, as Java does")
    path = tmp_path / "store.jks"
    path.write_bytes(jks(PASSWORD, jks_key(weak(authority, tmp_path, bits, digest), PASSWORD)))
    with pytest.raises(ConfigError, match=told):
        server_context(configs(ssl_keystore_location=path, ssl_keystore_password=PASSWORD))
    options = {
        "security.protocol": "SSL",
        "ssl.keystore.location": str(path),
        "ssl.keystore.password": PASSWORD,
    }
    with pytest.raises(SettingRefused, match=told):
        Security.from_options(options).tls_context()


@pytest.mark.skipif(OPENSSL is None, reason="needs openssl")
def test_server_that_openssl_finds_too_weak_says_what_to_do(
    authority: Authority, tmp_path: Path
) -> None:
    """The certificate of a Java broker, as a client and as another broker see it."""
    shown = weak(authority, tmp_path, 2048, "sha1")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.set_ciphers("DEFAULT@SECLEVEL=0")
    with tempfile.NamedTemporaryFile() as file:
        file.write(shown.pem)
        file.flush()
        server.load_cert_chain(file.name)
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        shake(server, trusting(authority))
    for text in (reason_of(caught.value), tls_reason(caught.value)):
        assert "a certificate is signed with SHA-1" in text and "SHA256withRSA" in text


def test_every_cut_of_a_java_store_is_refused(issued: Issued, tmp_path: Path) -> None:
    whole, path = jks(PASSWORD, jks_key(issued, PASSWORD)), tmp_path / "store"
    for size in range(5, len(whole), 13):
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigError):
            server_context(configs(ssl_keystore_location=path, ssl_keystore_password=PASSWORD))


def test_key_of_another_certificate_and_a_missing_file(
    authority: Authority, issued: Issued, tmp_path: Path
) -> None:
    path = tmp_path / "store.pem"
    path.write_bytes(authority.issue("broker").key + issued.chain)
    with pytest.raises(ConfigError, match="not that of the first certificate"):
        server_context(pem(path))
    with pytest.raises(ConfigError, match="No such file"):
        server_context(pem(tmp_path / "missing"))
    before = open_files()
    with pytest.raises(ConfigError, match="Is a directory"):
        server_context(pem(tmp_path))
    assert not open_files() - before, "clients can name one again and again"
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="an empty file"):
        server_context(pem(tmp_path / "fifo"))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"ssl_client_auth": "required"}, "a trust store, as ssl.client.auth is required"),
        ({"ssl_enabled_protocols": "TLSv1.1,TLSv1.2"}, "older versions are not secure"),
        ({"ssl_cipher_suites": "ALL"}, "cipher suites that OpenSSL has, unlike ALL"),
        ({"ssl_principal_mapping_rules": "RULE:(/x/"}, "rules that can be used"),
    ],
)
def test_configs_that_cannot_be_obeyed_are_refused(
    issued: Issued, tmp_path: Path, more: dict[str, str], told: str
) -> None:
    path = tmp_path / "store.pem"
    path.write_bytes(issued.pem)
    with pytest.raises(ConfigError, match=told):
        server_context(pem(path, **more))


def test_versions_and_suites_are_those_of_the_configs(issued: Issued, tmp_path: Path) -> None:
    path = tmp_path / "store.pem"
    path.write_bytes(issued.pem)
    suite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    made = server_context(pem(path, ssl_cipher_suites=suite)).context
    assert made.maximum_version == ssl.TLSVersion.TLSv1_2
    names = [each["name"] for each in made.get_ciphers() if each["protocol"] != "TLSv1.3"]
    assert names == ["ECDHE-ECDSA-AES128-GCM-SHA256"]
    made = server_context(pem(path, ssl_enabled_protocols="TLSv1.3")).context
    assert made.minimum_version == ssl.TLSVersion.TLSv1_3


def test_broker_wide_client_auth_does_not_count_with_sasl(issued: Issued, tmp_path: Path) -> None:
    """As in Kafka: only the listener's own config does."""
    path = tmp_path / "store.pem"
    path.write_bytes(issued.pem)
    made = server_context(pem(path, ssl_client_auth="required"), uses_sasl=True)
    assert made.context.verify_mode == ssl.CERT_NONE


# -- replacement


def test_replaced_file_is_taken_unless_it_is_of_another_name(
    authority: Authority, issued: Issued, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.pem"
    path.write_bytes(issued.pem)
    listeners = TlsListeners()
    listeners.load([("SSL", False)], lambda _: pem(path))
    tls = listeners.by_name["SSL"]
    first, now = tls.context, FILES_MS

    def replace(content: bytes) -> None:
        nonlocal now
        other = tmp_path / "new"
        other.write_bytes(content)
        os.replace(other, path)
        listeners.tick(now)
        now += FILES_MS

    listeners.tick(0)
    assert tls.context is first
    replace(authority.issue("broker", hosts=["localhost"], server=True).pem)
    second = tls.context
    assert second is not first
    replace(authority.issue("another", hosts=["localhost"], server=True).pem)
    assert tls.context is second
    assert "a certificate of CN=broker, not CN=another" in caplog.text
    replace(authority.issue("broker", hosts=["elsewhere"], server=True).pem)
    assert tls.context is second
    replace(b"half a fi")
    assert tls.context is second
    assert "one private key in PEM, found 0" in caplog.text
    replace(authority.issue("broker", hosts=["localhost", "more"], server=True).pem)
    assert tls.context is not second


def test_changed_configs_are_taken_only_if_they_load(issued: Issued, tmp_path: Path) -> None:
    path = tmp_path / "store.pem"
    path.write_bytes(issued.pem)
    tls = ListenerTls("SSL", pem(path))
    first = tls.context
    with pytest.raises(ConfigError, match="No such file"):
        tls.check(pem(tmp_path / "missing"))
    tls.check(pem(path))
    assert tls.context is first
    tls.follow(pem(path, ssl_enabled_protocols="TLSv1.3"))
    assert tls.context.minimum_version == ssl.TLSVersion.TLSv1_3
