"""As whom a broker logs in at others, and in which versions of the requests."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from support.fake_broker import FakeBroker, sasl_responses
from support.secured_peers import HOST, PASSWORD, USER, SecuredPeers

from kbroker.config.loader import BrokerConfig
from kbroker.config.protocol_version import ProtocolVersion as V
from kbroker.peers.login import Login, greet, log_in, login_of

pytestmark = pytest.mark.unit

LOGIN = Login("SCRAM-SHA-256", USER, PASSWORD)


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


def test_login_is_shown_without_its_password() -> None:
    assert repr(LOGIN) == "Login(SCRAM-SHA-256 as 'broker')"


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
        found = log_in(made, LOGIN, protocol, time.monotonic() + 20)
        versions = [version for _, version in broker.headers]

    assert (found, versions) == (lasts_s, [1, version, version])


def test_greeting_is_what_every_broker_answers() -> None:
    with FakeBroker() as broker, socket.create_connection((HOST, broker.port)) as made:
        greet(made, V.V1_1_IV0, time.monotonic() + 20)

        assert broker.headers == [(18, 0)]
