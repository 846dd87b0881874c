"""Reads key and trust stores, as the configs of a listener name them, into PEM.

A store is PEM (a file, or the text of the configs), PKCS#12 or JKS. Between the last two the
content decides, as in Java: what keytool of today writes with type JKS is PKCS#12.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from kbroker.errors import ConfigError
from kbroker.security.tls import java_key_store
from kbroker.security.tls.java_key_store import KeyStoreError, as_pem

# BOUND: of a store; those with all public authorities have 200 KB.
STORE_BYTES_MAX = 16 << 20
PEM = "PEM"
_TYPES = ("JKS", "PKCS12", PEM)
_JCEKS = b"\xce\xce\xce\xce"
_DER_SEQUENCE = b"\x30"
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]{1,64})-----(.*?)-----END \1-----", re.DOTALL)
_LINE_CHARS = 64
KEY, CERTIFICATE = "PRIVATE KEY", "CERTIFICATE"


class StoreConfigs(Protocol):
    """The configs of one listener: ``ListenerConfig``."""

    def __getitem__(self, name: str, /) -> Any: ...
    def name_of(self, name: str, /) -> str:
        """The full name of the config that counts."""


class StoreKeys(NamedTuple):
    """A private key and its certificates, the leaf first, as PEM. password: of the key; None if it
    is not encrypted.
    """

    key: str
    chain: list[str]
    password: str | None

    def __repr__(self) -> str:
        return f"Keys({len(self.chain)} certificates)"


def refused(
    configs: StoreConfigs, name: str, allowed: str, *, shown: str | None = None
) -> ConfigError:
    """The error for a config that cannot be obeyed; its value is shown only if told so."""
    return ConfigError(configs.name_of(name), "(hidden)" if shown is None else shown, allowed)


def store_paths(configs: StoreConfigs) -> list[str]:
    """The files that the stores are read from."""
    names = ("ssl.keystore.location", "ssl.truststore.location")
    return [configs[name] for name in names if configs[name]]


def load_keys(configs: StoreConfigs) -> StoreKeys | None:
    """The key store; None if there is none. Raises ConfigError."""
    kind = _type(configs, "ssl.keystore.type")
    inline = (configs["ssl.keystore.key"], configs["ssl.keystore.certificate.chain"])
    location = configs["ssl.keystore.location"]
    key_password = configs["ssl.key.password"]
    if any(inline):
        _check_inline(configs, "ssl.keystore", location)
        if not all(inline):
            missing = "ssl.keystore.key" if not inline[0] else "ssl.keystore.certificate.chain"
            raise refused(configs, missing, "both a key and its certificates, or none")
        return _keys_of_pem(configs, "ssl.keystore.key", "\n".join(inline), key_password)
    if not location:
        return None
    data = _read(configs, "ssl.keystore.location")
    password = configs["ssl.keystore.password"]
    if kind == PEM:
        if password is not None:
            allowed = "no password: PEM has one for the key only, ssl.key.password"
            raise refused(configs, "ssl.keystore.password", allowed)
        text = data.decode("utf-8", "replace")
        return _keys_of_pem(configs, "ssl.keystore.location", text, key_password)
    if password is None:
        allowed = f"the password of the key store {location}"
        raise refused(configs, "ssl.keystore.password", allowed)
    if data.startswith(java_key_store.MAGIC):
        return _keys_of_jks(configs, data, password, key_password)
    return _keys_of_pkcs12(configs, data, password)


def load_trusted(configs: StoreConfigs) -> list[str] | None:
    """The certificates of the trust store as PEM; None if there is none. Raises ConfigError."""
    kind = _type(configs, "ssl.truststore.type")
    inline, location = configs["ssl.truststore.certificates"], configs["ssl.truststore.location"]
    if inline:
        _check_inline(configs, "ssl.truststore", location)
        return _certificates(configs, "ssl.truststore.certificates", inline)
    if not location:
        return None
    name = "ssl.truststore.location"
    data = _read(configs, name)
    password = configs["ssl.truststore.password"]
    if kind == PEM:
        if password is not None:
            raise refused(configs, "ssl.truststore.password", "no password: PEM has none")
        return _certificates(configs, name, data.decode("utf-8", "replace"))
    if data.startswith(java_key_store.MAGIC):
        # Of an entry with a key, Java trusts its own certificate.
        certificates = [as_pem(CERTIFICATE, entry.certificates[0])
                 for entry in _jks(configs, "ssl.truststore", data, password)
                 if entry.certificates]  # fmt: skip
    else:
        key, leaf, others = _pkcs12(configs, "ssl.truststore", data, password)
        # With a key, the others are its chain.
        certificates = [
            _pem_of(each) for each in ([leaf] if key is not None else [leaf, *others]) if each
        ]
    if not certificates:
        raise refused(configs, name, "a trust store with certificates", shown=location)
    return certificates


# -- PEM -------------------------------------------------------------------------------------------


def pem_blocks(text: str) -> list[tuple[str, str]]:
    """(label, block) of each object in PEM. Lines may be joined by spaces, as in properties."""
    blocks = []
    for match in _BLOCK.finditer(text):
        label, body = match.groups()
        if ":" in body:  # headers of an encrypted key, whose lines matter
            block = match.group()
        else:
            data = "".join(body.split())
            lines = [data[at : at + _LINE_CHARS] for at in range(0, len(data), _LINE_CHARS)]
            block = "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----"])
        blocks.append((label, block + "\n"))
    return blocks


def _keys_of_pem(configs: StoreConfigs, name: str, text: str, password: str | None) -> StoreKeys:
    blocks = pem_blocks(text)
    keys = [block for label, block in blocks if label.endswith(KEY)]
    chain = [block for label, block in blocks if label == CERTIFICATE]
    shown = configs[name] if name.endswith("location") else None
    if len(keys) != 1:
        raise refused(configs, name, f"one private key in PEM, found {len(keys)}", shown=shown)
    if not chain:
        raise refused(configs, name, "certificates in PEM, found none", shown=shown)
    encrypted = "ENCRYPTED" in keys[0][:200]
    if encrypted and password is None:
        raise refused(configs, "ssl.key.password", "the password of the encrypted private key")
    return StoreKeys(keys[0], chain, password if encrypted else None)


def _certificates(configs: StoreConfigs, name: str, text: str) -> list[str]:
    blocks = [block for label, block in pem_blocks(text) if label == CERTIFICATE]
    if not blocks:
        shown = configs[name] if name.endswith("location") else None
        raise refused(configs, name, "certificates in PEM, found none", shown=shown)
    return blocks


# -- JKS and PKCS#12 -------------------------------------------------------------------------------


def _keys_of_jks(
    configs: StoreConfigs, data: bytes, password: str, key_password: str | None
) -> StoreKeys:
    for entry in _jks(configs, "ssl.keystore", data, password):
        if entry.key is None:
            continue
        try:
            secret = password if key_password is None else key_password
            key = java_key_store.decrypt_key(entry.key, secret)
        except KeyStoreError as error:
            raise refused(configs, "ssl.key.password", f"a key that loads: {error}") from error
        chain = [as_pem(CERTIFICATE, each) for each in entry.certificates]
        return StoreKeys(as_pem(KEY, key), chain, None)
    name = "ssl.keystore.location"
    raise refused(configs, name, "a key store with a private key", shown=configs[name])


def _jks(
    configs: StoreConfigs, store: str, data: bytes, password: str | None
) -> Sequence[java_key_store.KeyStoreEntry]:
    try:
        return java_key_store.read_store(data, password)
    except KeyStoreError as error:
        raise _unreadable(configs, store, str(error)) from error


def _keys_of_pkcs12(configs: StoreConfigs, data: bytes, password: str) -> StoreKeys:
    from cryptography.hazmat.primitives import serialization

    key, leaf, others = _pkcs12(configs, "ssl.keystore", data, password)
    if key is None or leaf is None:
        name = "ssl.keystore.location"
        raise refused(configs, name, "a key store with a private key", shown=configs[name])
    chain, left = [leaf], list(others)
    while issuer := next((each for each in left if each.subject == chain[-1].issuer), None):
        left.remove(issuer)
        chain.append(issuer)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return StoreKeys(pem.decode(), [_pem_of(each) for each in chain], None)


def _pkcs12(
    configs: StoreConfigs, store: str, data: bytes, password: str | None
) -> tuple[Any, Any, list[Any]]:
    """(private key, its certificate, the other certificates) of cryptography."""
    name = f"{store}.location"
    if data.startswith(_JCEKS):
        text = "a store that kbroker reads: JCEKS is not; convert it with keytool -importkeystore"
        raise refused(configs, name, text, shown=configs[name])
    if not data.startswith(_DER_SEQUENCE):
        text = f"a store of type JKS or PKCS12 (PEM needs {store}.type=PEM)"
        raise refused(configs, name, text, shown=configs[name])
    from cryptography.hazmat.primitives.serialization import pkcs12

    secret = None if password is None else password.encode()
    try:
        content = pkcs12.load_pkcs12(data, secret)
    except Exception as error:  # ValueError, TypeError, UnsupportedAlgorithm, and Rust's own
        raise _unreadable(configs, store, str(error)) from error
    leaf = None if content.cert is None else content.cert.certificate
    return content.key, leaf, [each.certificate for each in content.additional_certs]


def _pem_of(certificate: Any) -> str:
    from cryptography.hazmat.primitives import serialization

    return str(certificate.public_bytes(serialization.Encoding.PEM).decode())


def _unreadable(configs: StoreConfigs, store: str, reason: str) -> ConfigError:
    name = f"{store}.location"
    return refused(configs, name, f"a store that loads: {reason}", shown=configs[name])


# -- the configs -----------------------------------------------------------------------------------


def _type(configs: StoreConfigs, name: str) -> str:
    kind = str(configs[name]).upper()
    if kind not in _TYPES:
        raise refused(configs, name, f"one of {', '.join(_TYPES)}", shown=configs[name])
    return kind


def _check_inline(configs: StoreConfigs, store: str, location: str | None) -> None:
    """What may not be set beside a store in the configs."""
    if configs[f"{store}.type"].upper() != PEM:
        text = f"PEM, as the store is among the configs ({store}.*)"
        raise refused(configs, f"{store}.type", text, shown=configs[f"{store}.type"])
    if location:
        text = "no file, as the store is among the configs"
        raise refused(configs, f"{store}.location", text, shown=location)
    if configs[f"{store}.password"] is not None:
        raise refused(configs, f"{store}.password", "no password, as PEM stores have none")


def _read(configs: StoreConfigs, name: str) -> bytes:
    """A file. It may not be a FIFO or a device, which would block or never end."""
    path = configs[name]
    try:
        # The opener's descriptor is closed even if it is that of a directory.
        with open(path, "rb", opener=_without_blocking) as file:
            data = file.read(STORE_BYTES_MAX + 1)
    except OSError as error:
        text = f"a file that can be read ({os.strerror(error.errno or 0)})"
        raise refused(configs, name, text, shown=path) from error
    if not data or len(data) > STORE_BYTES_MAX:
        text = f"a store of at most {STORE_BYTES_MAX} bytes, and not an empty file"
        raise refused(configs, name, text, shown=path)
    return data


def _without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
