"""Logins over SASL_PLAINTEXT, with real processes and the clients that people have."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaProducer
from support.clients.wire_client import WireClient, batch_of

from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.security import Security
from kbroker.client.errors import AuthenticationFailed
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kbroker.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kbroker.testing import Broker, BrokerFailed, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

OWN = "listener.name.sasl_plaintext."
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
USER, PASSWORD = "alice", "al'ice s\\\\ecret"
BASE = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    f"{OWN}plain.sasl.jaas.config": f'{PLAIN} user_{USER}="{PASSWORD}" user_bob="b";',
}
TEXT = "Authentication failed: Invalid username or password"
PASSWORD = PASSWORD.replace("\\\\", "\\")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A private key, and the file with its public one."""
    jwt = pytest.importorskip("jwt", reason="needs PyJWT (pip: kbroker[oauth])")
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(private.public_key()))
    file = tmp_path_factory.mktemp("keys") / "jwks.json"
    file.write_text(json.dumps({"keys": [public | {"kid": "k1"}]}))
    return private, file


@pytest.fixture(scope="module")
def broker(keys: tuple[Any, Path]) -> Iterator[Broker]:
    url = keys[1].as_uri()
    settings = BASE | {
        "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER,SCRAM-SHA-256,SCRAM-SHA-512",
        "sasl.oauthbearer.jwks.endpoint.url": url,
        "sasl.oauthbearer.allowed.urls": url,
        "sasl.oauthbearer.expected.audience": "kafka",
        f"{OWN}plain.connections.max.reauth.ms": "1500",
    }
    with Broker(settings) as started:
        yield started


def token(keys: tuple[Any, Path], lasts_s: float = 600, **claims: Any) -> str:
    import jwt

    now = time.time()
    body = {"sub": "carol", "aud": "kafka", "iat": now, "exp": now + lasts_s} | claims
    return str(jwt.encode(body, keys[0], algorithm="ES256", headers={"kid": "k1"}))


def librdkafka(broker: Broker, **settings: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"127.0.0.1:{broker.port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "logger": QUIET,
    } | {
        name if name.endswith("_cb") else name.replace("_", "."): value
        for name, value in settings.items()
    }


class Quiet:
    def log(self, *args: Any) -> None:
        pass


QUIET = Quiet()


def own_cluster(broker: Broker, **settings: str) -> Cluster:
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    } | {name.replace("_", "."): value for name, value in settings.items()}
    return Cluster(f"127.0.0.1:{broker.port}", Security.from_options(options), deadline=20)


# -- PLAIN


def test_own_client_logs_in_and_is_told_of_a_wrong_password(broker: Broker) -> None:
    with own_cluster(broker) as cluster:
        assert isinstance(cluster.topics(), dict)
    with (
        pytest.raises(AuthenticationFailed, match=TEXT),
        own_cluster(broker, sasl_password="wrong") as cluster,
    ):
        cluster.topics()


def test_librdkafka_logs_in_and_is_told_of_a_wrong_password(broker: Broker) -> None:
    assert AdminClient(librdkafka(broker)).list_topics(timeout=20).brokers
    told: list[confluent_kafka.KafkaError] = []
    wrong = AdminClient(librdkafka(broker, sasl_password="wrong", error_cb=told.append))

    def is_told() -> bool:
        wrong.poll(0.1)
        return bool(told)

    wait_until(is_told)
    assert told[0].code() == confluent_kafka.KafkaError._AUTHENTICATION
    assert TEXT in told[0].str()


def test_kafka_python_logs_in_and_is_told_of_a_wrong_password(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {
        "bootstrap_servers": f"127.0.0.1:{broker.port}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": USER,
    }
    producer = KafkaProducer(sasl_plain_password=PASSWORD, **settings)
    try:
        assert producer.send("by-kafka-python", b"x").get(timeout=20).offset == 0
    finally:
        producer.close(timeout=5)
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaAdminClient(
            sasl_plain_password="wrong", bootstrap_timeout_ms=1000, **settings
        ).list_topics()
    assert TEXT in caplog.text, "kafka-python says it in its log only"


def test_aiokafka_logs_in_and_is_told_of_a_wrong_password(broker: Broker) -> None:
    async def send(password: str) -> int:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=f"127.0.0.1:{broker.port}",
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_plain_username=USER,
            sasl_plain_password=password,
        )
        try:
            await producer.start()
            return int((await producer.send_and_wait("by-aiokafka", b"x")).offset)
        finally:
            await producer.stop()

    assert asyncio.run(send(PASSWORD)) == 0
    with pytest.raises(aiokafka.errors.KafkaConnectionError):
        asyncio.run(send("wrong"))


