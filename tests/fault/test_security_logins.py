"""Guessing passwords and users, and requests of strangers (exams S1 and S6)."""

from __future__ import annotations

import base64
import math
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faults.hostile_harness import MIB, GoodClient, nothing_dies
from support.network.frames import request_frame
from support.security.secured import PASSWORDS, LoginRefused, SecuredClient, Site, address_of

from kbroker.client.admin import users as admin
from kbroker.client.connections.cluster import Cluster
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey, request_class
from kbroker.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kbroker.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
DELAY_S = 0.1  # connection.failed.authentication.delay.ms
GUESSERS = 25
TOPIC = "good"
# More tries would show differences that no attacker sees over a network.
TIMED_SCALE_MAX = 5


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    site = Site(tmp_path_factory.mktemp("site"))
    settings = site.settings("PLAINTEXT", "SASL_PLAINTEXT", mechanisms=",".join(MECHANISMS))
    with Broker(settings) as started:
        with Cluster(f"{started.host}:{started.port}") as cluster:
            for user, password in PASSWORDS.items():
                admin.set_password(cluster, user, password, MECHANISMS[1:])
        with SecuredClient((started.host, started.port)) as client:
            client.create_topic(TOPIC)
        yield started


def refusal(broker: Broker, user: str, password: str, mechanism: str) -> tuple[float, LoginRefused]:
    """How long a wrong login took, and its answer."""
    began = time.monotonic()
    with pytest.raises(LoginRefused) as caught:
        SecuredClient(
            address_of(broker, "SASL_PLAINTEXT"),
            user=user,
            password=password,
            mechanism=mechanism,
        )
    return time.monotonic() - began, caught.value


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_right_password_works_and_a_wrong_one_does_not(broker: Broker, mechanism: str) -> None:
    address = address_of(broker, "SASL_PLAINTEXT")
    with SecuredClient(address, user="alice", mechanism=mechanism) as client:
        client.create_topic(f"of-alice-{mechanism.lower()}")

    took, refused = refusal(broker, "alice", "wrong", mechanism)

    assert refused.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert took >= DELAY_S


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_answer_does_not_tell_whether_there_is_such_a_user(broker: Broker, mechanism: str) -> None:
    _, known = refusal(broker, "alice", "wrong", mechanism)
    _, unknown = refusal(broker, "mallory", "wrong", mechanism)

    assert (known.code, known.message) == (unknown.code, unknown.message)


@pytest.mark.parametrize("mechanism", MECHANISMS[1:])
def test_unknown_user_has_a_salt_that_stays_as_that_of_a_known_one(
    broker: Broker, mechanism: str
) -> None:
    """Two answers with different salts, or with other iterations, would give it away."""

    def first_message(user: str) -> dict[str, str]:
        with SecuredClient(address_of(broker, "SASL_PLAINTEXT")) as client:
            assert client.call(SaslHandshakeRequest(mechanism=mechanism), 1).error_code == 0
            token = f"n,,n={user},r=abcdefgh".encode()
            answer = client.call(SaslAuthenticateRequest(auth_bytes=token), 1)
        fields = bytes(answer.auth_bytes).decode().split(",")
        return {part[0]: part[2:] for part in fields if part and part[0] in "si"}

    known, mallory = first_message("alice"), first_message("mallory")

    assert mallory == first_message("mallory")
    assert mallory != first_message("trudy")
    assert known == first_message("alice")
    assert mallory.keys() == known.keys() == {"s", "i"}
    assert mallory["i"] == known["i"]
    salt = base64.b64decode(mallory["s"]).decode()
    assert 100 < int(salt, 36).bit_length() <= 130, "as Java makes it"


