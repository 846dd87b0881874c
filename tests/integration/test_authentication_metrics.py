"""What /metrics says about logins, and what an unknown user learns from one."""

from __future__ import annotations

import re
import ssl
import urllib.request
from base64 import b64decode
from pathlib import Path

import pytest
from support.brokers.zookeeper import path_of_its_own
from support.security.secured import PASSWORDS, LoginRefused, SecuredClient, Site, address_of

from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kbroker.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kbroker.testing import Broker, wait_until
from kbroker.wire import sasl

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

MECHANISM = "SCRAM-SHA-512"
SCRAM = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": MECHANISM,
}


def metrics(broker: Broker) -> dict[tuple[str, str], int]:
    """By name and listener, without the prefix and the ending that all have."""
    with urllib.request.urlopen(f"{broker.metrics_url}/metrics") as response:
        text = response.read().decode()
    found: dict[tuple[str, str], int] = {}
    line = r'^kbroker_(\w+)_total\{process="network-\d+",listener="(\w+)"\} (\d+)$'
    for name, listener, count in re.findall(line, text, re.MULTILINE):
        found[name, listener] = found.get((name, listener), 0) + int(count)
    return found


def test_logins_and_handshakes_are_counted_by_listener(tmp_path: Path) -> None:
    site = Site(tmp_path)
    reauthentication = {"listener.name.sasl_ssl.plain.connections.max.reauth.ms": "1200"}
    with Broker(site.settings("PLAINTEXT", "SSL", "SASL_SSL") | reauthentication) as broker:
        context, secured = site.client_context(), address_of(broker, "SASL_SSL")
        SecuredClient(address_of(broker, "SSL"), context=context).close()
        for _ in range(2):
            with pytest.raises(LoginRefused):
                SecuredClient(secured, context=context, user="alice", password="wrong")
        with pytest.raises(ssl.SSLError):
            SecuredClient(secured, context=ssl.create_default_context())
        client = SecuredClient(secured, context=context, user="alice")
        wait_until(lambda: not answers(client))
        client = SecuredClient(secured, context=context, user="alice")
        wait_until(lambda: metrics(broker).get(("successful_authentication", "SASL_SSL")) == 2)
        wait_for_renewal(client)
        expected = {
            ("successful_authentication", "SSL"): 1,
            ("successful_authentication", "SASL_SSL"): 2,
            ("failed_authentication", "SASL_SSL"): 3,
            ("successful_reauthentication", "SASL_SSL"): 1,
            ("expired_connections_killed", "SASL_SSL"): 1,
        }
        wait_until(lambda: metrics(broker) == expected)
        client.close()


def answers(client: SecuredClient) -> bool:
    """Whether it is still connected; its session ends, and it does not renew it."""
    try:
        client.call(MetadataRequest(topics=[]), 9)
    except OSError:
        return False
    return True


def wait_for_renewal(client: SecuredClient) -> None:
    """Log in again on the same connection, once the broker lets it: not within the first second
    after the login before.
    """
    client.log_in("alice", PASSWORDS["alice"])


def shown_salt(broker: Broker, user: str) -> bytes:
    """What a client learns that says it is this user."""
    with SecuredClient(address_of(broker, "SASL_PLAINTEXT")) as client:
        assert client.call(SaslHandshakeRequest(mechanism=MECHANISM), 1).error_code == 0
        first = sasl.CLIENTS[MECHANISM](user, "guess").evaluate(None)
        answer = client.call(SaslAuthenticateRequest(auth_bytes=first), 1)
    fields = dict(part.split("=", 1) for part in bytes(answer.auth_bytes).decode().split(","))
    return b64decode(fields["s"])


def test_salt_of_an_unknown_user_is_the_same_at_all_brokers_and_after_a_restart() -> None:
    """As that of a known one is: a salt that changes would say that there is no such user."""
    settings = SCRAM | {"zookeeper.connect": path_of_its_own()}
    with Broker(settings) as first, Broker(settings | {"broker.id": "1"}) as second:
        salts = [shown_salt(broker, "nobody") for broker in (first, second)]
        first.restart()
        salts.append(shown_salt(first, "nobody"))
        other = shown_salt(second, "another")

    assert len(set(salts)) == 1
    assert other not in salts


def test_salt_of_an_unknown_user_stays_on_a_single_broker() -> None:
    with Broker(SCRAM | {"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}) as broker:
        before = shown_salt(broker, "nobody")
        broker.restart()
        assert shown_salt(broker, "nobody") == before
