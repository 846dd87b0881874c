"""TLS and SASL of a client, from settings under the names of librdkafka and of the Java client.

A ``Security`` consists of its settings: it compares, hashes and pickles by them. Certificates and
keys are read when a connection is made.

What TLS and SASL need is imported with the first connection that needs it: together 15 ms.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kbroker.client.connections import stores
from kbroker.client.errors import AuthenticationFailed, ConnectionLost, SettingRefused, Timeout
from kbroker.protocol.api import ApiKey

if TYPE_CHECKING:
    import ssl

    from kbroker.client.connections import kerberos, oauth
    from kbroker.client.connections.connection import Connection
    from kbroker.protocol.message import Message
    from kbroker.wire import sasl

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
OAUTHBEARER = "OAUTHBEARER"
GSSAPI = "GSSAPI"
TRUST_STORE = "ssl.truststore.location"
# The supported names; librdkafka's and the Java client's differ for the same config.
SETTINGS = {
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    "sasl.jaas.config",
    "sasl.kerberos.keytab",
    "sasl.kerberos.principal",
    "sasl.kerberos.service.name",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "https.ca.location",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.truststore.password",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
    "ssl.enabled.protocols",
    "ssl.protocol",
    "ssl.cipher.suites",
}
_PREFIXES = ("ssl.", "sasl.", "security.")
_REFUSED = {
    "ssl.key.store": "set ssl.keystore.location with ssl.keystore.type=PEM",
}
_PEM_BLOCK = re.compile(r"(-----BEGIN [^-]+-----)([^-]*)(-----END [^-]+-----)")
_PEM_LINE = 64
# Name -> that of ssl.TLSVersion.
_TLS = {"TLSv1.2": "TLSv1_2", "TLSv1.3": "TLSv1_3"}


class Security:
    """How connections are secured. ``protocol``, ``mechanism``, ``username`` are read-only."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """settings: as for ``from_options``, but only those of security."""
        self.settings = dict(settings)
        self.protocol = _choice(settings, "security.protocol", "PLAINTEXT", PROTOCOLS).upper()
        self.mechanism: str | None = None
        self.username = self._password = ""
        self._is_token = False
        self._tokens: oauth.TokenSource | None = None
        self._kerberos: kerberos.KerberosSettings | None = None
        if self.protocol.startswith("SASL_"):
            self.mechanism = _mechanism(settings)
            if self.mechanism == GSSAPI:
                self._kerberos = _kerberos(settings)
                self.username = self._kerberos.principal
            elif self.mechanism == OAUTHBEARER:
                self._tokens = _token_source(settings)
                self.username = self._tokens.settings.client_id
            else:
                self.username, self._password, self._is_token = _credentials(
                    settings, self.mechanism
                )
        if self.uses_tls:
            _check_stores(settings)
        self._context: ssl.SSLContext | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> Security:
        """Create it from client configs; others are ignored.

        Raises SettingRefused for a value that is wrong, or a setting this client cannot do.
        """
        settings = {}
        for name, value in options.items():
            if name in _REFUSED and value:
                raise SettingRefused(name, _REFUSED[name])
            if name in SETTINGS:
                settings[name] = str(value)
            elif name.startswith(_PREFIXES) and value not in (None, ""):
                raise SettingRefused(name, "this client does not have this setting; leave it out")
        return cls(settings)

    @property
    def uses_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Security) and self.settings == other.settings

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.settings.items())))

    def __reduce__(self) -> tuple[type[Security], tuple[dict[str, str]]]:
        return type(self), (self.settings,)

    def __repr__(self) -> str:
        who = f", {self.mechanism} as {self.username}" if self.mechanism else ""
        return f"Security({self.protocol}{who})"  # and never a password

    # -- TLS

    def wrap(self, plain: socket.socket, host: str, address: str, deadline: float) -> socket.socket:
        """The socket to use: the same one, or TLS over it after the handshake."""
        if not self.uses_tls:
            return plain
        import ssl

        if self._context is None:
            self._context = self.tls_context()
        plain.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            return self._context.wrap_socket(plain, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            plain.close()
            raise AuthenticationFailed(
                address,
                f"the broker's certificate is not trusted: "
                f"{_advice(error) or error.verify_message}",
            ) from error
        except TimeoutError as error:
            plain.close()
            raise Timeout(f"{address}: the TLS handshake", 0.0) from error
        except OSError as error:
            plain.close()
            raise ConnectionLost(address, f"the TLS handshake failed: {error}") from error

    def tls_context(self) -> ssl.SSLContext:
        """A new one, from the files as they are now. Raises SettingRefused."""
        import ssl

        settings = self.settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        algorithm = settings.get("ssl.endpoint.identification.algorithm", "https")
        context.check_hostname = algorithm.lower() == "https"
        if _flag(settings, "enable.ssl.certificate.verification", True):
            _load_trust(context, settings)
        else:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        _load_key(context, settings)
        versions = [ssl.TLSVersion[_TLS[name]] for name in _tls_versions(settings)]
        if versions:
            context.minimum_version, context.maximum_version = min(versions), max(versions)
        suites = settings.get("ssl.cipher.suites")
        if suites:
            try:
                context.set_ciphers(suites)
            except ssl.SSLError as error:
                raise SettingRefused(
                    "ssl.cipher.suites", f"OpenSSL's names, separated by ':'; {error}"
                ) from error
        return context

    # -- SASL

    def authenticate(self, connection: Connection, deadline: float) -> float | None:
        """Run the exchange. Returns the seconds until another login is needed, None: never."""
        from kbroker.wire import sasl

        assert self.mechanism is not None
        client: sasl.Mechanism
        if self._kerberos is not None:
            client = _kerberos_client(self._kerberos, connection.host)
        elif self._tokens is not None:
            client = self._tokens.client(deadline)
        elif self._is_token:
            client = sasl.token_client(self.mechanism, self.username, self._password)
        else:
            client = sasl.CLIENTS[self.mechanism](self.username, self._password)

        def call(request: Message) -> Any:
            handshake = request.API_KEY == ApiKey.SASL_HANDSHAKE
            return connection.call(request, deadline, at_most=1 if handshake else None)

        try:
            return sasl.renewal_s(sasl.log_in(self.mechanism, client, call))
        except sasl.LoginFailed as error:
            raise connection.not_authenticated(str(error)) from error


# -- settings


def is_setting(name: str) -> bool:
    """Whether it is one of security's, even one that ``from_options`` refuses with advice."""
    return name in SETTINGS or name in _REFUSED


