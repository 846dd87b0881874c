"""Connections to other brokers that are encrypted and authenticated, and the reasons of those that
fail.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker, sasl_responses
from support.running.descriptors import open_files
from support.security.secured_peers import HOST, PASSWORD, USER, SecuredPeers

from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError
from kbroker.peers.connecting import connected
from kbroker.peers.secured import Secured, load_security
from kbroker.peers.security import PeerSecurity
from kbroker.security.certificates import create_authority
from kbroker.security.tls.tls_socket import TlsSocket

pytestmark = pytest.mark.unit

PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> SecuredPeers:
    return SecuredPeers(tmp_path_factory.mktemp("site"))


@pytest.fixture
def own(tmp_path: Path) -> SecuredPeers:
    """For tests that replace files."""
    return SecuredPeers(tmp_path)


def security(peers: SecuredPeers, protocol: str, mechanism: str = "PLAIN", **more: str) -> Any:
    named = {name.replace("_", "."): value for name, value in more.items()}
    config = BrokerConfig(peers.settings(protocol, mechanism) | named)
    return PeerSecurity(config, protocol)


def connect(broker: FakeBroker, used: PeerSecurity, host: str = HOST) -> Secured:
    secured = connected(host, broker.port, PATIENCE_S, -1, used)
    secured.socket.close()
    return secured


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_broker_has_logged_in_when_it_is_connected(
    shared: SecuredPeers, protocol: str, mechanism: str
) -> None:
    context = shared.server_context() if protocol == "SASL_SSL" else None
    answers = sasl_responses(mechanism, USER, PASSWORD)
    with FakeBroker(answers, context=context) as broker:
        secured = connect(broker, security(shared, protocol, mechanism))

    assert isinstance(secured.socket, TlsSocket) == (protocol == "SASL_SSL")
    assert secured.renews_after_ms is None
    names = [type(request).__name__ for request in broker.requests]
    assert names == ["SaslHandshakeRequest"] + ["SaslAuthenticateRequest"] * (
        1 if mechanism == "PLAIN" else 2
    )


def test_broker_shows_its_certificate(shared: SecuredPeers) -> None:
    with FakeBroker(context=shared.server_context()) as broker:
        secured = connect(broker, security(shared, "SSL"))

    assert isinstance(secured.socket, TlsSocket)
    assert [type(request).__name__ for request in broker.requests] == ["ApiVersionsRequest"]


def test_socket_does_not_block_when_it_is_handed_over(shared: SecuredPeers) -> None:
    with FakeBroker(context=shared.server_context()) as broker:
        secured = connected(HOST, broker.port, PATIENCE_S, -1, security(shared, "SSL"))
        with secured.socket as made, pytest.raises(BlockingIOError):
            made.recv(1)


@pytest.mark.parametrize(("lifetime_ms", "renews_ms"), [(0, None), (100_000, 85_000), (1, 500)])
def test_session_is_renewed_before_its_end(
    shared: SecuredPeers, lifetime_ms: int, renews_ms: int | None
) -> None:
    """And not all the time, whatever the other broker says."""
    answers = sasl_responses("PLAIN", USER, PASSWORD, lifetime_ms)
    with FakeBroker(answers) as broker:
        secured = connect(broker, security(shared, "SASL_PLAINTEXT"))

    assert secured.renews_after_ms == renews_ms


# -- failures --------------------------------------------------------------------------------------


def reason(broker: FakeBroker, used: PeerSecurity, host: str = HOST) -> str:
    with pytest.raises(OSError) as caught:
        connect(broker, used, host)
    return str(caught.value)


def test_certificate_of_another_authority_is_not_accepted(
    shared: SecuredPeers, tmp_path: Path
) -> None:
    other = SecuredPeers(tmp_path)
    with FakeBroker(context=other.server_context()) as broker:
        text = reason(broker, security(shared, "SSL"))

    assert text.startswith("this broker does not accept its certificate: ")
    assert text.endswith("self-signed certificate in certificate chain")


def test_name_in_the_certificate_is_checked_unless_that_is_turned_off(own: SecuredPeers) -> None:
    own.issue(["elsewhere.example.org"])
    with FakeBroker(context=own.server_context()) as broker:
        text = reason(broker, security(own, "SSL"))
        unchecked = security(own, "SSL", ssl_endpoint_identification_algorithm="")
        connect(broker, unchecked)

    assert text.startswith("this broker does not accept its certificate: IP address mismatch")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_broker_without_a_certificate_is_told_that_it_needs_one(
    shared: SecuredPeers, version: ssl.TLSVersion
) -> None:
    """In TLS 1.3, the other side says so only after the handshake."""
    settings = shared.settings("SSL")
    del settings["ssl.keystore.location"]
    used = PeerSecurity(BrokerConfig(settings), "SSL")
    context = shared.server_context()
    context.maximum_version = version
    with FakeBroker(context=context) as broker:
        text = reason(broker, used)

    assert text.startswith("TLS failed: it ") and "certificate" in text, text


def test_broker_whose_authority_is_unknown_there_is_told_so(
    shared: SecuredPeers, tmp_path: Path
) -> None:
    other = SecuredPeers(tmp_path)
    other.trust.write_bytes(other.authority.certificate + shared.authority.certificate)
    used = security(other, "SSL")
    with FakeBroker(context=shared.server_context()) as broker:
        text = reason(broker, used)

    assert text.startswith("TLS failed: it rejects the certificate of this broker"), text


def test_wrong_password_is_named_with_the_user_and_without_the_password(
    shared: SecuredPeers,
) -> None:
    wrong = "Zq7-wrong"
    config = BrokerConfig(shared.settings("SASL_PLAINTEXT", "SCRAM-SHA-256", password=wrong))
    used = PeerSecurity(config, "SASL_PLAINTEXT")
    with FakeBroker(sasl_responses("SCRAM-SHA-256", USER, PASSWORD)) as broker:
        text = reason(broker, used)

    assert text == (
        f"the login of this broker as {USER!r} failed: SASL SCRAM-SHA-256: wrong user or password"
    )


def test_mechanism_that_is_not_offered_is_named(shared: SecuredPeers) -> None:
    with FakeBroker(sasl_responses("SCRAM-SHA-512", USER, PASSWORD)) as broker:
        text = reason(broker, security(shared, "SASL_PLAINTEXT"))

    assert text.endswith("the broker does not offer SASL PLAIN, only SCRAM-SHA-512")


def test_broker_that_closes_during_the_login_is_named(shared: SecuredPeers) -> None:
    answers = sasl_responses("PLAIN", USER, PASSWORD) | {36: lambda request, state: None}
    with FakeBroker(answers) as broker:
        text = reason(broker, security(shared, "SASL_PLAINTEXT"))

    assert text == "it closed the connection during the login"


class Stranger:
    """Not a broker: answers anything with these bytes, or never."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self._kept: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        made, _ = self._listener.accept()
        self._kept.append(made)
        if self._answer is not None:
            made.recv(10_000)
            made.sendall(self._answer)
            made.close()

    def close(self) -> None:
        self._thread.join()
        for each in (self._listener, *self._kept):
            each.close()


