"""Key and trust stores as Java's keytool writes them."""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from kbroker.security.certificates import Issued


def jks(password: str, *entries: bytes) -> bytes:
    """A store with these entries."""
    body = struct.pack(">III", 0xFEEDFEED, 2, len(entries)) + b"".join(entries)
    secret = password.encode("utf-16-be")
    return body + hashlib.sha1(secret + b"Mighty Aphrodite" + body).digest()


def sized(form: str, data: bytes) -> bytes:
    return struct.pack(form, len(data)) + data


def der(tag: int, content: bytes) -> bytes:
    return bytes([tag, 0x83]) + len(content).to_bytes(3, "big") + content


def jks_certificate(pem_text: bytes) -> bytes:
    content = ssl.PEM_cert_to_DER_cert(pem_text.decode())
    return sized(">H", b"X.509") + sized(">I", content)


def jks_key(issued: Issued, password: str) -> bytes:
    loaded = serialization.load_pem_private_key(issued.key, None)
    plain = loaded.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    secret, salt = password.encode("utf-16-be"), os.urandom(20)
    block, mask = salt, b""
    while len(mask) < len(plain):
        block = hashlib.sha1(secret + block).digest()
        mask += block
    hidden = bytes(a ^ b for a, b in zip(plain, mask, strict=False))
    protected = salt + hidden + hashlib.sha1(secret + plain).digest()
    algorithm = bytes.fromhex("300e060a2b060104012a021101010500")
    encrypted = der(0x30, algorithm + der(0x04, protected))
    head = struct.pack(">I", 1) + sized(">H", b"broker") + struct.pack(">Q", 0)
    return (
        head + sized(">I", encrypted) + struct.pack(">I", 1) + jks_certificate(issued.certificate)
    )


def jks_trusted(pem_text: bytes) -> bytes:
    """An entry of a trust store."""
    head = struct.pack(">I", 2) + sized(">H", b"ca") + struct.pack(">Q", 0)
    return head + jks_certificate(pem_text)


def pkcs12_of(issued: Issued, password: str) -> bytes:
    key: Any = serialization.load_pem_private_key(issued.key, None)
    leaf, *others = x509.load_pem_x509_certificates(issued.chain)
    encryption = serialization.BestAvailableEncryption(password.encode())
    return pkcs12.serialize_key_and_certificates(b"broker", key, leaf, others, encryption)
