"""The sockets that the supervisor binds before it forks.

So no address is lost when a process is restarted.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from kbroker.config.loader import BrokerConfig, Listener
from kbroker.errors import ConfigError
from kbroker.security.tls.listeners import TlsListeners

logger = logging.getLogger(__name__)


def bind_listeners(config: BrokerConfig) -> list[tuple[Listener, socket.socket]]:
    """Bind and listen on every listener; port 0 is replaced by the system's choice.

    Accepted sockets inherit the options set here, so they need not be set for each connection.
    """
    bound = []
    for listener in config.listeners:
        sock = _bind("listeners", str(listener), listener.host, listener.port)
        for option, key in (
            (socket.SO_SNDBUF, "socket.send.buffer.bytes"),
            (socket.SO_RCVBUF, "socket.receive.buffer.bytes"),
        ):
            if config.is_set(key) and config[key] > 0:  # else the system tunes them itself
                sock.setsockopt(socket.SOL_SOCKET, option, config[key])
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.listen(config["socket.listen.backlog.size"])
        bound.append((listener._replace(port=sock.getsockname()[1]), sock))
    return bound


def load_tls(config: BrokerConfig) -> TlsListeners:
    """The TLS contexts of the listeners that use it. Raises ConfigError."""
    tls = TlsListeners()
    served = [(each.name, each.uses_sasl) for each in config.listeners if each.uses_tls]
    tls.load(served, config.of_listener)
    for each in tls.by_name.values():
        warning = each.advice()
        if warning is not None:
            logger.warning("%s", warning, extra={"event": "listening.warning"})
    return tls


def bind_metrics(config: BrokerConfig) -> socket.socket | None:
    """The exporter's socket, None if metrics.port turns it off.

    If the port is only the default and in use, perhaps by another broker, any free one will do.
    """
    port = config["metrics.port"]
    if port < 0:
        return None
    try:
        sock = _bind("metrics.port", str(port), config["metrics.host"], port)
    except ConfigError:
        if config.is_set("metrics.port"):
            raise
        sock = _bind("metrics.port", "0", config["metrics.host"], 0)
        logger.warning(
            "metrics port %d is in use; serving metrics on another port. Set metrics.port to "
            "choose one, or to -1 for none",
            port,
        )
    sock.listen(16)
    return sock


def _bind(key: str, shown: str, host: str, port: int) -> socket.socket:
    try:
        family, address = _resolve(host, port)
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(key, shown, f"an address of this machine ({error})") from error
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and host in ("", "::"):
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
    except OSError as error:
        sock.close()
        reason = os.strerror(error.errno or 0).lower()
        raise ConfigError(key, shown, f"an address that can be bound ({reason})") from error
    return sock


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Family and address to bind; of several addresses of a name the first of IPv4."""
    if host == "":
        return (socket.AF_INET6, ("::", port)) if _has_ipv6() else (socket.AF_INET, ("", port))
    # As str it would be encoded with IDNA, whose tables take memory in every process.
    name = host.encode() if host.isascii() else host
    addresses = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return addresses[0][0], addresses[0][4]


def _has_ipv6() -> bool:
    if not socket.has_ipv6:
        return False
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
    except OSError:
        return False  # compiled in, but disabled on this machine
    return True
