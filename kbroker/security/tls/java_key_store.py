"""Reads Java's own format of key stores (JKS), the default type before Java 9 and in Kafka.

    u32 magic, u32 version 2, u32 count, then per entry: u32 tag, alias, u64 time, and
        tag 1, a private key: u32 size, EncryptedPrivateKeyInfo; u32 count, certificates
        tag 2, a trusted certificate: certificate
    SHA-1 of the password, a constant and everything before

A text is a u16 size and UTF-8; a certificate a text with its type, a u32 size and DER. Numbers are
big-endian.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from collections.abc import Iterator
from typing import NamedTuple

from kbroker.security.tls.certificate import elements

MAGIC = b"\xfe\xed\xfe\xed"
_VERSION = 2
_PRIVATE_KEY, _TRUSTED_CERTIFICATE = 1, 2
_DIGEST_BYTES = hashlib.sha1().digest_size
_WHITENER = b"Mighty Aphrodite"


class KeyStoreError(ValueError):
    """The store cannot be read; the message says why, and has no secret."""


class KeyStoreEntry(NamedTuple):
    """An entry of a store. key: PKCS#8, still encrypted; None for a trusted certificate."""

    alias: str
    key: bytes | None
    certificates: list[bytes]


def read_store(data: bytes, password: str | None) -> list[KeyStoreEntry]:
    """The entries of a store, whose integrity is checked if there is a password. Raises
    KeyStoreError.
    """
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if password is not None:
        expected = hashlib.sha1(_as_java(password) + _WHITENER + body).digest()
        if not hmac.compare_digest(digest, expected):
            raise KeyStoreError("the key store is damaged, or its password is wrong")
    try:
        return list(_entries(_StoreReader(body)))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise KeyStoreError(f"the key store is damaged: {error}") from error


def decrypt_key(encrypted: bytes, password: str) -> bytes:
    """The PKCS#8 key in an entry. Raises KeyStoreError."""
    try:
        _, wrapped = elements(next(elements(encrypted)).content)
    except (ValueError, IndexError, StopIteration) as error:
        raise KeyStoreError("the private key is damaged") from error
    salt = wrapped.content[:_DIGEST_BYTES]
    hidden = wrapped.content[_DIGEST_BYTES:-_DIGEST_BYTES]
    secret, block, mask = _as_java(password), salt, bytearray()
    while len(mask) < len(hidden):
        block = hashlib.sha1(secret + block).digest()
        mask += block
    key = bytes(a ^ b for a, b in zip(hidden, mask, strict=False))
    check = hashlib.sha1(secret + key).digest()
    if not hmac.compare_digest(check, wrapped.content[-_DIGEST_BYTES:]):
        raise KeyStoreError("the password of the private key is wrong")
    return key


def as_pem(label: str, der: bytes) -> str:
    """An object in PEM."""
    text = base64.b64encode(der).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])


class _StoreReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise IndexError(f"{size} bytes announced, {len(self._data) - self._at} left")
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self) -> str:
        return self.take(self.number(">H")).decode()

    def certificate(self) -> bytes:
        self.text()  # its type, X.509
        return self.take(self.number(">I"))


def _entries(reader: _StoreReader) -> Iterator[KeyStoreEntry]:
    if reader.take(len(MAGIC)) != MAGIC or reader.number(">I") != _VERSION:
        raise KeyStoreError("it is no JKS key store of version 2")
    for _ in range(reader.number(">I")):
        tag = reader.number(">I")
        alias = reader.text()
        reader.number(">Q")
        if tag == _PRIVATE_KEY:
            key = reader.take(reader.number(">I"))
            yield KeyStoreEntry(
                alias, key, [reader.certificate() for _ in range(reader.number(">I"))]
            )
        elif tag == _TRUSTED_CERTIFICATE:
            yield KeyStoreEntry(alias, None, [reader.certificate()])
        else:
            raise KeyStoreError(f"the key store is damaged: an entry of type {tag}")


def _as_java(password: str) -> bytes:
    return password.encode("utf-16-be", "surrogatepass")
