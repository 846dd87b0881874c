"""How connections to other brokers are secured: TLS with this broker as the client, and its login.

The configs are those of this broker's own listener of the same name: its key store is what the
broker shows, its trust store says which brokers it accepts. Loaded before the fork, so that a
process that is restarted has something to keep if the files do not load any more; afterwards, a
changed config or file counts for the next connection.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from typing import NamedTuple

from kbroker._ext.sockets.tls_transport import TlsTransport
from kbroker._ext.sockets.transport import Transport
from kbroker.config.listener_config import ListenerConfig
from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError
from kbroker.peers.login import LOGIN_CONFIGS, PeerLogin, greet, log_in, login_of
from kbroker.peers.secured import Secured
from kbroker.security.tls.contexts import client_context, file_signs, reason_of, server_context
from kbroker.security.tls.listener import CONFIG_NAMES
from kbroker.security.tls.tls_socket import TlsSocket
from kbroker.security.tls.weak import advice
from kbroker.wire import sasl

logger = logging.getLogger(__name__)

# BOUND: of messages in a handshake with itself; there are four at most.
_ROUNDS_MAX = 10

_REJECTED = "it rejects the certificate of this broker"
# What the other broker says in its alert, by the end of OpenSSL's name.
_ALERTS = {
    "UNKNOWN_CA": f"{_REJECTED}, whose authority is not in its trust store",
    "BAD_CERTIFICATE": _REJECTED,
    "CERTIFICATE_UNKNOWN": _REJECTED,
    "CERTIFICATE_REVOKED": f"{_REJECTED}, which is revoked",
    "CERTIFICATE_EXPIRED": f"{_REJECTED}, which has expired",
    "UNSUPPORTED_CERTIFICATE": f"{_REJECTED}, which is not for clients",
    "CERTIFICATE_REQUIRED": "it requires a certificate, and this broker has no key store for the "
    "listener",
    "HANDSHAKE_FAILURE": "it accepts nothing of what this broker offers: a certificate, versions "
    "and ciphers of TLS",
    "PROTOCOL_VERSION": "it has none of this broker's versions of TLS (ssl.enabled.protocols)",
}
_OTHERS = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "PACKET_LENGTH_TOO_LONG": "it does not speak TLS",
    "RECORD_LAYER_FAILURE": "it does not speak TLS",
}


class Encrypted(Secured):
    """By TLS."""

    socket: TlsSocket

    @property
    def has_unsent(self) -> bool:
        return self.socket.has_unsent

    @property
    def has_received(self) -> bool:
        return self.socket.has_received

    def transport(self) -> Transport:
        return TlsTransport(self.socket.fileno(), self.socket)

    def reason(self, error: OSError) -> str:
        return tls_reason(error) if isinstance(error, ssl.SSLError) else str(error)


class _Loaded(NamedTuple):
    """context: None without TLS. login: None without SASL."""

    context: ssl.SSLContext | None
    login: PeerLogin | None


class PeerSecurity:
    """Of connections to the listener of one name. The first context is made at once. Raises
    ConfigError.

    ``secure`` runs in threads that open connections, everything else in the loop.
    """

    def __init__(self, config: BrokerConfig, listener: str) -> None:
        self.listener = listener
        self.protocol = config.security_protocol(listener)
        self._version = config.protocol_version
        self._lock = threading.Lock()
        self._config = config
        self._values = self._values_of(config)
        self._signs = file_signs(config.of_listener(listener))
        self._loaded = self._load(config)

    @property
    def uses_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    # -- configs and files --

    def check(self, config: BrokerConfig) -> None:
        """Raises ConfigError if the configs are others than now and cannot be obeyed."""
        if self._values_of(config) != self._values:
            self._load(config)

    def follow(self, config: BrokerConfig) -> None:
        """Take changed configs. What does not load leaves the present one in force."""
        with self._lock:
            values = self._values_of(config)
            if values == self._values:
                self._config = config
            else:
                self._replace(config, values, "the configs have changed")

    def _present(self) -> _Loaded:
        """Look at the files first. In any thread."""
        with self._lock:
            if self.uses_tls:
                if file_signs(self._config.of_listener(self.listener)) != self._signs:
                    self._replace(self._config, self._values, "files have changed")
            return self._loaded

    def _replace(self, config: BrokerConfig, values: list[object], why: str) -> None:
        # Noted before they are read: what changes meanwhile is read again.
        self._config, self._values = config, values
        self._signs = file_signs(config.of_listener(self.listener))
        try:
            self._loaded = self._load(config)
        except ConfigError as error:
            logger.error(
                "connections to listener %s of other brokers keep their security settings, "
                "although %s: %s",
                self.listener, why, error,
            )  # fmt: skip
        else:
            logger.info(
                "new security settings of connections to listener %s of other brokers, as %s",
                self.listener, why,
            )  # fmt: skip

    def _load(self, config: BrokerConfig) -> _Loaded:
        own = config.of_listener(self.listener)
        if self.uses_tls:
            _check_own(own, self.uses_sasl)
        return _Loaded(
            client_context(own) if self.uses_tls else None,
            login_of(config, self.listener) if self.uses_sasl else None,
        )

    def _values_of(self, config: BrokerConfig) -> list[object]:
        own = config.of_listener(self.listener)
        values: list[object] = []
        if self.uses_tls:
            values += [own[name] for name in CONFIG_NAMES]
            values.append(own["ssl.endpoint.identification.algorithm"])
        if self.uses_sasl:
            mechanism = config["sasl.mechanism.inter.broker.protocol"]
            login = config.of_listener(self.listener, mechanism)
            values += [mechanism, *(login[name] for name in LOGIN_CONFIGS)]
        return values

    # -- connections --

    def secure(self, plain: socket.socket, host: str, timeout_s: float) -> Secured:
        """Shake hands and log in on a connected socket, which is closed on failure. Blocks, at most
        for that long. Raises OSError.
        """
        deadline = time.monotonic() + timeout_s
        made = Secured(plain)
        try:
            loaded = self._present()
            if loaded.context is not None:
                made = Encrypted(_encrypted(loaded.context, plain, host, timeout_s))
            if loaded.login is not None:
                lasts_s = log_in(made.socket, loaded.login, self._version, host, deadline)
                renewal_s = sasl.renewal_s(lasts_s)
                made.renews_after_ms = None if renewal_s is None else int(renewal_s * 1000)
            elif loaded.context is not None:
                greet(made.socket, self._version, deadline)
        except ssl.SSLError as error:
            made.socket.close()
            raise ConnectionError(tls_reason(error)) from error
        except BaseException:
            made.socket.close()
            raise
        return made


def _check_own(own: ListenerConfig, uses_sasl: bool) -> None:
    """Raises ConfigError if a broker with these settings could not connect to another one with the
    same, apart from its name. COMPAT: Kafka does not start then, either.
    """
    if not own["ssl.keystore.location"] and not own["ssl.keystore.key"]:
        return  # nothing is served with these settings
    client = client_context(own)
    client.check_hostname = False
    reason = _tried(server_context(own, uses_sasl).context, client)
    if reason is not None:
        name = "ssl.truststore.location"
        allowed = f"a trust store by which brokers with this key store accept each other: {reason}"
        raise ConfigError(own.name_of(name), own[name] or "", allowed)


def _tried(server: ssl.SSLContext, client: ssl.SSLContext) -> str | None:
    """Why they cannot shake hands; None if they can."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(_ROUNDS_MAX):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return reason_of(error)
            ends.remove(end)
        if not ends:
            return None
    return "the handshake does not end"


def tls_reason(error: OSError) -> str:
    """Why a TLS connection failed, and which side has refused."""
    if isinstance(error, ssl.SSLCertVerificationError):
        text = advice(error) or error.verify_message.rstrip(".")
        return f"this broker does not accept its certificate: {text}"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "it closed the connection during the TLS handshake; its log has the reason"
    name = getattr(error, "reason", None) or ""
    _, is_alert, alert = name.partition("ALERT_")
    known = _ALERTS.get(alert) if is_alert else _OTHERS.get(name)
    return f"TLS failed: {known or reason_of(error)}"


def _encrypted(
    context: ssl.SSLContext, plain: socket.socket, host: str, timeout_s: float
) -> TlsSocket:
    """The socket after the handshake. Raises OSError; the caller closes ``plain``."""
    plain.settimeout(timeout_s)
    try:
        made = TlsSocket(plain, context, server_hostname=host)
        made.do_handshake()
    except TimeoutError as error:
        raise TimeoutError("no TLS handshake within the time limit") from error
    except ValueError as error:
        if isinstance(error, OSError):
            raise
        raise OSError(f"{host} is no name for a certificate: {error}") from error
    return made
