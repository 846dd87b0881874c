"""SCRAM logins that are forged, changed on the way or repeated (exam S9)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from support.clients.wire_client import WireClient
from support.faults.hostile_harness import MIB, nothing_dies
from support.security.secured import PASSWORDS, Site, address_of

from kbroker.client.admin import users as admin
from kbroker.client.connections.cluster import Cluster
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
)
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kbroker.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kbroker.testing import Broker

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
USER, NONCE, BINDING = "alice", "clientnonce", "biws"
ITERATIONS = 4096
OK, FAILED = int(ErrorCode.NONE), int(ErrorCode.SASL_AUTHENTICATION_FAILED)
ALPHABET = base64.b64encode(bytes(range(256))).decode()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = Site(tmp_path_factory.mktemp("site")).settings(
        "PLAINTEXT", "SASL_PLAINTEXT", mechanisms=",".join(DIGESTS)
    )
    # Thousands of failures, none of which is about time.
    settings |= {"connection.failed.authentication.delay.ms": "0"}
    del settings["listener.name.sasl_plaintext.plain.sasl.jaas.config"]
    with Broker(settings) as started:
        with Cluster(f"{started.host}:{started.port}") as cluster:
            for user, password in PASSWORDS.items():
                admin.set_password(cluster, user, password, list(DIGESTS), ITERATIONS)
        yield started


class Login(NamedTuple):
    """An exchange whose final message is not sent yet."""

    client: WireClient
    mechanism: str
    first: str
    challenge: str
    password: str

    @property
    def nonce(self) -> str:
        return self.challenge.split(",")[0].removeprefix("r=")

    def final(self) -> str:
        """The message that logs in."""
        return self.signed(f"c={BINDING},r={self.nonce}")

    def signed(self, without_proof: str) -> str:
        """With a valid proof for these contents."""
        fields = dict(part.split("=", 1) for part in self.challenge.split(","))
        digest = DIGESTS[self.mechanism]
        salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
        salted = hashlib.pbkdf2_hmac(digest, self.password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", digest)
        text = f"{self.first},{self.challenge},{without_proof}".encode()
        signature = hmac.digest(hashlib.new(digest, client_key).digest(), text, digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}"

    def send(self, final: bytes) -> int:
        return authenticate(self.client, final)


def authenticate(client: WireClient, token: bytes) -> int:
    return int(client.call(SaslAuthenticateRequest(auth_bytes=token), 1).error_code)


def begin(
    broker: Broker, mechanism: str, user: str = USER, password: str = PASSWORDS[USER]
) -> Login:
    client = WireClient(address_of(broker, "SASL_PLAINTEXT"))
    assert client.call(SaslHandshakeRequest(mechanism=mechanism), 1).error_code == 0
    first = f"n={user},r={NONCE}"
    answer = client.call(SaslAuthenticateRequest(auth_bytes=f"n,,{first}".encode()), 1)
    assert answer.error_code == 0
    return Login(client, mechanism, first, bytes(answer.auth_bytes).decode(), password)


def is_served(client: WireClient) -> bool:
    try:
        return bool(client.call(MetadataRequest(topics=[]), 1).brokers)
    except OSError:
        return False


@pytest.mark.parametrize("mechanism", DIGESTS)
def test_right_exchange_is_served(broker: Broker, mechanism: str) -> None:
    """As all others here are changes of this one."""
    login = begin(broker, mechanism)
    with login.client as client:
        assert login.nonce.startswith(NONCE)
        assert login.send(login.final().encode()) == OK
        assert is_served(client)


CHANGED = {
    "another nonce of the server": lambda one: one.signed(f"c={BINDING},r={one.nonce[:-1]}~"),
    "the client's nonce only": lambda one: one.signed(f"c={BINDING},r={NONCE}"),
    "a longer nonce": lambda one: one.signed(f"c={BINDING},r={one.nonce}x"),
    "another client's nonce": lambda one: one.signed(f"c={BINDING},r=x{one.nonce}"),
    "a binding to a channel": lambda one: one.signed(f"c=cD10bHMtdW5pcXVlLCw=,r={one.nonce}"),
    "a binding for another": lambda one: one.signed(f"c=bixhPWFkbWluLA==,r={one.nonce}"),
    "no binding": lambda one: one.signed(f"r={one.nonce}"),
    "a proof of zeros": lambda one: one.final()[:-20] + "A" * 20,
    "no proof": lambda one: one.final().partition(",p=")[0],
    "nothing": lambda one: "",
}


@pytest.mark.parametrize("mechanism", DIGESTS)
@pytest.mark.parametrize("what", CHANGED)
def test_changed_exchange_is_rejected(broker: Broker, mechanism: str, what: str) -> None:
    """CVE-2024-56128 among them: a valid proof, for another nonce than the server's."""
    login = begin(broker, mechanism)
    with login.client as client:
        assert login.send(CHANGED[what](login).encode()) == FAILED
        assert not is_served(client)


