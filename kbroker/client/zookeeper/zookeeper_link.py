"""Connections of tools to ZooKeeper: with TLS, and with why each server was not reached."""

from __future__ import annotations

import logging
import socket
import time
import warnings
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.hosts import collect_hosts

from kbroker.client.errors import SettingRefused, UnreachableError

if TYPE_CHECKING:
    import ssl

    from kbroker.client.zookeeper.zookeeper_tls import ZooKeeperTls

_SILENT = "the connection was accepted, but there was no response"


class ZooKeeperUnreachable(UnreachableError):
    """No server of ZooKeeper could be reached."""

    who = "ZooKeeper could not"


def connected(connect: str, seconds: float, tls: ZooKeeperTls | None = None) -> Any:
    """kazoo's client, with a session. connect: ``host:port,host:port/chroot``. seconds: until there
    is one, and of the session. Raises ZooKeeperUnreachable, SettingRefused.
    """
    logging.getLogger("kazoo").addHandler(logging.NullHandler())
    hosts = hosts_of(connect)
    handler = _Handler(len(hosts), tls.context() if tls is not None else None)
    client = KazooClient(hosts=connect, timeout=seconds, handler=handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no chroot yet
            client.start(timeout=seconds)
    except (KazooTimeoutError, KazooException) as error:
        client.stop()
        client.close()
        tried = {f"{host}:{port}": _unknown_name(host) for host, port in hosts}
        raise ZooKeeperUnreachable(tried | handler.failed, seconds) from error
    return client


def hosts_of(connect: str, setting: str = "zookeeper.connect") -> list[tuple[str, int]]:
    """The servers. setting: what the text is from. Raises SettingRefused."""
    try:
        hosts: list[tuple[str, int]] = collect_hosts(connect)[0]
        if all(":" not in host or f"[{host}]" in connect.lower() for host, _ in hosts):
            return hosts
    except ValueError:
        pass
    raise SettingRefused(setting, f"{connect!r} is not host:port,host:port/path")


def _unknown_name(host: str) -> str:
    try:
        socket.getaddrinfo(host, 0)
    except OSError as error:
        return str(error.strerror or error)
    return "was not tried in time"


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's, with TLS as configured. failed: ``host:port`` -> why it was not reached last."""

    def __init__(self, hosts: int, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._hosts = hosts
        self._tls = tls
        self.failed: dict[str, str] = {}

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float = 10, **_: Any
    ) -> socket.socket:
        """Each host has its share of the time."""
        share = timeout / self._hosts
        name = f"{hostname or address[0]}:{address[1]}"
        began = time.monotonic()
        try:
            made = socket.create_connection(address, share)
            try:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    made.settimeout(max(share - (time.monotonic() - began), 0.001))
                    made = self._tls.wrap_socket(made, server_hostname=hostname)
            except BaseException:
                made.close()
                raise
        except OSError as error:
            why = getattr(error, "verify_message", "") or error.strerror or str(error)
            self.failed[name] = why
            raise
        self.failed[name] = _SILENT
        return made
