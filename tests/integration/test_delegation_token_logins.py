"""Delegation tokens with real processes: created, used, renewed, ended and kept."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest
from support.brokers.zookeeper import path_of_its_own
from support.security import token_requests as tokens
from support.security.acl_requests import acl
from support.security.acl_requests import create as create_acls
from support.security.secured import JAAS, PASSWORDS, SecuredClient, address_of

from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.security import Security
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.security.operations import AclOperation, Kind
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PROTOCOL, KEY = "SASL_PLAINTEXT", "Zq7-key-of-tokens"
USERS = PASSWORDS | {"bob": "Zq7-bob-secret", "carol": "Zq7-carol-secret"}
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS.format(
        " ".join(f'user_{name}="{word}"' for name, word in USERS.items())
    ),
    "delegation.token.secret.key": KEY,
    "delegation.token.expiry.check.interval.ms": "300",
}
ACLS = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:admin",
}
NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS | ACLS) as started:
        yield started


def client(broker: Broker, user: str) -> SecuredClient:
    return SecuredClient(address_of(broker, PROTOCOL), user=user, password=USERS[user])


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_client_of_a_token_is_its_owner_with_its_permissions(
    broker: Broker, mechanism: str
) -> None:
    with client(broker, "admin") as admin, client(broker, "bob") as bob:
        create_acls(admin, acl("*", AclOperation.ALL, Kind.TOPIC, "of-bob", principal="User:bob"))
        token = tokens.create(bob, "carol")
    assert token.error_code == 0
    options = {
        "security.protocol": PROTOCOL,
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{token.token_id}" password="{tokens.secret_of(token)}" tokenauth="true";'
        ),
    }
    host, port = address_of(broker, PROTOCOL)

    with Cluster(f"{host}:{port}", Security.from_options(options), deadline=20) as cluster:
        assert isinstance(cluster.topics(), dict)
    address = address_of(broker, PROTOCOL)
    with tokens.logged_in(address, token.token_id, tokens.secret_of(token), mechanism) as of_token:
        names = [MetadataRequest.MetadataRequestTopic(name=name) for name in ("of-bob", "x")]
        found = of_token.call(MetadataRequest(topics=names), 9)

    codes = {topic.name: topic.error_code for topic in found.topics}
    assert codes["x"] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert codes["of-bob"] != ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_token_does_not_beget_tokens(broker: Broker) -> None:
    """Who gets hold of one must not be able to keep it alive."""
    with client(broker, "bob") as bob:
        token = tokens.create(bob)
    address = address_of(broker, PROTOCOL)

    with tokens.logged_in(address, token.token_id, tokens.secret_of(token)) as of_token:
        codes = [
            tokens.create(of_token).error_code,
            tokens.renew(of_token, token).error_code,
            tokens.expire(of_token, token).error_code,
        ]
        with pytest.raises(AssertionError, match="NOT_ALLOWED"):
            tokens.described(of_token)
    with SecuredClient(address_of(broker, "PLAINTEXT")) as anybody:
        codes.append(tokens.create(anybody).error_code)

    assert codes == [NOT_ALLOWED] * 4


def test_secret_of_one_token_is_not_that_of_another(broker: Broker) -> None:
    with client(broker, "bob") as bob:
        one, other = tokens.create(bob), tokens.create(bob)
    address = address_of(broker, PROTOCOL)

    assert tokens.refused(address, one.token_id, tokens.secret_of(one)) is None
    for token_id, secret in (
        (one.token_id, tokens.secret_of(other)),
        ("bob", USERS["bob"]),
        ("nobody", "x"),
        (f"../tokens/{one.token_id}", tokens.secret_of(one)),
    ):
        text = tokens.refused(address, token_id, secret)
        assert text is not None and "due to invalid credentials" in text


def test_token_is_ended_by_its_renewer_and_lets_nobody_in(broker: Broker) -> None:
    with client(broker, "bob") as bob, client(broker, "carol") as carol:
        token = tokens.create(bob, "carol")
        renewed = tokens.renew(carol, token)
        with client(broker, "alice") as alice:
            stranger = tokens.expire(alice, token).error_code
        assert tokens.expire(carol, token).error_code == 0
        gone = tokens.renew(bob, token).error_code
    address = address_of(broker, PROTOCOL)

    assert renewed.expiry_timestamp_ms >= token.expiry_timestamp_ms
    assert stranger == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert gone == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert tokens.refused(address, token.token_id, tokens.secret_of(token)) is not None


def test_token_that_has_ended_is_removed(broker: Broker) -> None:
    with client(broker, "bob") as bob:
        token = tokens.create(bob, lifetime_ms=1)

        def is_gone() -> bool:
            return token.token_id not in {one.token_id for one in tokens.described(bob)}

        wait_until(is_gone)
    address = address_of(broker, PROTOCOL)
    assert tokens.refused(address, token.token_id, tokens.secret_of(token)) is not None


def test_tokens_of_others_are_seen_and_made_with_acls(broker: Broker) -> None:
    """CreateTokens and DescribeTokens on a user, Describe on a token (KIP-373)."""
    with client(broker, "admin") as admin, client(broker, "alice") as alice:
        with client(broker, "carol") as carol:
            token = tokens.create(carol)
            denied = tokens.create(alice, owner="carol").error_code
            before = tokens.described(alice, ["carol"])
            create_acls(
                admin,
                acl("*", AclOperation.DESCRIBE, Kind.DELEGATION_TOKEN, token.token_id,
                    principal="User:alice"),
            )  # fmt: skip
            one = tokens.described(alice, ["carol"])
            create_acls(
                admin,
                acl("*", AclOperation.CREATE_TOKENS, Kind.USER, "User:carol",
                    principal="User:alice"),
                acl("*", AclOperation.DESCRIBE_TOKENS, Kind.USER, "User:carol",
                    principal="User:alice"),
            )  # fmt: skip
            tokens.create(carol)
            made = tokens.create(alice, owner="carol")
            both = tokens.described(alice, ["carol"])
        owners = {row.principal_name for row in tokens.described(alice)}

    assert denied == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert before == []
    assert [row.token_id for row in one] == [token.token_id]
    assert (made.error_code, made.principal_name) == (0, "carol")
    assert made.token_requester_principal_name == "alice"
    assert len(both) == 3
    assert owners == {"carol"}


def test_tokens_are_kept_over_a_restart_and_their_secrets_are_nowhere() -> None:
    with Broker(SETTINGS) as broker:
        with client(broker, "bob") as bob:
            token = tokens.create(bob)
        broker.stop()
        broker.start()
        address = address_of(broker, PROTOCOL)
        refusal = tokens.refused(address, token.token_id, tokens.secret_of(token))
        with client(broker, "bob") as bob:
            seen = tokens.described(bob)
        with urllib.request.urlopen(f"{broker.metrics_url}/metrics") as response:
            told = response.read().decode()
        files = [path.read_bytes() for path in broker.data_dir.rglob("*") if path.is_file()]
        text = broker.log_text + told

    assert refusal is None
    assert [bytes(row.hmac) for row in seen] == [bytes(token.hmac)]
    assert "created delegation token" in text
    secrets = [tokens.secret_of(token), bytes(token.hmac).hex(), repr(bytes(token.hmac)), KEY]
    for secret in secrets:
        assert secret not in text
    for secret in [bytes(token.hmac), *(one.encode() for one in secrets)]:
        assert not any(secret in content for content in files)


def test_token_of_one_broker_logs_in_at_another() -> None:
    """Executors connect to any broker as soon as their driver has a token."""
    settings = SETTINGS | {"zookeeper.connect": path_of_its_own()}
    with (
        Broker(settings) as first,
        Broker(settings | {"broker.id": "1"}) as second,
        client(first, "bob") as bob,
        client(second, "bob") as also_bob,
    ):
        there = address_of(second, PROTOCOL)
        for _ in range(5):
            token = tokens.create(bob)
            assert tokens.refused(there, token.token_id, tokens.secret_of(token)) is None
        assert tokens.expire(also_bob, token).error_code == 0
        here = address_of(first, PROTOCOL)
        wait_until(
            lambda: tokens.refused(here, token.token_id, tokens.secret_of(token)) is not None
        )
        short = tokens.create(also_bob, lifetime_ms=1)
        wait_until(lambda: len(tokens.described(bob)) == len(tokens.described(also_bob)) == 4)
        assert short.error_code == 0