@pytest.mark.parametrize("mechanism", DIGESTS)
def test_any_change_of_a_byte_is_rejected(
    broker: Broker, mechanism: str, seed: int, scale: int
) -> None:
    """At random places; a character of base64 that only differs in unused bits is no change."""
    chance = random.Random(seed)
    with nothing_dies(broker, 32 * MIB):
        for _ in range(100 * scale):
            login = begin(broker, mechanism)
            final = login.final()
            with login.client as client:
                place = chance.randrange(len(final))
                changed = final[:place] + chance.choice(ALPHABET) + final[place + 1 :]
                expected = OK if is_same(final, changed) else FAILED
                assert login.send(changed.encode()) == expected, (final, changed)
                assert is_served(client) == (expected == OK)


def is_same(final: str, changed: str) -> bool:
    """Whether only bits have changed that stand for nothing."""
    before, _, proof = final.partition(",p=")
    other, _, changed_proof = changed.partition(",p=")
    if before != other:
        return False
    try:
        return base64.b64decode(proof, validate=True) == base64.b64decode(
            changed_proof, validate=True
        )
    except ValueError:
        return False


@pytest.mark.parametrize("mechanism", DIGESTS)
def test_repeated_exchange_is_rejected(broker: Broker, mechanism: str) -> None:
    """All that somebody has seen of a login, sent again on another connection."""
    login = begin(broker, mechanism)
    final = login.final().encode()
    with login.client:
        assert login.send(final) == OK

    again = begin(broker, mechanism)
    with again.client as client:
        assert again.challenge != login.challenge
        assert again.send(final) == FAILED
        assert not is_served(client)
    early = WireClient(address_of(broker, "SASL_PLAINTEXT"))
    with early as client:
        assert client.call(SaslHandshakeRequest(mechanism=mechanism), 1).error_code == 0
        assert authenticate(client, final) == FAILED, "without a first message"


@pytest.mark.parametrize("mechanism", DIGESTS)
def test_password_of_another_user_is_rejected(broker: Broker, mechanism: str) -> None:
    for user, password in (("admin", PASSWORDS[USER]), ("nobody", PASSWORDS[USER]), (USER, "")):
        login = begin(broker, mechanism, user, password)
        with login.client:
            assert login.send(login.final().encode()) == FAILED


@pytest.mark.parametrize("iterations", [0, 1, 4095, -1, 2**31 - 1])
def test_credential_that_is_cheap_to_guess_is_not_stored(broker: Broker, iterations: int) -> None:
    row = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name="cheap", mechanism=1, iterations=iterations, salt=b"s" * 16, salted_password=b"p" * 32
    )
    with WireClient((broker.host, broker.port)) as client:
        (result,) = client.call(AlterUserScramCredentialsRequest(upsertions=[row]), 0).results
    assert result.error_code == ErrorCode.UNACCEPTABLE_CREDENTIAL
