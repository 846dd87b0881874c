"""Creates ZooKeeper clients from the broker's configs.

kazoo does the protocol: reconnecting, pings, SASL. TLS contexts are made here, because kazoo's
trust the operating system's authorities besides those of the trust store.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
from collections.abc import Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.retry import KazooRetry
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from kbroker.errors import ConfigError
from kbroker.metastore import paths
from kbroker.metastore.zookeeper_settings import JAAS_KEY, Tls, ZooKeeperSettings

logger = logging.getLogger(__name__)

# Whoever can read them can impersonate another user.
SENSITIVE_PATHS = (
    "/config/users",
    paths.BROKER_CONFIGS,
    paths.DISGUISE,
    "/delegation_token/tokens",
)
RETRY_S, RETRY_MAX_S = 0.1, 1.0
READ_BYTES = 65_536
# How long the first request of a connection, which opens the session, may go without a response;
# doubled after each connection on which none came. A server that is starting may never send one,
# although it responds on the next connection at once; kazoo would wait for the session timeout.
FIRST_RESPONSE_S = 2.0


class BufferedSocket:
    """A socket with a read buffer: kazoo reads each length and each response separately, and polls
    the socket before each read unless ``pending`` returns a count.

    response_s: how long to wait for the first byte. ``has_answered``: whether it has come.
    """

    def __init__(self, connected: socket.socket, response_s: float) -> None:
        self.response_s = response_s
        self.has_answered = False
        self._socket = connected
        self._read = b""
        self._at = 0

    def recv(self, size: int) -> bytes:
        if self._at == len(self._read):
            self._read, self._at = self._socket.recv(READ_BYTES), 0
            self.has_answered = True
        part = self._read[self._at : self._at + size]
        self._at += len(part)
        return part

    def pending(self) -> int:
        decrypted = self._socket.pending() if isinstance(self._socket, ssl.SSLSocket) else 0
        return len(self._read) - self._at + decrypted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class KazooHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler, with TLS as configured and without a selector for each call."""

    def __init__(self, tls: Tls | None, hosts: int) -> None:
        super().__init__()
        self._tls = tls
        self._hosts = hosts
        self._last: BufferedSocket | None = None

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float = 10, **_: Any
    ) -> BufferedSocket:
        """Connect within a host's share of ``timeout``, so that an unreachable address leaves time
        for the others.
        """
        connected = socket.create_connection(address, timeout / self._hosts)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                context = self._tls.context()
                connected = context.wrap_socket(connected, server_hostname=hostname)
        except BaseException:
            connected.close()
            raise
        last, response_s = self._last, FIRST_RESPONSE_S
        if last is not None and not last.has_answered:
            response_s = min(2 * last.response_s, timeout)
        self._last = BufferedSocket(connected, response_s)
        return self._last

    def select(
        self,
        readers: Sequence[Any],
        writers: Sequence[Any],
        _: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Like ``select.select``, for any file descriptor; but a first response is not waited for
        longer than its socket says.
        """
        for reader in readers:
            if isinstance(reader, BufferedSocket) and not reader.has_answered:
                timeout = reader.response_s if timeout is None else min(timeout, reader.response_s)
        # Data that has already been read or decrypted does not make the socket readable.
        ready = [s for s in readers if hasattr(s, "pending") and s.pending()]
        if ready:
            timeout = 0
        poll = select.poll()
        for reader in readers:
            poll.register(reader, select.POLLIN)
        for writer in writers:
            poll.register(writer, select.POLLOUT)
        ready_fds = {fd for fd, _ in poll.poll(None if timeout is None else timeout * 1000)}
        readable = [s for s in readers if s in ready or s.fileno() in ready_fds]
        return readable, [s for s in writers if s.fileno() in ready_fds], []


class LastWarning(logging.Handler):
    """Keeps kazoo's last warning, which says why a connection attempt failed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            logger.handle(record)
        self.text = record.getMessage()


def new_client(
    settings: ZooKeeperSettings,
    *,
    handler: KazooHandler | None = None,
    session: tuple[int, bytes] | None = None,
    below_chroot: bool = True,
    kind: type[KazooClient] = KazooClient,
) -> KazooClient:
    """A client, not started yet, that retries forever. Must not be created before a fork.

    session: id and password of a session to resume. Its ``logger`` has a LastWarning as its only
    handler.
    """
    sasl = None
    if settings.digest is not None:
        check_sasl()
        sasl = {"mechanism": "DIGEST-MD5", **settings.digest._asdict()}
    handler = handler or KazooHandler(settings.tls, len(settings.hosts))
    log = logging.Logger("kazoo", logging.WARNING)
    log.addHandler(LastWarning())
    return kind(
        hosts=settings.connect if below_chroot else settings.hosts_text,
        timeout=settings.session_timeout_ms / 1000,
        client_id=session,
        handler=handler,
        sasl_options=sasl,
        connection_retry=KazooRetry(
            max_tries=-1, delay=RETRY_S, max_delay=RETRY_MAX_S, sleep_func=handler.sleep_func
        ),
        logger=log,
        use_ssl=settings.tls is not None,
    )


def check_sasl() -> None:
    """Raises ConfigError if the package that kazoo needs for SASL is missing."""
    try:
        import puresasl  # noqa: F401
    except ImportError:
        raise ConfigError(
            JAAS_KEY,
            "(set)",
            "no value, unless pure-sasl is installed: pip install pure-sasl",
        ) from None


def acl_of(path: str, settings: ZooKeeperSettings) -> list[ACL]:
    """Kafka's ACL of a node that a broker creates."""
    return acl_at(path, settings.protects_nodes)


def acl_at(path: str, is_protected: bool) -> list[ACL]:
    """Kafka's ACL of a node: all access for everyone, or read access for non-sensitive paths."""
    if not is_protected or path == paths.CONSUMERS:
        return list(OPEN_ACL_UNSAFE)
    if path.startswith(SENSITIVE_PATHS):
        return list(CREATOR_ALL_ACL)
    return [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]


def make_chroot(settings: ZooKeeperSettings) -> None:
    """Create the chroot of ``zookeeper.connect`` if it is missing. Blocks; not before a fork.

    Raises KazooException, and KazooTimeoutError after ``connection_timeout_ms``.
    """
    if not settings.chroot:
        return
    client = new_client(settings, below_chroot=False)
    client.start(settings.connection_timeout_ms / 1000)
    try:
        client.ensure_path(settings.chroot, acl_of(settings.chroot, settings))
    finally:
        client.stop()
        client.close()
