"""A broker logs in at another one by SASL, before the connection is handed over.

Everything here blocks until a deadline, in the thread that has opened the connection. Errors are
OSError, with a text that says which side has refused what; it never contains a password.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kbroker.client.connections import kerberos, oauth
from kbroker.client.errors import ClientError, SettingRefused
from kbroker.config.loader import BrokerConfig
from kbroker.config.protocol_version import ProtocolVersion
from kbroker.errors import ConfigError
from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.security.sasl import oauthbearer
from kbroker.security.sasl.kerberos_login import SERVICE_NAME, acceptor, kerberos_login
from kbroker.security.sasl.login_options import HIDDEN, JAAS, login_options
from kbroker.wire import blocking, sasl
from kbroker.wire.stream import Malformed, Stream

if TYPE_CHECKING:
    from kbroker.config.listener_config import ListenerConfig
    from kbroker.peers.secured import Connected

MECHANISM = "sasl.mechanism.inter.broker.protocol"
MECHANISMS = (*sasl.CLIENTS, oauthbearer.NAME, kerberos.NAME)
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
ALLOWED_URLS = "sasl.oauthbearer.allowed.urls"
# What a login follows from.
LOGIN_CONFIGS = (JAAS, TOKEN_URL, SERVICE_NAME)
CLIENT_ID = "kbroker"
# BOUND: size of a response to one of these requests; that to ApiVersions has less than 1 KB.
RESPONSE_BYTES_MAX = 64 << 10


class PeerLogin(Protocol):
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
        return f"PeerLogin({self.mechanism} as {self.username!r})"


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
        return kerberos.KerberosInitiator(lambda: kerberos.initiator(self.own, host))


def login_of(config: BrokerConfig, listener: str) -> PeerLogin:
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
        login = kerberos_login(config, own)
        acceptor(own, login)  # its keys are there
        return TicketLogin(kerberos.KerberosSettings(login.service, login.principal, login.key_tab))
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
    made: Connected, login: PeerLogin, protocol: ProtocolVersion, host: str, deadline: float
) -> float:
    """Log in on a blocking socket; returns how long the session lasts in seconds, 0 for ever.

    host: of the other broker. deadline: on the clock of time.monotonic. Raises OSError.
    """
    calls = Calls(made, protocol, deadline)
    try:
        return sasl.log_in(login.mechanism, login.client(host, deadline), calls.call)
    except sasl.LoginFailed as error:
        text = f"the login of this broker as {login.username!r} failed: {error}"
        raise PermissionError(text) from error
    except blocking.Closed as error:
        raise ConnectionResetError("it closed the connection during the login") from error


def greet(made: Connected, protocol: ProtocolVersion, deadline: float) -> None:
    """Ask for something that everybody gets. Raises OSError.

    In TLS 1.3, a broker that does not accept this one's certificate says so only after the
    handshake: here the reason is known, later it would be one of many lost connections.
    """
    try:
        Calls(made, protocol, deadline).call(ApiVersionsRequest())
    except blocking.Closed as error:
        raise ConnectionResetError("it closed the connection") from error


class Calls:
    """Requests and their responses on a blocking socket, until a deadline."""

    def __init__(self, made: Connected, protocol: ProtocolVersion, deadline: float) -> None:
        self._socket = made
        self._protocol = protocol
        self._deadline = deadline
        self._stream = Stream(CLIENT_ID, RESPONSE_BYTES_MAX)

    def call(self, request: Message) -> Any:
        """Raises OSError."""
        assert request.API_KEY is not None
        api = ApiKey(request.API_KEY)
        _, frame = self._stream.message(request, _version(api, self._protocol))
        try:
            self._socket.settimeout(blocking.left(self._deadline))
            self._socket.sendall(frame)
            pending, body = blocking.receive_copied(self._socket, self._stream, self._deadline)
            return pending.decoded(body)
        except Malformed as error:
            raise OSError(f"its response to {api.name} is malformed: {error}") from error
        except TimeoutError:
            raise TimeoutError("it does not respond in time") from None


def _version(api: ApiKey, protocol: ProtocolVersion) -> int:
    if api is ApiKey.SASL_AUTHENTICATE:
        # The first with the lifetime of a session.
        return 1 if protocol >= ProtocolVersion.V2_2_IV0 else 0
    return 1 if api is ApiKey.SASL_HANDSHAKE else 0