def test_guesses_are_slow_and_delay_nobody(broker: Broker, scale: int) -> None:
    """500 passwords, 25 at once: each costs its guesser the delay, and a good client nothing."""
    problems: list[str] = []
    guesses = 20 * scale

    def guess(number: int) -> None:
        mechanism = MECHANISMS[number % len(MECHANISMS)]
        began = time.monotonic()
        for n in range(guesses):
            try:
                SecuredClient(
                    address_of(broker, "SASL_PLAINTEXT"),
                    user="alice",
                    password=f"guess{number}-{n}",
                    mechanism=mechanism,
                )
                problems.append("a guess was right")
            except LoginRefused as error:
                if error.code != ErrorCode.SASL_AUTHENTICATION_FAILED:
                    problems.append(str(error))
            except OSError as error:
                problems.append(f"{mechanism}: {error!r}")
        if time.monotonic() - began < guesses * DELAY_S:
            problems.append(f"{mechanism}: {guesses} guesses in {time.monotonic() - began:.2f} s")

    with nothing_dies(broker, 32 * MIB), GoodClient(broker, TOPIC):
        threads = [threading.Thread(target=guess, args=(n,)) for n in range(GUESSERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert not problems, problems[:5]
    with SecuredClient(address_of(broker, "SASL_PLAINTEXT"), user="alice") as client:
        client.create_topic(f"after-{guesses}")


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_time_does_not_tell_whether_there_is_such_a_user(
    broker: Broker, mechanism: str, scale: int
) -> None:
    """Of two tries, one after the other, neither user's is the longer one more often than chance
    has it: four standard deviations of a coin, whatever else the machine does.
    """
    tries = 40 * min(scale, TIMED_SCALE_MAX)
    longer = 0
    for number in range(tries):
        users = ("alice", "mallory") if number % 2 else ("mallory", "alice")
        took = {user: refusal(broker, user, "wrong", mechanism)[0] for user in users}
        longer += took["mallory"] > took["alice"]

    assert abs(longer - tries / 2) < 4 * math.sqrt(tries) / 2, f"{longer} of {tries}"


def test_wrong_password_is_in_the_log_with_user_and_address_and_without_the_password(
    tmp_path: Path,
) -> None:
    """A broker of its own: repeated refusals share a line."""
    guess = "Zq7-guessed-by-mallory"
    with Broker(Site(tmp_path).settings("PLAINTEXT", "SASL_PLAINTEXT")) as broker:
        refusal(broker, "mallory\r\n2026-01-01 00:00:00,000 INFO forged", guess, "PLAIN")

        wait_until(lambda: "mallory" in broker.log_text, 20, "a line in the log")
        text = broker.log_text
    line = next(line for line in text.splitlines() if "mallory" in line)
    assert "127.0.0.1" in line
    assert guess not in text
    assert not any(line.startswith("2026-01-01") for line in text.splitlines())


def test_requests_before_the_login_are_not_served(broker: Broker) -> None:
    """Every API but those that a login needs closes the connection, well-formed or not."""
    allowed = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
    address = address_of(broker, "SASL_PLAINTEXT")
    with nothing_dies(broker):
        for key in ApiKey:
            if key in allowed or key.versions[1] < key.versions[0]:
                continue
            frame = request_frame(request_class(key)(), key.versions[0], 1, "stranger")
            with socket.create_connection(address, timeout=30) as sock:
                sock.sendall(frame)
                assert received(sock) == b"", key.name


def received(sock: socket.socket) -> bytes:
    """All until the other side closes. Raises TimeoutError."""
    data = b""
    try:
        while part := sock.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


def test_broken_logins_harm_nobody(broker: Broker, seed: int, scale: int) -> None:
    """Frames of a login cut short, with bytes flipped, and with lengths of any size."""
    chance = random.Random(seed)
    address = address_of(broker, "SASL_PLAINTEXT")
    handshake = request_frame(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1, 1, "m")
    tokens = [b"n,,n=alice,r=abcdefgh", b"\0alice\0wrong", b"p=tls-unique,,n=a,r=b", b"y,,", b""]
    with nothing_dies(broker, 32 * MIB), GoodClient(broker, TOPIC):
        for _ in range(150 * scale):
            token = request_frame(
                SaslAuthenticateRequest(auth_bytes=chance.choice(tokens)), 1, 2, "m"
            )
            data = bytearray(handshake + token)
            kind = chance.randrange(4)
            if kind == 0:
                del data[chance.randrange(len(data)) :]
            elif kind == 1:
                for _ in range(chance.randrange(1, 5)):
                    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            elif kind == 2:
                length = chance.choice((-1, 0, 1, 4, 2**31 - 1, 524_289, -(2**31)))
                data[:4] = struct.pack(">i", length)
            else:
                data[len(handshake) :] = chance.randbytes(chance.randrange(1, 300))
            with socket.create_connection(address, timeout=30) as sock:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                received(sock)
