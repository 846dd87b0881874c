"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), and the credentials in Kafka's form.

A user without a credential gets a salt that is always the same for its name, and fails where a
wrong password does. Channel binding is not offered: no client of Kafka has it.
"""

from __future__ import annotations

import os
import re
from base64 import b64decode, b64encode, urlsafe_b64encode
from binascii import Error as Base64Error
from typing import NamedTuple

from kbroker.security.digests import digest, hmac_digest, is_same, pbkdf2
from kbroker.security.sasl.exchange import (
    Authenticated,
    Challenge,
    CredentialLookup,
    NotAuthenticated,
    Step,
)
from kbroker.security.sasl.plain import OTHER_ID

# Mechanisms by name: the hash, and their number in requests.
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
NUMBERS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16384
# BOUND: characters of a user's name, which is part of a path in the store.
USER_NAME_MAX = 1024
# Of what an unknown user is shown beside its salt, and of names that nobody is asked about.
_DISGUISE = os.urandom(32)
# A salt is a number of so many bits in base 36, as Java's clients and tools make it: 24 to 26
# signs, of which the first of 26 is a 1. Who could tell one from theirs would know who exists.
_SALT_BITS = 130
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

_FIRST = re.compile(
    r"(?P<gs2>[ny],(?:a=(?P<authorization_id>[^,]+))?,)"
    r"(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?P<extensions>(?:,[A-Za-z]+=[^,]+)*))",
    re.DOTALL,
)
_FINAL = re.compile(
    r"(?P<without_proof>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?:,[A-Za-z]+=[^,]+)*),p=(?P<proof>[A-Za-z0-9+/=]+)",
    re.DOTALL,
)
_STORED_FIELDS = {"salt", "stored_key", "server_key", "iterations"}


class ScramCredential(NamedTuple):
    """What the broker keeps of a password: enough to check it, too little to log in with."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def from_password(
    mechanism: str, password: str, iterations: int, salt: bytes | None = None
) -> ScramCredential:
    """Takes milliseconds. Raises ValueError for an empty password."""
    if not password:
        raise ValueError("the password is empty")
    salt = new_salt() if salt is None else salt
    salted = pbkdf2(HASHES[mechanism], password.encode(), salt, iterations)
    return from_salted(mechanism, salted, salt, iterations)


