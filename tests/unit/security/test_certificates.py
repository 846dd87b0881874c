"""Certificates: an authority and what it signs, as OpenSSL sees them."""

from __future__ import annotations

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kbroker.security import certificates
from kbroker.security.certificates import CertificateError

pytestmark = pytest.mark.unit


def shaken_hands(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost"
) -> ssl.SSLObject:
    """A TLS handshake in memory. Raises ssl.SSLError; returns the server's side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    connecting = client.wrap_bio(to_client, to_server, server_hostname=host)
    for _ in range(10):
        for side in (connecting, serving):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    serving.do_handshake()
    return serving


def context(kind: ssl._SSLMethod, pem: bytes | None, trusted: bytes, place: Path) -> ssl.SSLContext:
    made = ssl.SSLContext(kind)
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.load_verify_locations(cadata=trusted.decode())
    if pem is not None:
        file = place / f"{len(list(place.iterdir()))}.pem"
        certificates.write_private(file, pem)
        made.load_cert_chain(file)
    return made


@pytest.mark.parametrize("key_type", certificates.KEY_TYPES)
def test_broker_and_client_of_one_authority_trust_each_other(key_type, tmp_path):
    authority = certificates.create_authority("test", key_type=key_type)
    broker = authority.issue(
        "broker", hosts=["localhost", "127.0.0.1", "::1"], server=True, key_type=key_type
    )
    alice = authority.issue("alice", key_type=key_type)
    server = context(ssl.PROTOCOL_TLS_SERVER, broker.pem, authority.certificate, tmp_path)
    server.verify_mode = ssl.CERT_REQUIRED
    client = context(ssl.PROTOCOL_TLS_CLIENT, alice.pem, authority.certificate, tmp_path)

    for host in ("localhost", "127.0.0.1", "::1"):
        subject = shaken_hands(server, client, host).getpeercert()["subject"]

        assert subject == ((("commonName", "alice"),),)


def test_certificate_of_another_host_or_authority_is_not_accepted(tmp_path):
    authority, other = (certificates.create_authority(name) for name in ("one", "two"))
    broker = authority.issue("broker", hosts=["broker.example.org"], server=True)
    server = context(ssl.PROTOCOL_TLS_SERVER, broker.pem, authority.certificate, tmp_path)
    client = context(ssl.PROTOCOL_TLS_CLIENT, None, authority.certificate, tmp_path)
    stranger = context(ssl.PROTOCOL_TLS_CLIENT, None, other.certificate, tmp_path)

    shaken_hands(server, client, "broker.example.org")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shaken_hands(server, client, "elsewhere.example.org")
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        shaken_hands(server, stranger, "broker.example.org")
    assert authority.signed(broker.certificate)
    assert not other.signed(broker.certificate)


def test_certificate_of_a_client_serves_nobody(tmp_path):
    authority = certificates.create_authority("test")
    alice = authority.issue("alice", hosts=["localhost"])
    server = context(ssl.PROTOCOL_TLS_SERVER, alice.pem, authority.certificate, tmp_path)
    client = context(ssl.PROTOCOL_TLS_CLIENT, None, authority.certificate, tmp_path)

    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        shaken_hands(server, client)


def test_expired_certificate_is_not_accepted(tmp_path):
    authority = certificates.create_authority("test")
    long_ago = datetime.now(UTC) - timedelta(days=3)
    broker = authority.issue("b", hosts=["localhost"], server=True, days=1, starts_at=long_ago)
    server = context(ssl.PROTOCOL_TLS_SERVER, broker.pem, authority.certificate, tmp_path)
    client = context(ssl.PROTOCOL_TLS_CLIENT, None, authority.certificate, tmp_path)

    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shaken_hands(server, client)


def test_certificate_ends_with_its_authority():
    authority = certificates.create_authority("test", days=30)

    issued = authority.issue("alice", days=397)

    assert certificates.ends_at(issued.pem) == authority.ends_at


def test_authority_is_the_same_after_it_was_loaded():
    authority = certificates.create_authority("test")

    loaded = certificates.load_authority(authority.certificate, authority.key)

    assert loaded.name == "test"
    assert authority.signed(loaded.issue("alice").pem)


def test_key_of_another_authority_is_rejected():
    one, two = (certificates.create_authority(name) for name in ("one", "two"))

    with pytest.raises(CertificateError, match="does not belong"):
        certificates.load_authority(one.certificate, two.key)


def test_names_in_a_certificate_are_those_it_was_made_for():
    authority = certificates.create_authority("test")
    hosts = ["broker.example.org", "127.0.0.1", "::1"]

    pem = authority.issue("broker", hosts=hosts, server=True).pem

    assert certificates.names_in(pem) == ("broker", hosts, True, certificates.EC)
    assert certificates.names_in(authority.issue("alice").pem) == (
        "alice",
        [],
        False,
        certificates.EC,
    )


@pytest.mark.parametrize("host", ["", "a b", "https://x", "x:9093", "a,b", "a\nb", "user@x"])
def test_host_that_is_none_is_rejected(host):
    authority = certificates.create_authority("test")

    with pytest.raises(CertificateError, match="host"):
        authority.issue("broker", hosts=[host], server=True)


@pytest.mark.parametrize("name", ["", "x" * 65, "a\nb"])
def test_name_that_no_certificate_may_have_is_rejected(name):
    with pytest.raises(CertificateError, match="printable characters"):
        certificates.create_authority(name)


def test_private_file_is_replaced_whole_and_only_its_owner_may_read_it(tmp_path):
    file = tmp_path / "key.pem"
    file.write_text("old")
    file.chmod(0o644)

    certificates.write_private(file, b"new")

    assert file.read_bytes() == b"new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]
