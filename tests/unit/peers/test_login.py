"""As whom a broker logs in at others, and in which versions of the requests."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from support.brokers.fake_broker import FakeBroker, sasl_responses
from support.security.secured_peers import HOST, PASSWORD, USER, SecuredPeers

from kbroker.config.loader import BrokerConfig
from kbroker.config.protocol_version import ProtocolVersion as V
from kbroker.errors import ConfigError
from kbroker.peers.login import PasswordLogin, TicketLogin, TokenLogin, greet, log_in, login_of

pytestmark = pytest.mark.unit

LOGIN = PasswordLogin("SCRAM-SHA-256", USER, PASSWORD)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_user_is_that_of_the_listeners_login_module(tmp_path: Path, mechanism: str) -> None:
    config = BrokerConfig(SecuredPeers(tmp_path).settings("SASL_SSL", mechanism))

    assert login_of(config, "SASL_SSL") == (mechanism, USER, PASSWORD)


def test_login_may_be_in_the_jaas_file(tmp_path: Path) -> None:
    """As the files of older Kafkas have it: the listener's own section comes first."""
    place = tmp_path / "jaas.conf"
    place.write_text(
        'KafkaServer { a.ScramLoginModule required username="x" password="y"; };\n'
        'inside.KafkaServer { a.ScramLoginModule required username="in" password="p;w"; };\n'
    )
    settings = {
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "java.security.auth.login.config": str(place),
    }

    assert login_of(BrokerConfig(settings), "INSIDE") == ("SCRAM-SHA-256", "in", "p;w")
    assert login_of(BrokerConfig(settings), "OTHER") == ("SCRAM-SHA-256", "x", "y")


TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"


def with_tokens(url: str, jaas: str = "", **more: str) -> BrokerConfig:
    settings = {
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        TOKEN_URL: url,
        "sasl.oauthbearer.allowed.urls": "https://a.example/token,file:///token",
        "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": (
            f"x.OAuthBearerLoginModule required {jaas};"
        ),
    }
    return BrokerConfig(settings | {name.replace("__", "."): value for name, value in more.items()})


def test_token_is_got_with_the_client_of_the_login_module() -> None:
    jaas = 'clientId="broker" clientSecret="Zq7" scope="kafka"'
    login = login_of(with_tokens("https://a.example/token", jaas), "SASL_SSL")
    assert isinstance(login, TokenLogin)
    assert (login.mechanism, login.username) == ("OAUTHBEARER", "broker")
    assert "Zq7" not in repr(login)


def test_token_of_a_file_is_read_for_each_login(tmp_path: Path) -> None:
    place = tmp_path / "token"
    allowed = {"sasl__oauthbearer__allowed__urls": place.as_uri()}
    login = login_of(with_tokens(place.as_uri(), **allowed), "SASL_SSL")
    with pytest.raises(OSError, match="this broker cannot log in"):
        login.client(HOST, time.monotonic() + 20)
    for token in ("a.b.c", "d.e.f"):
        place.write_text(token)
        first = login.client(HOST, time.monotonic() + 20).evaluate(None)
        assert first == f"n,,\x01auth=Bearer {token}\x01\x01".encode()


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (with_tokens(""), "where this broker gets its token from"),
        (with_tokens("https://b.example/token"), "a URL of sasl.oauthbearer.allowed.urls"),
        (with_tokens("https://a.example/token"), "sasl.oauthbearer.client.id"),
        (with_tokens("file:///token", 'unsecuredLoginStringClaim_sub="x"'), "unsigned tokens"),
    ],
)
def test_token_that_cannot_be_got_refuses_the_start(made: BrokerConfig, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        login_of(made, "SASL_SSL")


def test_broker_logs_in_with_the_keys_of_its_kerberos_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kbroker.peers.login.acceptor", lambda own, login: None)
    module = "x.Krb5LoginModule required useKeyTab=true storeKey=true"
    settings = {
        "sasl.mechanism.inter.broker.protocol": "GSSAPI",
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "listener.name.sasl_ssl.gssapi.sasl.jaas.config": (
            f'{module} keyTab="/keys" principal="kafka/h@R";'
        ),
    }
    login = login_of(BrokerConfig(settings), "SASL_SSL")
    assert isinstance(login, TicketLogin)
    assert (login.mechanism, login.username) == ("GSSAPI", "kafka/h@R")
    assert login.own == ("kafka", "kafka/h@R", "/keys")


def test_login_is_shown_without_its_password() -> None:
    assert repr(LOGIN) == "PeerLogin(SCRAM-SHA-256 as 'broker')"


@pytest.mark.parametrize(
    ("protocol", "version", "lasts_s"), [(V.V1_1_IV0, 0, 0), (V.V2_2_IV0, 1, 60), (max(V), 1, 60)]
)
def test_requests_are_sent_in_versions_that_the_cluster_has(
    protocol: V, version: int, lasts_s: int
) -> None:
    """Kafka 1.1 closes the connection for a version that it does not know."""
    versions: list[int] = []
    answers = sasl_responses("SCRAM-SHA-256", USER, PASSWORD, 60_000)
    with FakeBroker(answers) as broker, socket.create_connection((HOST, broker.port)) as made:
        found = log_in(made, LOGIN, protocol, HOST, time.monotonic() + 20)
        versions = [version for _, version in broker.headers]

    assert (found, versions) == (lasts_s, [1, version, version])


def test_greeting_is_what_every_broker_answers() -> None:
    with FakeBroker() as broker, socket.create_connection((HOST, broker.port)) as made:
        greet(made, V.V1_1_IV0, time.monotonic() + 20)

        assert broker.headers == [(18, 0)]