# -- SCRAM


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_user_is_created_logs_in_and_is_deleted(broker: Broker, mechanism: str) -> None:
    user, password = f"dave {mechanism}", "pässword"  # kafka-python escapes no comma
    admin = AdminClient(librdkafka(broker))
    info = ScramCredentialInfo(getattr(ScramMechanism, mechanism.replace("-", "_")), 4096)
    created = UserScramCredentialUpsertion(user, info, password.encode())
    for done in admin.alter_user_scram_credentials([created]).values():
        done.result(20)
    settings = {"sasl_mechanisms": mechanism, "sasl_username": user}
    assert (
        AdminClient(librdkafka(broker, sasl_password=password, **settings))
        .list_topics(timeout=20)
        .brokers
    )
    own = {"sasl_mechanism": mechanism, "sasl_username": user}
    with own_cluster(broker, sasl_password=password, **own) as cluster:
        assert isinstance(cluster.topics(), dict)
    producer = KafkaProducer(
        bootstrap_servers=f"127.0.0.1:{broker.port}",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username=user,
        sasl_plain_password=password,
    )
    try:
        assert producer.send(f"by-{mechanism}", b"x").get(timeout=20).offset == 0
    finally:
        producer.close(timeout=5)

    with own_cluster(broker, sasl_password=password, **own) as cluster:
        assert cluster.topics()  # its credential is known where it logs in
    deleted = UserScramCredentialDeletion(user, info.mechanism)
    for done in admin.alter_user_scram_credentials([deleted]).values():
        done.result(20)
    for who, secret in ((user, password), (user, "wrong"), ("nobody", password)):
        with (
            pytest.raises(AuthenticationFailed, match="due to invalid credentials"),
            own_cluster(
                broker, sasl_mechanism=mechanism, sasl_username=who, sasl_password=secret
            ) as cluster,
        ):
            cluster.topics()


# -- OAUTHBEARER


def test_librdkafka_logs_in_with_a_signed_token(broker: Broker, keys: tuple[Any, Path]) -> None:
    def fetch(config: str) -> tuple[str, float]:
        return token(keys), time.time() + 600

    client = AdminClient(
        librdkafka(broker, sasl_mechanisms="OAUTHBEARER", oauth_cb=fetch)
        | {"sasl.username": "", "sasl.password": ""}
    )
    client.poll(0.1)
    assert client.list_topics(timeout=20).brokers


def test_aiokafka_logs_in_with_a_signed_token_and_not_with_another(
    broker: Broker, keys: tuple[Any, Path]
) -> None:
    class Tokens(aiokafka.abc.AbstractTokenProvider):
        def __init__(self, text: str) -> None:
            self.text = text

        async def token(self) -> str:
            return self.text

    async def send(text: str) -> int:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=f"127.0.0.1:{broker.port}",
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=Tokens(text),
        )
        try:
            await producer.start()
            return int((await producer.send_and_wait("by-token", b"x")).offset)
        finally:
            await producer.stop()

    assert asyncio.run(send(token(keys))) == 0
    for wrong in (token(keys, aud="other"), token(keys)[:-4] + "AAAA"):
        with pytest.raises(aiokafka.errors.KafkaConnectionError):
            asyncio.run(send(wrong))


