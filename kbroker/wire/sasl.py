"""The client's side of SASL PLAIN (RFC 4616) and SCRAM (RFC 5802), and a login by Kafka's requests,
as steps: whoever has the connection sends them (``log_in``).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator
from typing import Any, Protocol

from kbroker.errors import ErrorCode, known_code
from kbroker.protocol.message import Message
from kbroker.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kbroker.protocol.messages.sasl_handshake import SaslHandshakeRequest

# BOUND: Kafka's brokers use 4096 to 16384 iterations. With fewer, passwords would be cheap to
# guess; with more, a server could keep this process busy.
_ITERATIONS_MIN = 4096
_ITERATIONS_MAX = 1_000_000
_TURNS_MAX = 8
RENEWED_AT = 0.85
# BOUND: how often connections are renewed, whatever the other broker says.
RENEWED_S_MIN = 0.5


class ExchangeFailed(Exception):
    """The server's message is malformed or fails verification."""


class LoginFailed(Exception):
    """The text says why, and contains no password."""


class NothingToShow(Exception):
    """There is nothing to log in with, such as a ticket."""


class Mechanism(Protocol):
    """A conversation. ``evaluate(None)`` is its first token; the last response may be None."""

    done: bool

    def evaluate(self, challenge: bytes | None) -> bytes | None: ...


class Plain:
    def __init__(self, username: str, password: str) -> None:
        self._token = b"\0" + username.encode() + b"\0" + password.encode()
        self.done = False

    def evaluate(self, challenge: bytes | None) -> bytes | None:
        if challenge is None:
            return self._token
        self.done = True
        return None


class Scram:
    """digest: the name of the hash, as hashlib has it. is_token: these are the id and the secret of
    a delegation token.
    """

    def __init__(
        self, username: str, password: str, digest: str, nonce: str = "", is_token: bool = False
    ) -> None:
        self._password = password.encode()
        self._digest = digest
        self._nonce = nonce or secrets.token_urlsafe(24)
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={self._nonce}" + (",tokenauth=true" if is_token else "")
        self._server_signature = b""
        self.done = False

    def evaluate(self, challenge: bytes | None) -> bytes | None:
        if challenge is None:
            return f"n,,{self._first_bare}".encode()
        if not self._server_signature:
            return self._final(challenge.decode())
        self._verify(_fields(challenge.decode()))
        self.done = True
        return None

    def _final(self, server_first: str) -> bytes:
        fields = _fields(server_first)
        try:
            nonce, salt, iterations = fields["r"], b64decode(fields["s"]), int(fields["i"])
        except (KeyError, ValueError):
            raise ExchangeFailed("its first message is malformed") from None
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ExchangeFailed("its nonce does not begin with the client's")
        if not _ITERATIONS_MIN <= iterations <= _ITERATIONS_MAX:
            raise ExchangeFailed(
                f"{iterations} iterations, expected {_ITERATIONS_MIN} to {_ITERATIONS_MAX}"
            )
        salted = hashlib.pbkdf2_hmac(self._digest, self._password, salt, iterations)
        client_key = self._mac(salted, b"Client Key")
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._first_bare},{server_first},{without_proof}".encode()
        signature = self._mac(hashlib.new(self._digest, client_key).digest(), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._mac(self._mac(salted, b"Server Key"), signed)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def _verify(self, fields: dict[str, str]) -> None:
        if "e" in fields:
            raise ExchangeFailed(fields["e"])
        try:
            given = b64decode(fields.get("v", ""))
        except ValueError:
            given = b""
        if not hmac.compare_digest(given, self._server_signature):
            raise ExchangeFailed("the broker could not prove that it knows the password")

    def _mac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self._digest)


def _fields(text: str) -> dict[str, str]:
    return {part[:1]: part[2:] for part in text.split(",") if part[1:2] == "="}


_DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
CLIENTS: dict[str, Callable[[str, str], Mechanism]] = {
    "PLAIN": Plain,
    "SCRAM-SHA-256": lambda username, password: Scram(username, password, "sha256"),
    "SCRAM-SHA-512": lambda username, password: Scram(username, password, "sha512"),
}


def token_client(mechanism: str, token_id: str, secret: str) -> Mechanism:
    """The client of a delegation token."""
    return Scram(token_id, secret, _DIGESTS[mechanism], is_token=True)


def steps(mechanism: str, client: Mechanism) -> Generator[Message, Any, float]:
    """Yields requests and is sent their responses; returns the session's lifetime in seconds, 0 for
    no limit. Raises LoginFailed.
    """
    handshake = yield SaslHandshakeRequest(mechanism=mechanism)
    if handshake.error_code:
        offered = ", ".join(handshake.mechanisms) or "none"
        raise LoginFailed(f"the broker does not offer SASL {mechanism}, only {offered}")
    try:
        token = client.evaluate(None)
    except NothingToShow as error:
        raise LoginFailed(f"SASL {mechanism}: {error}") from None
    lifetime_ms = 0
    for _ in range(_TURNS_MAX):
        if client.done:
            return float(lifetime_ms / 1000)
        if token is None:
            break
        reply = yield SaslAuthenticateRequest(auth_bytes=token)
        if reply.error_code:
            raise LoginFailed(_refused(mechanism, reply.error_code, reply.error_message))
        lifetime_ms = reply.session_lifetime_ms
        try:
            token = client.evaluate(bytes(reply.auth_bytes))
        except (ExchangeFailed, ValueError) as error:
            why = f"SASL {mechanism}: invalid message from the broker: {error}"
            raise LoginFailed(why) from None
    raise LoginFailed(f"SASL {mechanism}: the exchange does not end")


def _refused(mechanism: str, number: int, message: str | None) -> str:
    code = known_code(number)
    if code == ErrorCode.SASL_AUTHENTICATION_FAILED and message:
        return f"SASL {mechanism}: {message}"
    text = f"SASL: {code.name}: {message or code.message}"
    return f"SASL {mechanism}: {text}" if code == ErrorCode.SASL_AUTHENTICATION_FAILED else text


def log_in(mechanism: str, client: Mechanism, call: Callable[[Message], Any]) -> float:
    """Take all steps. call: sends a request and returns its response. Raises LoginFailed."""
    taking = steps(mechanism, client)
    request = next(taking)
    while True:
        response = call(request)
        try:
            request = taking.send(response)
        except StopIteration as end:
            return float(end.value)


def renewal_s(lifetime_s: float) -> float | None:
    """After how much of a session's lifetime to log in again, before the broker would close the
    connection (KIP-368); None for a session without end.
    """
    return max(RENEWED_S_MIN, RENEWED_AT * lifetime_s) if lifetime_s > 0 else None