def _choice(settings: Mapping[str, str], name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = settings.get(name) or default
    if value.upper() not in allowed:
        raise SettingRefused(name, f"{value!r} is not one of {', '.join(allowed)}")
    return value


def _flag(settings: Mapping[str, str], name: str, default: bool) -> bool:
    value = settings.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise SettingRefused(name, f"{value!r} is neither true nor false")
    return value == "true"


def _mechanism(settings: Mapping[str, str]) -> str:
    from kbroker.wire import sasl

    # Kafka's clients have a default, GSSAPI; a user who does not name it has forgotten another.
    value = settings.get("sasl.mechanism") or settings.get("sasl.mechanisms") or ""
    offered = (*sasl.CLIENTS, OAUTHBEARER, GSSAPI)
    if value.upper() not in offered:
        told = f"{value} is not supported" if value else "set it"
        raise SettingRefused("sasl.mechanism", f"{told}: {', '.join(offered)}")
    return value.upper()


def _credentials(settings: Mapping[str, str], mechanism: str) -> tuple[str, str, bool]:
    """User, password, and whether these are the id and the secret of a delegation token."""
    username, password = settings.get("sasl.username"), settings.get("sasl.password")
    jaas = settings.get("sasl.jaas.config")
    if jaas and username is None and password is None:
        return _from_jaas(jaas, mechanism)
    if not username or password is None:
        raise SettingRefused(
            "sasl.username", "set sasl.username and sasl.password, or sasl.jaas.config"
        )
    return username, password, False


def _from_jaas(text: str, mechanism: str) -> tuple[str, str, bool]:
    wanted = "PlainLoginModule" if mechanism == "PLAIN" else "ScramLoginModule"
    options = _jaas_options(text, wanted, 'username="..." password="..."')
    is_token = options.get("tokenauth", "").lower() == "true"
    if is_token and mechanism == "PLAIN":
        raise SettingRefused("sasl.jaas.config", "delegation tokens (tokenauth) need SCRAM")
    if not options.get("username") or "password" not in options:
        raise SettingRefused("sasl.jaas.config", "username or password is missing")
    return options["username"], options["password"], is_token


def _kerberos(settings: Mapping[str, str]) -> kerberos.KerberosSettings:
    from kbroker.client.connections import kerberos

    jaas = None
    if text := settings.get("sasl.jaas.config"):
        jaas = _jaas_options(
            text,
            kerberos.KIND,
            'useKeyTab=true keyTab="..." principal="...", or useTicketCache=true',
        )
    return kerberos.kerberos_settings(settings, jaas)


def _kerberos_client(own: kerberos.KerberosSettings, host: str) -> sasl.Mechanism:
    from kbroker.client.connections import kerberos

    return kerberos.KerberosInitiator(lambda: kerberos.initiator(own, host))


def _token_source(settings: Mapping[str, str]) -> oauth.TokenSource:
    from kbroker.client.connections import oauth  # its parts of urllib take long to import

    jaas = {}
    if text := settings.get("sasl.jaas.config"):
        jaas = _jaas_options(text, "OAuthBearerLoginModule", 'clientId="..." clientSecret="..."')
    return oauth.TokenSource(oauth.oauth_settings(settings, jaas))


def _jaas_options(text: str, wanted: str, example: str) -> dict[str, str]:
    """The options of the login module ``wanted``, the only one."""
    from kbroker.security.sasl import jaas

    try:
        (login,) = jaas.parse(text)
    except ValueError as error:  # JaasError, or several
        raise SettingRefused("sasl.jaas.config", f"write: {wanted} required {example};") from error
    if not login.module.endswith(wanted):
        raise SettingRefused("sasl.jaas.config", f"write: {wanted} required {example};")
    return login.options


def _tls_versions(settings: Mapping[str, str]) -> list[str]:
    listed = settings.get("ssl.enabled.protocols") or ""
    names = [name.strip() for name in listed.split(",") if name.strip()]
    for name in names:
        if name not in _TLS:
            raise SettingRefused("ssl.enabled.protocols", f"{name} is not one of {', '.join(_TLS)}")
    return names


def _check_stores(settings: Mapping[str, str]) -> None:
    """Check what is possible without the files, which may be on another machine."""
    for store, instead in (
        ("truststore", "ssl.ca.location"),
        ("keystore", "ssl.certificate.location and ssl.key.location"),
    ):
        given = settings.get(f"ssl.{store}.location", "")
        kind = settings.get(f"ssl.{store}.type", "").upper()
        if kind not in ("", "PEM", *stores.KINDS):
            raise SettingRefused(
                f"ssl.{store}.type", f"{kind} is not one of JKS, PKCS12, PEM; or set {instead}"
            )
        if settings.get(f"ssl.{store}.password") and (kind == "PEM" or not given):
            raise SettingRefused(
                f"ssl.{store}.password",
                "leave it out: only JKS and PKCS12 stores have one; that of a key in PEM is "
                "ssl.key.password",
            )
    _tls_versions(settings)
    _flag(settings, "enable.ssl.certificate.verification", True)
    algorithm = settings.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("", "none", "https"):
        raise SettingRefused("ssl.endpoint.identification.algorithm", "https, none or empty")


# -- certificates


def _pem(settings: Mapping[str, str], *names: str) -> str:
    """The first of the settings that is given. In a properties file the lines of a PEM are often
    joined to one, which Java reads and OpenSSL does not: they are made again."""

    def lines(block: re.Match[str]) -> str:
        text = "".join(block[2].split())
        parts = [text[at : at + _PEM_LINE] for at in range(0, len(text), _PEM_LINE)]
        return "\n".join(["", block[1], *parts, block[3], ""])

    given = next((settings[name] for name in names if settings.get(name)), "")
    return _PEM_BLOCK.sub(lines, given)


def _load_trust(context: ssl.SSLContext, settings: Mapping[str, str]) -> None:
    pem = _pem(settings, "ssl.ca.pem", "ssl.truststore.certificates")
    import ssl

    name = "ssl.ca.location" if settings.get("ssl.ca.location") else TRUST_STORE
    place = settings.get(name)
    try:
        if pem:
            context.load_verify_locations(cadata=pem)
        elif name == TRUST_STORE and stores.is_used(settings, "truststore"):
            # As in Java, any certificate in the store is trusted.
            context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
            context.load_verify_locations(cadata=stores.trusted(settings))
        elif place and os.path.isdir(place):
            context.load_verify_locations(capath=place)
        elif place:
            context.load_verify_locations(cafile=place)
        else:
            context.load_default_certs()
    except SettingRefused:
        raise
    except (OSError, ValueError) as error:
        raise SettingRefused(name if not pem else "ssl.ca.pem", f"{place or ''} {error}") from error


def _advice(error: Exception) -> str | None:
    from kbroker.security.tls.weak import advice

    return advice(error)


def _load_text(context: ssl.SSLContext, text: str, password: str) -> None:
    import tempfile

    # OpenSSL reads keys only from files, so this one exists for a moment.
    with tempfile.NamedTemporaryFile("w", prefix="kbroker-key-") as file:
        file.write(text)
        file.flush()
        context.load_cert_chain(file.name, password=password)


def _load_key(context: ssl.SSLContext, settings: Mapping[str, str]) -> None:
    password = settings.get("ssl.key.password")
    chain = _pem(settings, "ssl.certificate.pem", "ssl.keystore.certificate.chain")
    key = _pem(settings, "ssl.key.pem", "ssl.keystore.key")
    place = settings.get("ssl.certificate.location") or settings.get("ssl.keystore.location")
    key_place = settings.get("ssl.key.location")
    of_java = not settings.get("ssl.certificate.location") and stores.is_used(settings, "keystore")
    try:
        if chain:
            _load_text(context, f"{chain}\n{key}\n", password or "")
        elif of_java:
            _load_text(context, stores.keys(settings), "")
        elif place:
            context.load_cert_chain(place, key_place or None, password=password or "")
        elif key_place or key:
            raise SettingRefused("ssl.certificate.location", "a key needs its certificate")
    except (OSError, ValueError) as error:
        if isinstance(error, SettingRefused):
            raise
        raise SettingRefused(
            "ssl.certificate.location",
            f"{place or 'the certificate'} cannot be used: {_advice(error) or error}",
        ) from error