def test_plaintext_where_tls_is_expected_is_named(shared: SecuredPeers) -> None:
    stranger = Stranger(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    try:
        with pytest.raises(OSError, match="TLS failed: it does not speak TLS"):
            connected(HOST, stranger.port, PATIENCE_S, -1, security(shared, "SSL"))
    finally:
        stranger.close()


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT"])
def test_broker_that_says_nothing_is_given_up(shared: SecuredPeers, protocol: str) -> None:
    stranger = Stranger(None)
    try:
        with pytest.raises(TimeoutError):
            connected(HOST, stranger.port, 0.05, -1, security(shared, protocol))
    finally:
        stranger.close()


@pytest.mark.parametrize("answer", [b"\0\1\0\1", b"\xff\xff\xff\xff", b"\0\0\0\x04\0\0\0\x09",
                                    b"\0\0\0\x07\0\0\0\x01\0\0\x09"])  # fmt: skip
def test_malformed_response_to_a_login_fails_it(shared: SecuredPeers, answer: bytes) -> None:
    stranger = Stranger(answer)
    try:
        with pytest.raises(OSError, match=r"its response|it responds to request"):
            connected(HOST, stranger.port, PATIENCE_S, -1, security(shared, "SASL_PLAINTEXT"))
    finally:
        stranger.close()


# -- configs ---------------------------------------------------------------------------------------


def test_replaced_files_count_for_the_next_connection(own: SecuredPeers) -> None:
    used = security(own, "SSL")
    with FakeBroker(context=own.server_context()) as broker:
        first = connect(broker, used)
        other = create_authority("the next CA")
        own.trust.write_bytes(own.authority.certificate + other.certificate)
        own.authority = other
        own.issue([HOST])
        broker.context = own.server_context()

        second = connect(broker, used)

    assert first.socket is not second.socket


def test_file_that_does_not_load_leaves_the_old_one_in_force(
    own: SecuredPeers, caplog: pytest.LogCaptureFixture
) -> None:
    used = security(own, "SSL")
    with FakeBroker(context=own.server_context()) as broker:
        own.trust.write_bytes(b"half a file")
        with caplog.at_level(logging.ERROR):
            connect(broker, used)
            connect(broker, used)

    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("connections to listener SSL of other brokers keep their security")
    assert "ssl.truststore.location" in line


def test_changed_configs_are_followed(own: SecuredPeers) -> None:
    answers = sasl_responses("PLAIN", USER, PASSWORD)
    wrong = BrokerConfig(own.settings("SASL_PLAINTEXT", password="wrong"))
    right = BrokerConfig(own.settings("SASL_PLAINTEXT"))
    used = PeerSecurity(wrong, "SASL_PLAINTEXT")
    with FakeBroker(answers) as broker:
        assert "the login of this broker" in reason(broker, used)

        used.follow(right)

        assert connect(broker, used).renews_after_ms is None


def test_config_that_does_not_load_is_rejected_and_not_followed(
    own: SecuredPeers, caplog: pytest.LogCaptureFixture
) -> None:
    used = security(own, "SSL")
    settings = own.settings("SSL") | {"ssl.truststore.location": "/nowhere"}
    bad = BrokerConfig(settings)

    with pytest.raises(ConfigError, match="/nowhere"):
        used.check(bad)
    used.follow(bad)

    assert "keep their security settings" in caplog.text
    with FakeBroker(context=own.server_context()) as broker:
        connect(broker, used)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "mechanism": (
        {"sasl.mechanism.inter.broker.protocol": "DIGEST-MD5"},
        "sasl.mechanism.inter.broker.protocol=DIGEST-MD5 is not valid: expected a mechanism that",
    ),
    "Kerberos": (
        {
            "sasl.mechanism.inter.broker.protocol": "GSSAPI",
            "sasl.enabled.mechanisms": "PLAIN,GSSAPI",
        },
        "listener.name.sasl_ssl.gssapi.sasl.jaas.config",
    ),
    "not enabled": (
        {"sasl.enabled.mechanisms": "SCRAM-SHA-256"},
        "sasl.enabled.mechanisms=SCRAM-SHA-256 is not valid: expected with PLAIN",
    ),
    "no login": (
        {"listener.name.sasl_ssl.plain.sasl.jaas.config": "x.PlainLoginModule required user_a=b;"},
        r"listener.name.sasl_ssl.plain.sasl.jaas.config=\(hidden\) is not valid",
    ),
    "no store": ({"ssl.truststore.location": "/nowhere"}, "ssl.truststore.location=/nowhere"),
    "algorithm": (
        {"ssl.endpoint.identification.algorithm": "ldaps"},
        "ssl.endpoint.identification.algorithm=ldaps is not valid",
    ),
}


