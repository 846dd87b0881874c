"""Validates the ``zookeeper.*`` configs.

Nothing here needs kazoo, so an invalid config is reported before anything is imported or forked.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from kbroker.errors import ConfigError
from kbroker.hosts import address_text
from kbroker.metastore.store import check_path

if TYPE_CHECKING:
    import ssl

    from kbroker.config.loader import BrokerConfig

DEFAULT_PORT = 2181
JAAS_KEY = "java.security.auth.login.config"
JAAS_SECTION = "Client"  # the section that Kafka and ZooKeeper use
_DIGEST = "DigestLoginModule"
_TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")


class Tls(NamedTuple):
    """TLS configs. The stores are PEM files."""

    key_store: str | None  # key and certificate of this broker
    key_password: str | None
    trust_store: str | None  # None: the authorities that the operating system trusts
    versions: tuple[str, ...]
    checks_host_name: bool

    def context(self) -> ssl.SSLContext:
        """A new SSL context, which uses the current certificate files. Raises OSError."""
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.checks_host_name
        numbers = [getattr(ssl.TLSVersion, name.replace(".", "_")) for name in self.versions]
        context.minimum_version, context.maximum_version = min(numbers), max(numbers)
        if self.trust_store is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(self.trust_store)
        if self.key_store is not None:
            # Without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(self.key_store, password=self.key_password or "")
        return context


class Digest(NamedTuple):
    """Credentials for SASL's DIGEST-MD5."""

    username: str
    password: str


class ZooKeeperSettings(NamedTuple):
    """All configs of a client."""

    hosts: list[tuple[str, int]]
    chroot: str  # below which all paths are; "" or a path
    session_timeout_ms: int
    connection_timeout_ms: int  # how long a start waits for the first connection
    window: int  # requests in flight
    protects_nodes: bool  # zookeeper.set.acl
    tls: Tls | None
    digest: Digest | None

    @property
    def connect(self) -> str:
        """Hosts and path in the form of ``zookeeper.connect``."""
        return f"{self.hosts_text}{self.chroot}"

    @property
    def hosts_text(self) -> str:
        """Hosts in the form of ``zookeeper.connect``, without the path."""
        return ",".join(address_text(host, port) for host, port in self.hosts)


def settings_of(config: BrokerConfig) -> ZooKeeperSettings:
    """Validate and collect the configs. Raises ConfigError; reads the files that they name."""
    hosts, chroot = parse_connect(config["zookeeper.connect"] or "")
    session_ms = config["zookeeper.session.timeout.ms"]
    connection_ms = config["zookeeper.connection.timeout.ms"]
    tls, digest = _tls(config), _digest(config)
    protects_nodes = config["zookeeper.set.acl"]
    if protects_nodes and digest is None and (tls is None or tls.key_store is None):
        # ZooKeeper would not know the owner of the nodes.
        raise ConfigError(
            "zookeeper.set.acl",
            "true",
            "false, unless this broker authenticates itself to ZooKeeper: with a certificate "
            "(zookeeper.ssl.client.enable and zookeeper.ssl.keystore.location), or with a "
            f"{JAAS_SECTION} section in {JAAS_KEY}",
        )
    return ZooKeeperSettings(
        hosts,
        chroot,
        session_ms,
        session_ms if connection_ms is None else connection_ms,
        config["zookeeper.max.in.flight.requests"],
        protects_nodes,
        tls,
        digest,
    )


