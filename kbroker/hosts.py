"""Hosts as they stand in listeners and addresses: this machine's loopback, every interface, and how
an address is written.
"""

from __future__ import annotations

import socket

LOCALHOST = "localhost"
LOOPBACK = (LOCALHOST, "127.0.0.1", "::1")
# To be bound, not to be connected to.
EVERY_INTERFACE = ("", "0.0.0.0", "::")


def is_address(host: str) -> bool:
    """Whether it is one of IPv4 or IPv6, and no name."""
    # Python's ipaddress would cost each process half a megabyte.
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return True
    return False


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach it."""
    return host in LOOPBACK or (host.startswith("127.") and is_address(host))


def address_text(host: str, port: int | str) -> str:
    """``host:port``, and ``[::1]:port``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_here(host: str, port: int) -> str:
    """What a client on this machine connects to where ``host`` is bound."""
    return address_text(LOCALHOST if host in EVERY_INTERFACE else host, port)
