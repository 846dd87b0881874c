"""Each quota holds for each way to log in, sessions that end among them."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.clients.wire_client import WireClient, batch_of
from support.security import token_requests as tokens
from support.security.secured import HOST, JAAS, PASSWORDS, SecuredClient, Site, address_of

from kbroker.errors import ErrorCode
from kbroker.protocol.messages.alter_client_quotas import AlterClientQuotasRequest
from kbroker.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
)
from kbroker.protocol.messages.create_topics import CreateTopicsRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kbroker.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kbroker.security.sasl import scram
from kbroker.testing import Broker, wait_until
from kbroker.wire import sasl

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

TOPIC, BATCH = "t", 20_000
# A second, each with ten of them saved up (``quota.window.num``): few requests are above it.
QUOTAS = {
    "producer_byte_rate": 2_000.0,
    "consumer_byte_rate": 2_000.0,
    "request_percentage": 0.001,
    "controller_mutation_rate": 0.2,
}
SCRAM_USER, TOKEN_USER, OAUTH_USER = "sam", "tim", "olga"
ALICE = "alice"


class Login(NamedTuple):
    """listener: with its sessions, or without. user: whose quotas apply."""

    listener: str
    user: str
    mechanism: str = ""


LOGINS = {
    "anonymous": Login("PLAINTEXT", "ANONYMOUS"),
    "certificate": Login("SSL", "CN=carla"),
    "plain": Login("SASL_PLAINTEXT", ALICE, "PLAIN"),
    "plain-session": Login("SESSIONS", ALICE, "PLAIN"),
    "plain-without-headers": Login("SESSIONS", ALICE, "PLAIN, tokens only"),
    "plain-again": Login("SESSIONS", ALICE, "PLAIN, twice"),
    "scram-256": Login("SASL_PLAINTEXT", SCRAM_USER, "SCRAM-SHA-256"),
    "scram-512-session": Login("SESSIONS", SCRAM_USER, "SCRAM-SHA-512"),
    "delegation-token": Login("SASL_PLAINTEXT", TOKEN_USER, "token"),
    "oauthbearer": Login("SASL_PLAINTEXT", OAUTH_USER, "OAUTHBEARER"),
}


class Bench:
    """A broker with all these listeners, and its users."""

    def __init__(self, place: Path) -> None:
        jwt = pytest.importorskip("jwt", reason="needs PyJWT (pip: kbroker[oauth])")
        from cryptography.hazmat.primitives.asymmetric import ec

        self.site = Site(place)
        (place / "carla.pem").write_bytes(self.site.authority.issue("carla").pem)
        self.context = self.site.client_context()
        self.context.load_cert_chain(place / "carla.pem")
        self._key = ec.generate_private_key(ec.SECP256R1())
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key()))
        keys = place / "jwks.json"
        keys.write_text(json.dumps({"keys": [public | {"kid": "k1"}]}))
        settings = self.site.settings("PLAINTEXT", "SSL", "SASL_PLAINTEXT") | {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,"
            "SASL_PLAINTEXT:SASL_PLAINTEXT,SESSIONS:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER,SCRAM-SHA-256,SCRAM-SHA-512",
            "ssl.client.auth": "required",
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "sasl.oauthbearer.allowed.urls": keys.as_uri(),
            "sasl.oauthbearer.expected.audience": "kafka",
            "delegation.token.secret.key": "Zq7-key-of-tokens",
            "listener.name.sessions.connections.max.reauth.ms": "3600000",
        }
        users = " ".join(
            f'user_{name}="{word}"' for name, word in {**PASSWORDS, TOKEN_USER: "t-secret"}.items()
        )
        settings["listeners"] += f",SESSIONS://{HOST}:0"
        for listener in ("sasl_plaintext", "sessions"):
            settings[f"listener.name.{listener}.plain.sasl.jaas.config"] = JAAS.format(users)
        self.broker = Broker(settings, num_network_threads=1)

    def __enter__(self) -> Bench:
        self.broker.__enter__()
        with self.admin() as admin:
            admin.create_topic(TOPIC)
            for mechanism in scram.NUMBERS.values():
                add_scram_user(admin, mechanism)
            quotas = [(one.user, key, rate) for one in LOGINS.values() for key, rate in
                      QUOTAS.items()]  # fmt: skip
            for user, key, rate in dict.fromkeys(quotas):
                alter(admin, {"user": user, "client-id": key}, key, rate)
            for _ in range(4):
                admin.produce(TOPIC, {0: batch_of([bytes(BATCH)])})
        return self

    def __exit__(self, *error: Any) -> None:
        self.broker.__exit__(*error)

    def admin(self) -> WireClient:
        return WireClient(address_of(self.broker, "PLAINTEXT"), client_id="admin")

    def client(self, way: str, client_id: str) -> WireClient:
        """A client that has logged in."""
        login = LOGINS[way]
        context = self.context if login.listener == "SSL" else None
        address = address_of(self.broker, login.listener)
        client = SecuredClient(address, client_id=client_id, context=context)
        mechanism = login.mechanism
        if mechanism.startswith("PLAIN"):
            log_in_by_plain(client, mechanism)
        elif mechanism.startswith("SCRAM"):
            client.log_in(login.user, "s-secret", mechanism)
        elif mechanism == "token":
            with SecuredClient(address, user=TOKEN_USER, password="t-secret") as owner:
                token = tokens.create(owner)
            made = sasl.token_client("SCRAM-SHA-256", token.token_id, tokens.secret_of(token))
            client.log_in_by(made, "SCRAM-SHA-256")
        elif mechanism:
            client.call(SaslHandshakeRequest(mechanism=mechanism), 1)
            message = f"n,,\x01auth=Bearer {self.bearer()}\x01\x01".encode()
            answer = client.call(SaslAuthenticateRequest(auth_bytes=message), 2)
            assert answer.error_code == 0 and answer.session_lifetime_ms > 0
        return client

    def bearer(self) -> str:
        import jwt

        now = time.time()
        body = {"sub": OAUTH_USER, "aud": "kafka", "iat": now, "exp": now + 3_600}
        return str(jwt.encode(body, self._key, algorithm="ES256", headers={"kid": "k1"}))


def log_in_by_plain(client: SecuredClient, how: str) -> None:
    password = PASSWORDS[ALICE]
    if how == "PLAIN":
        client.log_in(ALICE, password)
        return
    if how == "PLAIN, twice":  # on the listener whose sessions end
        client.log_in(ALICE, password)
        client.log_in(ALICE, password)
        return
    client.call(SaslHandshakeRequest(mechanism="PLAIN"), 0)
    token = f"\0{ALICE}\0{password}".encode()
    client.socket.sendall(len(token).to_bytes(4, "big") + token)
    assert client.socket.recv(4, socket.MSG_WAITALL) == bytes(4)


def add_scram_user(admin: WireClient, mechanism: str) -> None:
    cls, salt = AlterUserScramCredentialsRequest, b"salt"
    number = {name: number for number, name in scram.NUMBERS.items()}[mechanism]
    salted = scram.pbkdf2(scram.HASHES[mechanism], b"s-secret", salt, 4096)
    row = cls.ScramCredentialUpsertion(
        name=SCRAM_USER, mechanism=number, iterations=4096, salt=salt, salted_password=salted
    )
    (result,) = admin.call(cls(upsertions=[row]), 0).results
    assert result.error_code == 0, result


def alter(admin: WireClient, entity: dict[str, str], key: str, rate: float | None) -> None:
    cls = AlterClientQuotasRequest
    entry = cls.EntryData(
        entity=[
            cls.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()
        ],
        ops=[cls.OpData(key=key, value=rate or 0.0, remove=rate is None)],
    )
    (outcome,) = admin.call(cls(entries=[entry]), 1).entries
    assert outcome.error_code == 0, outcome.error_message


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with Bench(tmp_path_factory.mktemp("quotas")) as made:
        yield made


# -- what uses each quota up: the throttle time of a request, in ms


def produce(client: WireClient) -> int:
    cls = ProduceRequest
    data = cls.PartitionProduceData(index=0, records=batch_of([bytes(BATCH)]))
    topic = cls.TopicProduceData(name=TOPIC, partition_data=[data])
    response = client.call(cls(acks=1, timeout_ms=30_000, topic_data=[topic]), 8)
    assert response.responses[0].partition_responses[0].error_code == 0
    return int(response.throttle_time_ms)


def fetch(client: WireClient) -> int:
    cls = FetchRequest
    part = cls.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=2 * BATCH)
    topic = cls.FetchTopic(topic=TOPIC, partitions=[part])
    asked = cls(max_wait_ms=0, min_bytes=1, max_bytes=2 * BATCH, topics=[topic])
    response = client.call(asked, 11)
    assert response.error_code == 0
    return int(response.throttle_time_ms)


def ask(client: WireClient) -> int:
    return int(client.call(MetadataRequest(topics=None), 9).throttle_time_ms)


def create(client: WireClient) -> int:
    topic = CreateTopicsRequest.CreatableTopic(
        name=f"new-{time.monotonic_ns()}", num_partitions=3, replication_factor=1
    )
    response = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 6)
    assert response.topics[0].error_code in (0, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    return int(response.throttle_time_ms)


USES: dict[str, Callable[[WireClient], int]] = dict(
    zip(QUOTAS, (produce, fetch, ask, create), strict=True)
)


@pytest.mark.parametrize("way", LOGINS)
@pytest.mark.parametrize("quota", QUOTAS)
def test_quota_holds_however_its_client_has_logged_in(bench: Bench, quota: str, way: str) -> None:
    """Two requests are above it at the latest, but for the time of requests."""
    use = USES[quota]
    with bench.client(way, client_id=quota) as client:
        found: list[int] = []
        wait_until(lambda: found.append(use(client)) or found[-1] > 0, 30, "it is throttled")

    assert quota == "request_percentage" or len(found) <= 3, found


@pytest.mark.parametrize("listener", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SESSIONS"])
def test_quota_of_connections_holds_on_every_listener(bench: Bench, listener: str) -> None:
    """It is that of an address, before anybody has logged in."""
    host = f"127.0.0.{2 + list(bench.broker.listeners).index(listener)}"

    def is_refused() -> bool:
        try:
            with WireClient(address_of(bench.broker, listener), from_host=host) as client:
                return client.is_closed(0.2)
        except OSError:
            return True

    with bench.admin() as admin:
        alter(admin, {"ip": host}, "connection_creation_rate", 1.0)
        try:
            wait_until(is_refused, 30, "the address has to wait")
        finally:
            alter(admin, {"ip": host}, "connection_creation_rate", None)