def test_token_that_ends_ends_the_session(broker: Broker, keys: tuple[Any, Path]) -> None:
    with WireClient((broker.host, broker.port)) as client:
        client.call(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
        message = f"n,,\x01auth=Bearer {token(keys, lasts_s=1)}\x01\x01".encode()
        response = client.call(SaslAuthenticateRequest(auth_bytes=message), 2)
        assert response.error_code == 0, response.error_message
        assert 0 < response.session_lifetime_ms <= 1000
        assert client.call(MetadataRequest(topics=[]), 1).brokers
        until = time.monotonic() + response.session_lifetime_ms / 1000
        wait_until(lambda: time.monotonic() > until)
        with pytest.raises(OSError):
            client.call(MetadataRequest(topics=[]), 1)
    wait_until(lambda: "its session has ended" in broker.log_text)


# -- sessions


def test_reauthentication_under_load_loses_nothing(broker: Broker) -> None:
    """Sessions last 1.5 s; the client renews them among its requests, and no record is delayed
    until an error.
    """
    errors: list[Any] = []
    before = len(broker.log_text)
    producer = confluent_kafka.Producer(
        librdkafka(broker, error_cb=errors.append, linger_ms=1, message_timeout_ms=30000)
    )
    delivered: list[Any] = []
    until = time.monotonic() + 5
    count = 0
    while time.monotonic() < until:
        producer.produce("under-load", b"x" * 100, on_delivery=lambda e, m: delivered.append(e))
        count += 1
        if count % 20 == 0:
            producer.poll(0.001)
    assert producer.flush(30) == 0

    assert len(delivered) == count
    assert not any(delivered)
    assert errors == []
    assert "its session has ended" not in broker.log_text[before:]


def test_client_that_does_not_renew_its_session_is_disconnected(broker: Broker) -> None:
    with logged_in(broker) as client:
        wait_until(lambda: not is_served(client))


def is_served(client: WireClient) -> bool:
    try:
        client.call(MetadataRequest(topics=[]), 1)
    except OSError:
        return False
    return True


def logged_in(broker: Broker, version: int = 1) -> WireClient:
    client = WireClient((broker.host, broker.port))
    assert client.call(SaslHandshakeRequest(mechanism="PLAIN"), version).error_code == 0
    data = f"\0{USER}\0{PASSWORD}".encode()
    if version == 0:
        client.socket.sendall(len(data).to_bytes(4, "big") + data)
        assert client.socket.recv(4, socket.MSG_WAITALL) == bytes(4)
    else:
        assert client.call(SaslAuthenticateRequest(auth_bytes=data), 2).error_code == 0
    return client


# -- on the wire


def test_handshake_0_is_followed_by_a_token_without_a_header(broker: Broker) -> None:
    with logged_in(broker, version=0) as client:
        assert client.call(MetadataRequest(topics=[]), 1).brokers


def test_nothing_is_served_before_authentication(broker: Broker) -> None:
    for request, version in (
        (MetadataRequest(topics=[]), 1),
        (SaslAuthenticateRequest(auth_bytes=b"\0a\0b"), 2),
    ):
        with WireClient((broker.host, broker.port)) as client, pytest.raises(OSError):
            client.call(request, version)
    with WireClient((broker.host, broker.port)) as client:
        client.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        with pytest.raises(OSError):
            client.produce("by-nobody", {0: batch_of([b"x"])})


def test_many_failures_at_once_delay_nobody_else(broker: Broker) -> None:
    """Each is answered after the delay; a client that logs in meanwhile is not held up by them."""
    answers: list[int] = []

    def fail() -> None:
        with WireClient((broker.host, broker.port)) as client:
            client.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            wrong = SaslAuthenticateRequest(auth_bytes=b"\0alice\0guess")
            answers.append(client.call(wrong, 2).error_code)
            assert client.is_closed(20)

    threads = [threading.Thread(target=fail) for _ in range(50)]
    for thread in threads:
        thread.start()
    with logged_in(broker) as client:
        assert client.call(MetadataRequest(topics=[]), 1).brokers
    for thread in threads:
        thread.join()
    assert answers == [ErrorCode.SASL_AUTHENTICATION_FAILED] * 50


# -- starts


def test_secrets_are_not_in_the_log(broker: Broker) -> None:
    assert "ecret" not in broker.log_text


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "Krb5LoginModule"),
        ({"sasl.enabled.mechanisms": "PLAIN,DIGEST-MD5"}, "DIGEST-MD5"),
        ({"sasl.enabled.mechanisms": "PLAIN", f"{OWN}plain.sasl.jaas.config": "hunter2"}, "jaas"),
        ({"sasl.enabled.mechanisms": "OAUTHBEARER"}, "jwks.endpoint.url"),
    ],
)
def test_listener_that_cannot_be_served_refuses_the_start(
    settings: dict[str, str], told: str
) -> None:
    broker = Broker(BASE | settings)
    try:
        with pytest.raises(BrokerFailed) as caught:
            broker.start()
    finally:
        broker.close()
    assert "exit code 2" in str(caught.value) or "exited with 2" in str(caught.value)
    assert told in str(caught.value)
    assert "hunter2" not in str(caught.value)
