"""TLS contexts, from the ``ssl.*`` configs of a listener."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kbroker.errors import ConfigError
from kbroker.security.tls.certificate import Certificate, MalformedCertificate, read_certificate
from kbroker.security.tls.ciphers import set_ciphers, set_versions
from kbroker.security.tls.principal_mapping import MappingRuleError, PrincipalMapping
from kbroker.security.tls.stores import (
    StoreConfigs,
    StoreKeys,
    load_keys,
    load_trusted,
    refused,
    store_paths,
)
from kbroker.security.tls.weak import advice

CLIENT_AUTH = "ssl.client.auth"
_VERIFY = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_PREFIX = re.compile(r"^\[[^\]]*\] *|\(_ssl\.c:\d+\)$")


class Served(NamedTuple):
    """What a listener serves TLS with. certificate: its own."""

    context: ssl.SSLContext
    certificate: Certificate
    mapping: PrincipalMapping


def server_context(configs: StoreConfigs, uses_sasl: bool = False) -> Served:
    """The context of a listener. Raises ConfigError."""
    mapping = principal_mapping(configs)
    keys = load_keys(configs)
    if keys is None:
        name = "ssl.keystore.location"
        raise refused(configs, name, "a key store, as the listener uses TLS", shown="")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_up(context, configs)
    certificate = _use_keys(context, configs, keys)
    trusted = load_trusted(configs)
    client_auth = configs[CLIENT_AUTH]
    if uses_sasl and configs.name_of(CLIENT_AUTH) == CLIENT_AUTH:
        client_auth = "none"  # COMPAT: with SASL, only the listener's own config counts
    if trusted is not None:
        _trust(context, configs, trusted)
    elif client_auth != "none":
        text = f"a trust store, as {configs.name_of(CLIENT_AUTH)} is {client_auth}"
        raise refused(configs, "ssl.truststore.location", text, shown="")
    context.verify_mode = _VERIFY[client_auth]
    context.num_tickets = 1  # a resumed session brings the next; OpenSSL makes two
    return Served(context, certificate, mapping)


def client_context(configs: StoreConfigs) -> ssl.SSLContext:
    """The context for connections to other brokers: their certificates are checked against the
    trust store, or without one against the system's authorities. Raises ConfigError.
    """
    name = "ssl.endpoint.identification.algorithm"
    algorithm = configs[name]
    if algorithm.lower() not in ("https", ""):
        raise refused(configs, name, "https or empty", shown=algorithm)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(algorithm)
    _set_up(context, configs)
    keys = load_keys(configs)
    if keys is not None:
        _use_keys(context, configs, keys)
    trusted = load_trusted(configs)
    if trusted is None:
        context.load_default_certs()
    else:
        _trust(context, configs, trusted)
    return context


def principal_mapping(configs: StoreConfigs) -> PrincipalMapping:
    """Raises ConfigError."""
    name = "ssl.principal.mapping.rules"
    try:
        return PrincipalMapping(configs[name])
    except MappingRuleError as error:
        text = f"rules that can be used: {error}"
        raise refused(configs, name, text, shown=configs[name][:200]) from error


def reason_of(error: OSError) -> str:
    """What OpenSSL says, without numbers of its source lines; and what to do, where it is known."""
    known = advice(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted, {known or error.verify_message}"
    if known:
        return known
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return _PREFIX.sub("", error.strerror or str(error)).strip()


def file_signs(configs: StoreConfigs) -> dict[str, tuple[int, int, int] | None]:
    """Of each file of the stores what changes when it is replaced or rewritten; None if it is not
    there.
    """
    signs: dict[str, tuple[int, int, int] | None] = {}
    for path in store_paths(configs):
        try:
            status = os.stat(path)
        except OSError:
            signs[path] = None
        else:
            signs[path] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return signs


def _set_up(context: ssl.SSLContext, configs: StoreConfigs) -> None:
    # Renegotiation lets a client have the broker do handshakes over and over.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    set_versions(context, configs)
    set_ciphers(context, configs)


def _use_keys(context: ssl.SSLContext, configs: StoreConfigs, keys: StoreKeys) -> Certificate:
    # Without a password, OpenSSL would ask for it on the terminal.
    password = keys.password or ""
    name = "ssl.keystore.location" if configs["ssl.keystore.location"] else "ssl.keystore.key"
    shown = configs[name] if name.endswith("location") else None
    try:
        with _in_memory(keys.key + "".join(keys.chain)) as path:
            context.load_cert_chain(path, password=lambda: password)
        return read_certificate(ssl.PEM_cert_to_DER_cert(keys.chain[0]))
    except (OSError, ValueError) as error:
        reason = str(error) if isinstance(error, MalformedCertificate) else _key_reason(error)
        text = f"a key and certificates that load: {reason}"
        raise refused(configs, name, text, shown=shown) from error


def _key_reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return "the private key is not that of the first certificate"
    if isinstance(error, ssl.SSLError) and not error.reason:
        return "OpenSSL cannot read them; of an encrypted key, ssl.key.password may be wrong"
    return reason_of(error) if isinstance(error, OSError) else str(error)


def _trust(context: ssl.SSLContext, configs: StoreConfigs, trusted: list[str]) -> None:
    # As in Java, any certificate in the store is trusted, not only those that sign themselves.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata="".join(trusted))
    except (ssl.SSLError, ValueError) as error:
        location = configs["ssl.truststore.location"]
        name = "ssl.truststore.location" if location else "ssl.truststore.certificates"
        reason = reason_of(error) if isinstance(error, ssl.SSLError) else str(error)
        text = f"certificates that load: {reason}"
        raise refused(configs, name, text, shown=location) from error


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """The path of a file that is on no disk: OpenSSL reads keys from files only."""
    descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
    try:
        data = text.encode()
        while data:
            data = data[os.write(descriptor, data) :]
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def check_replacement(configs: StoreConfigs, old: Certificate, new: Certificate) -> None:
    """As Kafka does by default, reject another name in a replaced certificate: clients that check
    it would not connect any more. Raises ConfigError.
    """
    name = "ssl.keystore.location"
    if new.subject != old.subject and not configs["ssl.allow.dn.changes"]:
        text = f"a certificate of {old.subject}, not {new.subject} (ssl.allow.dn.changes)"
        raise _replacement_refused(configs, name, text)
    if not new.names >= old.names and not configs["ssl.allow.san.changes"]:
        text = "a certificate with all alternative names of the present one (ssl.allow.san.changes)"
        raise _replacement_refused(configs, name, text)


def _replacement_refused(configs: StoreConfigs, name: str, text: str) -> ConfigError:
    return refused(configs, name, text, shown=configs[name] or "")
