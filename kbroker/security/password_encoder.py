"""Secrets among the configs in the metadata store, in the format of Apache Kafka 2.7
(``kafka.utils.PasswordEncoder``): a key derived from ``password.encoder.secret`` encrypts each.

The text in the store says how it was encrypted, so that configs of the encoder can change. Whoever
can write into the store may have written it: its sizes have bounds.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from kbroker.security.digests import pbkdf2

KEY_LENGTHS = (128, 192, 256)
CBC, GCM = "AES/CBC/PKCS5Padding", "AES/GCM/NoPadding"
CIPHERS = (CBC, GCM)
# Java's names of key derivations.
DERIVATIONS = {
    "PBKDF2WithHmacSHA512": "sha512",
    "PBKDF2WithHmacSHA384": "sha384",
    "PBKDF2WithHmacSHA256": "sha256",
    "PBKDF2WithHmacSHA224": "sha224",
    "PBKDF2WithHmacSHA1": "sha1",
}
DEFAULT_DERIVATION = "PBKDF2WithHmacSHA512"
# BOUND: iterations of a derivation (half a second), and characters of a text in the store.
ITERATIONS_MAX = 1_000_000
TEXT_CHARS_MAX = 1 << 20
# BOUND: texts that are remembered by each process, as a derivation takes milliseconds.
_KEPT_MAX = 64
_SALT_BYTES, _GCM_IV_BYTES, _TAG_BYTES, _BLOCK_BYTES = 256, 12, 16, 16


class BadPassword(Exception):
    """A text that cannot be decrypted; the message does not quote it."""


class Encoding(NamedTuple):
    """How to encrypt, from the configs ``password.encoder.*``."""

    derivation: str = DEFAULT_DERIVATION
    cipher: str = CBC
    key_bits: int = 128
    iterations: int = 4096


class PasswordEncoder:
    """Encrypts with the first secret; decrypts with that or any of the others."""

    def __init__(self, known: Sequence[str], encoding: Encoding = Encoding()) -> None:
        self._secrets = tuple(known)
        self._encoding = encoding

    def __repr__(self) -> str:
        return "PasswordEncoder(hidden)"

    def encode(self, password: str) -> str:
        """Always another text."""
        return _encoded(password, self._secrets[0], self._encoding)

    def decode(self, text: str) -> str:
        """Raises BadPassword."""
        return self._decoded(text)[0]

    def is_current(self, text: str) -> bool:
        """Whether the first secret has encrypted it. Raises BadPassword."""
        return self._decoded(text)[1] == 0

    def _decoded(self, text: str) -> tuple[str, int]:
        """The password, and the number of the secret."""
        error = BadPassword("there is no secret")
        for number, secret in enumerate(self._secrets):
            try:
                return _decoded(text, secret), number
            except BadPassword as failure:
                error = failure
        raise error


def _encoded(password: str, secret: str, how: Encoding) -> str:
    from cryptography.hazmat.primitives import padding
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    salt = os.urandom(_SALT_BYTES)
    key = _key(secret, how.derivation, salt, how.iterations, how.key_bits)
    plain = password.encode("utf-8", "surrogatepass")
    fields = {
        "keyFactoryAlgorithm": how.derivation,
        "cipherAlgorithm": how.cipher,
        "keyLength": str(how.key_bits),
        "salt": b64encode(salt).decode(),
        "iterations": str(how.iterations),
        "passwordLength": str(_java_length(password)),
    }
    if how.cipher == GCM:
        vector = os.urandom(_GCM_IV_BYTES)
        encrypted = AESGCM(key).encrypt(vector, plain, None)
        fields["authenticationTagLength"] = str(_TAG_BYTES * 8)
    else:
        vector = os.urandom(_BLOCK_BYTES)
        padder = padding.PKCS7(_BLOCK_BYTES * 8).padder()
        encryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).encryptor()
        padded = padder.update(plain) + padder.finalize()
        encrypted = encryptor.update(padded) + encryptor.finalize()
    fields["initializationVector"] = b64encode(vector).decode()
    fields["encryptedPassword"] = b64encode(encrypted).decode()
    return ",".join(f"{name}:{value}" for name, value in fields.items())


@lru_cache(_KEPT_MAX)
def _decoded(text: str, secret: str) -> str:
    if len(text) > TEXT_CHARS_MAX:
        raise BadPassword("it is too long")
    fields = dict(part.strip().rpartition(":")[::2] for part in text.split(","))
    try:
        derivation, cipher = fields["keyFactoryAlgorithm"], fields["cipherAlgorithm"]
        bits, iterations = _number(fields["keyLength"]), _number(fields["iterations"])
        length = _number(fields["passwordLength"])
        salt, vector, encrypted = (
            b64decode(fields[name], validate=True)
            for name in ("salt", "initializationVector", "encryptedPassword")
        )
        tag_bits = _number(fields.get("authenticationTagLength", str(_TAG_BYTES * 8)))
    except KeyError as error:
        raise BadPassword(f"it lacks {error}") from None
    except (Base64Error, ValueError):
        raise BadPassword("it is malformed") from None
    if derivation not in DERIVATIONS or cipher not in CIPHERS or bits not in KEY_LENGTHS:
        raise BadPassword("its algorithm or the length of its key is unknown")
    if not 1 <= iterations <= ITERATIONS_MAX:
        raise BadPassword("it has too many iterations")
    key = _key(secret, derivation, salt, iterations, bits)
    plain = _decrypted(cipher, key, vector, encrypted, tag_bits)
    try:
        password = plain.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise BadPassword("the secret is another one") from None
    if _java_length(password) != length:
        raise BadPassword("the secret is another one")
    return password


def _decrypted(cipher: str, key: bytes, vector: bytes, encrypted: bytes, tag_bits: int) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives import padding
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        if cipher == GCM:
            if tag_bits != _TAG_BYTES * 8:
                raise BadPassword("its tag has another length")
            return AESGCM(key).decrypt(vector, encrypted, None)
        decryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor()
        padded = decryptor.update(encrypted) + decryptor.finalize()
        unpadder = padding.PKCS7(_BLOCK_BYTES * 8).unpadder()
        return bytes(unpadder.update(padded) + unpadder.finalize())
    except (InvalidTag, ValueError):
        raise BadPassword("the secret is another one") from None


def _key(secret: str, derivation: str, salt: bytes, iterations: int, bits: int) -> bytes:
    digest = DERIVATIONS[derivation]
    return pbkdf2(digest, secret.encode(), salt, iterations, bits // 8)


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError("no number")
    return int(text)


def _java_length(text: str) -> int:
    """In UTF-16, as Java counts."""
    return len(text) + sum(char > "\uffff" for char in text)
