"""A broker logs in at another one by SASL, before the connection is handed over.

Everything here blocks until a deadline, in the thread that has opened the connection. Errors are
OSError, with a text that says which side has refused what; it never contains a password.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kbroker.client import kerberos, oauth, sasl
from kbroker.client.errors import ClientError, SettingRefused
from kbroker.config.loader import BrokerConfig
from kbroker.config.protocol_version import ProtocolVersion
from kbroker.errors import ConfigError
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey, response_class
from kbroker.protocol.header import decode_response_header, encode_request_header
from kbroker.protocol.message import Message
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.primitives import DecodeError
from kbroker.security.sasl import oauthbearer
from kbroker.security.sasl.kerberos_login import SERVICE_NAME, acceptor, kerberos_login
from kbroker.security.sasl.login_options import HIDDEN, JAAS, login_options

if TYPE_CHECKING:
    from kbroker.config.listener_config import ListenerConfig
    from kbroker.peers.secured import Stream

MECHANISM = "sasl.mechanism.inter.broker.protocol"
MECHANISMS = (*sasl.CLIENTS, oauthbearer.NAME, kerberos.NAME)
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
ALLOWED_URLS = "sasl.oauthbearer.allowed.urls"
# What a login follows from.
LOGIN_CONFIGS = (JAAS, TOKEN_URL, SERVICE_NAME)
CLIENT_ID = "kbroker"
# BOUND: size of a response to one of these requests; that to ApiVersions has less than 1 KB.
RESPONSE_BYTES_MAX = 64 << 10
_SIZE = struct.Struct(">i")


class Login(Protocol):
    """As whom this broker logs in, and how. It is shown without what is secret."""

    @property
    def mechanism(self) -> str: ...

    @property
    def username(self) -> str: ...

    def client(self, host: str, deadline: float) -> sasl.Mechanism:
        """A conversation with the broker of that host. Raises OSError."""
        ...


class PasswordLogin(NamedTuple):
    mechanism: str
    username: str
    password: str

    def client(self, host: str, deadline: float) -> sasl.Mechanism:
        return sasl.CLIENTS[self.mechanism](self.username, self.password)

    def __repr__(self) -> str:
        return f"Login({self.mechanism} as {self.username!r})"


class TokenLogin:
    """With tokens of an OAuth endpoint, or of a file."""

    mechanism = oauthbearer.NAME

    def __init__(self, own: oauth.OAuthSettings) -> None:
        self.username = own.client_id or own.url
        self._tokens = oauth.TokenSource(own)

    def client(self, host: str, deadline: float) -> sasl.Mechanism:
        try:
            return self._tokens.client(deadline)
        except ClientError as error:
            raise ConnectionError(f"this broker cannot log in: {error}") from error


class TicketLogin(NamedTuple):
    """With the keys of the principal by which this broker is known."""

    own: kerberos.KerberosSettings

    @property
    def mechanism(self) -> str:
        return kerberos.NAME

    @property
    def username(self) -> str:
        return self.own.principal

    def client(self, host: str, deadline: float) -> sasl.Mechanism:
        return kerberos.Kerberos(lambda: kerberos.initiator(self.own, host))


def login_of(config: BrokerConfig, listener: str) -> Login:
    """How brokers log in at this listener of others. Raises ConfigError.

    COMPAT: the login module is that of this broker's own listener.
    """
    mechanism = str(config[MECHANISM]).upper()
    if mechanism not in MECHANISMS:
        allowed = f"a mechanism that is built between brokers: {', '.join(MECHANISMS)}"
        raise ConfigError(MECHANISM, config[MECHANISM], allowed)
    enabled = config.of_listener(listener)
    if mechanism not in enabled["sasl.enabled.mechanisms"]:
        allowed = f"with {mechanism}, by which other brokers log in ({MECHANISM})"
        name = enabled.name_of("sasl.enabled.mechanisms")
        raise ConfigError(name, ",".join(enabled["sasl.enabled.mechanisms"]), allowed)
    own = config.of_listener(listener, mechanism)
    if mechanism == oauthbearer.NAME:
        return _token_login(config, own)
    if mechanism == kerberos.NAME:
        found = kerberos_login(config, own)
        acceptor(own, found)  # its keys are there
        return TicketLogin(kerberos.KerberosSettings(found.service, found.principal, found.key_tab))
    kind = "PlainLoginModule" if mechanism == "PLAIN" else "ScramLoginModule"
    options = login_options(config, own, kind)
    if not options.get("username") or "password" not in options:
        where = f"listener.name.{listener.lower()}.{mechanism.lower()}.{JAAS}"
        allowed = f'{kind} required username="..." password="..."; as whom this broker logs in'
        raise ConfigError(where, HIDDEN if own[JAAS] else "", allowed)
    return PasswordLogin(mechanism, options["username"], options["password"])


def _token_login(config: BrokerConfig, own: ListenerConfig) -> TokenLogin:
    url = own[TOKEN_URL]
    if not url:
        allowed = "where this broker gets its token from: a URL with https, http or file"
        raise ConfigError(own.name_of(TOKEN_URL), "", allowed)
    if url not in (config[ALLOWED_URLS] or ()):
        raise ConfigError(own.name_of(TOKEN_URL), url, f"a URL of {ALLOWED_URLS}")
    options = login_options(config, own, "OAuthBearerLoginModule")
    try:
        return TokenLogin(oauth.oauth_settings({TOKEN_URL: url}, options))
    except SettingRefused as error:
        raise ConfigError(own.name_of(JAAS), HIDDEN, f"a login with a token: {error}") from None


def log_in(
    made: Stream, login: Login, protocol: ProtocolVersion, host: str, deadline: float
) -> float:
    """Log in on a blocking socket; returns how long the session lasts in seconds, 0 for ever.

    host: of the other broker. deadline: on the clock of time.monotonic. Raises OSError.
    """
    calls = Calls(made, protocol, login)
    return sasl.exchange(calls, login.mechanism, login.client(host, deadline), deadline)


def greet(made: Stream, protocol: ProtocolVersion, deadline: float) -> None:
    """Ask for something that everybody gets. Raises OSError.

    In TLS 1.3, a broker that does not accept this one's certificate says so only after the
    handshake: here the reason is known, later it would be one of many lost connections.
    """
    Calls(made, protocol).call(ApiVersionsRequest(), deadline)


class Calls:
    """Requests and their responses on a blocking socket: ``client.sasl.Calls``."""

    def __init__(self, made: Stream, protocol: ProtocolVersion, login: Login | None = None) -> None:
        self._socket = made
        self._protocol = protocol
        self._login = login
        self._next_id = 0

    def call(self, request: Message, deadline: float, *, at_most: int | None = None) -> Any:
        """Raises OSError."""
        api = type(request).API_KEY
        assert api is not None
        version = _version(ApiKey(api), self._protocol)
        self._next_id += 1
        body = encode_request_header(api, version, self._next_id, CLIENT_ID)
        body += codec.encode(request, version)
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(_SIZE.pack(len(body)) + body)
        (size,) = _SIZE.unpack(self._receive(_SIZE.size, deadline))
        if not 4 <= size <= RESPONSE_BYTES_MAX:
            raise OSError(f"its response to {ApiKey(api).name} has {size} bytes")
        frame = self._receive(size, deadline)
        try:
            number, start = decode_response_header(frame, api, version)
            if number != self._next_id:
                raise OSError(f"it responds to request {number} instead of {self._next_id}")
            return codec.decode_exact(response_class(api), version, frame, start)
        except DecodeError as error:
            raise OSError(f"its response to {ApiKey(api).name} is malformed: {error}") from error

    def _receive(self, size: int, deadline: float) -> bytes:
        received = bytearray()
        while len(received) < size:
            self._socket.settimeout(_left(deadline))
            part = self._socket.recv(size - len(received))
            if not part:
                text = "it closed the connection"
                raise ConnectionResetError(f"{text} during the login" if self._login else text)
            received += part
        return bytes(received)

    def not_authenticated(self, why: str) -> OSError:
        """The error for a failed login."""
        assert self._login is not None
        user = self._login.username
        return PermissionError(f"the login of this broker as {user!r} failed: {why}")


def _version(api: ApiKey, protocol: ProtocolVersion) -> int:
    if api is ApiKey.SASL_AUTHENTICATE:
        # The first with the lifetime of a session.
        return 1 if protocol >= ProtocolVersion.V2_2_IV0 else 0
    return 1 if api is ApiKey.SASL_HANDSHAKE else 0


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("it does not respond in time")
    return left