@pytest.mark.parametrize("client_auth", ["none", "required"])
def test_stores_with_which_brokers_would_not_accept_each_other_refuse_the_start(
    shared: SecuredPeers, tmp_path: Path, client_auth: str
) -> None:
    """Otherwise the cluster would start, and nothing would be replicated."""
    trust = tmp_path / "other.crt"
    trust.write_bytes(create_authority("another CA").certificate)
    more = {"listener_name_ssl_ssl_client_auth": client_auth}

    with pytest.raises(ConfigError, match=f"ssl.truststore.location={trust} is not valid"):
        security(shared, "SSL", ssl_truststore_location=str(trust), **more)
    assert security(shared, "SSL", **more).uses_tls


@pytest.mark.parametrize(("changed", "text"), BAD.values(), ids=BAD)
def test_config_that_cannot_be_obeyed_refuses_the_start(
    shared: SecuredPeers, changed: dict[str, Any], text: str
) -> None:
    settings = {
        **shared.settings("SASL_SSL"),
        "listeners": "SASL_SSL://127.0.0.1:0",
        "zookeeper.connect": "127.0.0.1:1",
        **changed,
    }
    with pytest.raises(ConfigError, match=text):
        load_security(BrokerConfig(settings))


def test_each_listener_between_brokers_has_its_own_security(shared: SecuredPeers) -> None:
    settings = {
        **shared.settings("SASL_SSL"),
        "listeners": "SASL_SSL://127.0.0.1:0,CONTROL://127.0.0.1:0",
        "listener.security.protocol.map": "SASL_SSL:SASL_SSL,CONTROL:SSL",
        "control.plane.listener.name": "CONTROL",
        "zookeeper.connect": "127.0.0.1:1",
    }

    found = load_security(BrokerConfig(settings))

    assert {name: one.protocol for name, one in found.items()} == {
        "SASL_SSL": "SASL_SSL",
        "CONTROL": "SSL",
    }


def test_nothing_is_loaded_where_nothing_is_secured(shared: SecuredPeers) -> None:
    plain = {"listeners": "PLAINTEXT://127.0.0.1:0", "zookeeper.connect": "127.0.0.1:1"}
    alone = {**shared.settings("SASL_SSL"), "listeners": "SASL_SSL://127.0.0.1:0"}

    assert load_security(BrokerConfig(plain)) == {}
    assert load_security(BrokerConfig(alone)) == {}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = open_files()
    yield
    assert len(open_files() - before) <= 8, "sockets are closed"