def from_salted(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """The credential of a salted password, as clients send it."""
    name = HASHES[mechanism]
    client_key = hmac_digest(salted, b"Client Key", name)
    stored_key = digest(name, client_key)
    return ScramCredential(salt, stored_key, hmac_digest(salted, b"Server Key", name), iterations)


def is_of_empty_password(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> bool:
    """Whether a salted password is that of an empty one. Takes milliseconds."""
    return not salted or is_same(pbkdf2(HASHES[mechanism], b"", salt, iterations), salted)


def new_salt() -> bytes:
    return _salt_of(os.urandom(32))


def to_text(credential: ScramCredential) -> str:
    """The config value of a user, as Kafka writes it."""
    salt, stored_key, server_key = (b64encode(part).decode() for part in credential[:3])
    return (
        f"salt={salt},stored_key={stored_key},server_key={server_key},"
        f"iterations={credential.iterations}"
    )


def from_text(text: str) -> ScramCredential:
    """The credential in a config value. Raises ValueError, which does not quote it."""
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    if fields.keys() != _STORED_FIELDS:
        raise ValueError("it has not the fields of a SCRAM credential")
    digits = fields["iterations"]
    if not digits.isascii() or not digits.isdigit() or len(digits) > 9:
        raise ValueError("the iterations of a SCRAM credential are no number")
    try:
        salt, stored_key, server_key = (
            b64decode(fields[name], validate=True) for name in ("salt", "stored_key", "server_key")
        )
    except Base64Error:
        raise ValueError("a SCRAM credential is not in Base64") from None
    return ScramCredential(salt, stored_key, server_key, int(digits))


class ScramSaslServer:
    """An exchange. nonce: the server's part of it, for tests."""

    def __init__(self, mechanism: str, nonce: str = "") -> None:
        self._mechanism = mechanism
        self._digest = HASHES[mechanism]
        self._own_nonce = nonce or urlsafe_b64encode(os.urandom(24)).decode()
        self._user = self._name = self._authorization_id = self._gs2 = self._bare = ""
        self._client_nonce = self._nonce = self._server_first = ""
        self._is_token = False
        self._is_known = False
        self._expires_ms: int | None = None
        self._credential: ScramCredential | None = None

    def evaluate(self, token: bytes) -> Step:
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise self._failed("the token is not UTF-8") from None
        return self._first(text) if not self._bare else self._final(text)

    def _first(self, text: str) -> Step:
        match = _FIRST.fullmatch(text)
        if match is None:
            raise self._failed("the client's first message is malformed")
        self._name = self._user = self._unescaped(match["name"])
        self._authorization_id = self._unescaped(match["authorization_id"] or "")
        self._gs2, self._bare, self._client_nonce = match["gs2"], match["bare"], match["nonce"]
        parts = match["extensions"].split(",")[1:]
        extensions = dict(part.partition("=")[::2] for part in parts)
        if "m" in extensions:
            raise self._failed("a mandatory extension, and there is none")
        self._is_token = extensions.get("tokenauth", "").lower() == "true"
        return CredentialLookup(self._name, self._mechanism, self._is_token)

    def _unescaped(self, name: str) -> str:
        if re.search("=(?!2C|3D)", name):
            raise self._failed("a name with '=' that is not escaped")
        return name.replace("=2C", ",").replace("=3D", "=")

    def resume(self, answer: StoredCredential | Nobody | None) -> Step:
        """answer: what was found for ``CredentialLookup``; None if nobody was asked."""
        if isinstance(answer, StoredCredential):
            self._is_known = True
            self._user, self._expires_ms = answer.user, answer.expires_ms
            self._credential = answer.credential
        else:
            self._credential = disguise(self._mechanism, self._name)
            if answer is not None:
                self._credential = self._credential._replace(
                    salt=answer.salt, iterations=answer.iterations
                )
        credential = self._credential
        if self._authorization_id not in ("", self._name):
            raise NotAuthenticated("another authorization id", OTHER_ID, self._name)
        if credential.iterations < ITERATIONS_MIN:
            raise self._failed(f"the stored credential has {credential.iterations} iterations")
        self._nonce = self._client_nonce + self._own_nonce
        salt = b64encode(credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={credential.iterations}"
        return Challenge(self._server_first.encode())

    def _final(self, text: str) -> Step:
        match, credential = _FINAL.fullmatch(text), self._credential
        if match is None or credential is None:
            raise self._failed("the client's final message is malformed")
        # COMPAT: librdkafka before 2.6.1 puts its own nonce before the whole once more. Kafka 3.9
        # lets it, 4.0 does not; the proof covers what was sent either way.
        if match["nonce"] not in (self._nonce, self._client_nonce + self._nonce):
            raise self._failed("the nonce is another one")
        if match["binding"] != b64encode(self._gs2.encode()).decode():
            raise self._failed("the channel binding is another one")
        signed = f"{self._bare},{self._server_first},{match['without_proof']}".encode()
        try:
            proof = b64decode(match["proof"], validate=True)
        except Base64Error:
            raise self._failed("the proof is not in Base64") from None
        signature = hmac_digest(credential.stored_key, signed, self._digest)
        if len(proof) != len(signature):
            raise self._failed("the proof has another length")
        client_key = _xor(proof, signature)
        stored_key = digest(self._digest, client_key)
        server_signature = hmac_digest(credential.server_key, signed, self._digest)
        if not is_same(stored_key, credential.stored_key) or not self._is_known:
            raise self._failed("wrong user or password")
        verifier = b"v=" + b64encode(server_signature)
        return Authenticated(verifier, self._user, self._expires_ms, self._is_token)

    def _failed(self, detail: str) -> NotAuthenticated:
        return NotAuthenticated(detail, user=self._name)


def _xor(left: bytes, right: bytes) -> bytes:
    mixed = int.from_bytes(left, "big") ^ int.from_bytes(right, "big")
    return mixed.to_bytes(len(left), "big")


class StoredCredential(NamedTuple):
    """What is stored for a user, or for a delegation token: then its owner, and when it ends."""

    user: str
    credential: ScramCredential
    expires_ms: int | None = None


class Nobody(NamedTuple):
    """There is no such user or token. salt, iterations: what its client is shown."""

    salt: bytes
    iterations: int = ITERATIONS_MIN


def disguise(mechanism: str, name: str) -> ScramCredential:
    """What a user without a credential is shown. No password fits it."""
    seed = hmac_digest(_DISGUISE, f"{mechanism} {name}".encode(), "sha512")
    size = len(digest(HASHES[mechanism], b""))
    salt = fake_salt(_DISGUISE, mechanism, name)
    return ScramCredential(salt, seed[:size], seed[:size], ITERATIONS_MIN)


def fake_salt(secret: bytes, mechanism: str, name: str) -> bytes:
    """Always the same for a name, and like those of users who exist."""
    seed = hmac_digest(secret, f"{mechanism} {name}".encode("utf-8", "surrogatepass"), "sha512")
    return _salt_of(seed)


def _salt_of(data: bytes) -> bytes:
    number, digits = int.from_bytes(data, "big") & ((1 << _SALT_BITS) - 1), ""
    while number or not digits:
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits.encode()