def parse_connect(text: str) -> tuple[list[tuple[str, int]], str]:
    """``host:port,[::1]:port/path`` -> hosts and path. Raises ConfigError."""

    def refused(what: str) -> ConfigError:
        allowed = f"host:port,host:port/path, the path being optional ({what})"
        return ConfigError("zookeeper.connect", text, allowed)

    addresses, _, path = text.strip().partition("/")
    hosts = []
    for address in addresses.split(","):
        try:
            parts = urlsplit(f"//{address.strip()}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise refused(f"{address.strip()}: {error}") from None
        if not host or parts.username is not None or parts.path or parts.query or parts.fragment:
            raise refused(f"{address.strip()!r} is no address")
        hosts.append((host, DEFAULT_PORT if port is None else port))
    chroot = f"/{path.rstrip('/')}" if path.strip("/") else ""
    if chroot:
        try:
            check_path(chroot)
        except ValueError as error:
            raise refused(str(error)) from None
    return hosts, chroot


def _tls(config: BrokerConfig) -> Tls | None:
    if not config["zookeeper.ssl.client.enable"]:
        return None
    for name, why in (
        ("zookeeper.ssl.crl.enable", "revocation lists are not checked yet"),
        ("zookeeper.ssl.ocsp.enable", "revocation is not checked yet"),
        ("zookeeper.ssl.cipher.suites", "OpenSSL chooses the cipher suites"),
    ):
        if config[name]:
            shown = "true" if config[name] is True else ",".join(config[name])
            allowed = f"no value: {why}"
            raise ConfigError(name, shown, allowed)
    if config["zookeeper.ssl.enabled.protocols"]:
        name, versions = (
            "zookeeper.ssl.enabled.protocols",
            config["zookeeper.ssl.enabled.protocols"],
        )
    else:
        name, versions = "zookeeper.ssl.protocol", (config["zookeeper.ssl.protocol"],)
    if not set(versions) <= set(_TLS_VERSIONS):
        raise ConfigError(name, ",".join(versions), " or ".join(_TLS_VERSIONS))
    tls = Tls(
        _pem_store(config, "keystore"),
        config["zookeeper.ssl.keystore.password"],
        _pem_store(config, "truststore"),
        versions,
        config["zookeeper.ssl.endpoint.identification.algorithm"].upper() == "HTTPS",
    )
    _check_store(config, "keystore", tls._replace(trust_store=None))
    _check_store(config, "truststore", tls._replace(key_store=None))
    return tls


def _pem_store(config: BrokerConfig, kind: str) -> str | None:
    """The path of a key or trust store; None if there is none."""
    name = f"zookeeper.ssl.{kind}.location"
    path: str | None = config[name]
    if not path:
        return None
    stated = config[f"zookeeper.ssl.{kind}.type"]
    if (stated or "PEM").upper() == "PEM":
        try:
            with open(path, "rb") as file:
                if b"-----BEGIN " in file.read():
                    return path
        except OSError as error:
            raise ConfigError(name, path, f"a PEM file that can be read ({error})") from error
    what = "the certificates to trust"
    how = f"keytool -exportcert -rfc -keystore {path} -alias ALIAS >> {kind}.pem"
    if kind == "keystore":
        what = "key and certificate"
        how = (
            f"keytool -importkeystore -srckeystore {path} -destkeystore {kind}.p12 "
            f"-deststoretype PKCS12; openssl pkcs12 -in {kind}.p12 -out {kind}.pem"
        )
    raise ConfigError(
        name,
        path,
        f"a PEM file with {what}: stores in Java's formats (JKS, PKCS12) cannot be read. "
        f"To convert this one: {how}. Then set zookeeper.ssl.{kind}.type=PEM",
    )


def _check_store(config: BrokerConfig, kind: str, tls: Tls) -> None:
    """Check now for errors that would make every connection fail."""
    name = f"zookeeper.ssl.{kind}.location"
    try:
        tls.context()
    except OSError as error:
        allowed = "a PEM file that OpenSSL accepts"
        if kind == "keystore":
            allowed += ", and its password in zookeeper.ssl.keystore.password"
        raise ConfigError(name, config[name], f"{allowed} ({error})") from error


def _digest(config: BrokerConfig) -> Digest | None:
    """The credentials in the JAAS file; None if it has no such section."""
    path: str | None = config[JAAS_KEY]
    if not path:
        return None

    def refused(allowed: str) -> ConfigError:
        return ConfigError(JAAS_KEY, path, allowed)

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, ValueError) as error:
        raise refused(f"a JAAS file that can be read ({error})") from error
    login = jaas_section(text, JAAS_SECTION)
    if login is None:
        return None
    module, options = login
    if not module.endswith(_DIGEST):
        raise refused(
            f"a {JAAS_SECTION} section with org.apache.zookeeper.server.auth.{_DIGEST}: other "
            f"logins to ZooKeeper are not supported (found {module})"
        )
    if "username" not in options or "password" not in options:
        raise refused(f"username and password in the {JAAS_SECTION} section")
    return Digest(options["username"], options["password"])


def jaas_section(text: str, name: str) -> tuple[str, dict[str, str]] | None:
    """Class and options of the first login module in a section of a JAAS file."""
    text = re.sub(r"/\*.*?\*/|(?m:^\s*(?://|#)[^\n]*$)", "", text, flags=re.DOTALL)
    words = re.findall(r'"[^"]*"|[{};=]|[^\s{};="]+', text)
    for place, word in enumerate(words[:-3]):
        if word == name and words[place + 1] == "{":
            break
    else:
        return None
    options = {}
    after = place + 4  # behind the class and its flag
    while words[after + 1 : after + 2] == ["="]:
        options[words[after]] = "".join(words[after + 2 : after + 3]).strip('"')
        after += 3
    return words[place + 2], options
