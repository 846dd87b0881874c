"""Addresses of brokers, and a connection to one of those that a name has, as RFC 8305 has it: the
next one is tried beside the ones before when those have not answered for a moment, so that a silent
one costs that moment only.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from typing import Any

from kbroker.client.connections.ending import Ending
from kbroker.client.errors import SettingRefused

# How long an address is tried alone (RFC 8305 section 5).
_ALONE_S = 0.25


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """``host:port,[::1]:port`` as pairs. Raises SettingRefused."""
    addresses = []
    for part in text.split(","):
        address = part.strip().rpartition("://")[2]
        if not address:
            continue
        host, separator, port = address.rpartition(":")
        host = host.strip("[]")
        if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise SettingRefused("bootstrap.servers", f"{part.strip()!r} is not host:port")
        addresses.append((host, int(port)))
    if not addresses:
        raise SettingRefused("bootstrap.servers", "write host:port,host:port")
    return addresses


def connect(host: str, port: int, timeout: float, ending: Ending | None = None) -> socket.socket:
    """A connected TCP socket. timeout: in seconds, for all addresses together. ending: interrupts
    it, but not the lookup of the name.

    Raises OSError: of the last address that failed; TimeoutError; ClientClosed.
    """
    ending = ending or Ending()
    # As bytes, if it can be: for text Python loads tables of international names, 5 ms.
    name: Any = host.encode() if host.isascii() else host
    infos = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    if len(infos) == 1:
        return _connect_one(infos[0], timeout, ending)
    deadline = time.monotonic() + timeout
    attempts = _Attempts(ending)
    try:
        while infos or attempts.sockets:
            if infos:
                attempts.begin(infos.pop(0))
            now = time.monotonic()
            until = min(deadline, now + _ALONE_S) if infos else deadline
            made = attempts.connected(until)
            if made is not None:
                return made
            ending.check()
            if time.monotonic() >= deadline:
                raise TimeoutError(errno.ETIMEDOUT, "timed out")
        ending.check()
        raise attempts.error or OSError(f"{host} has no address")
    finally:
        attempts.close()


def _connect_one(info: Any, timeout: float, ending: Ending) -> socket.socket:
    family, kind, protocol, _, address = info
    made = socket.socket(family, kind, protocol)
    try:
        made.settimeout(timeout)
        with ending.interrupts(made):
            made.connect(address)
    except BaseException:
        made.close()
        raise
    return made


class _Attempts:
    """Connections under way, by descriptor."""

    def __init__(self, ending: Ending) -> None:
        self.sockets: dict[int, socket.socket] = {}
        self.error: OSError | None = None
        self._ending = ending
        self._watched: list[socket.socket] = []

    def begin(self, info: Any) -> None:
        family, kind, protocol, _, address = info
        try:
            made = socket.socket(family, kind, protocol)
        except OSError as error:
            self.error = error  # such as IPv6, which this machine lacks
            return
        made.setblocking(False)
        self.sockets[made.fileno()] = made
        self._watched.append(self._ending.add(made))
        code = made.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            self._failed(made.fileno(), code)

    def connected(self, until: float) -> socket.socket | None:
        """The first one that is connected; None: all have failed, or it is late."""
        while self.sockets:
            left = until - time.monotonic()
            poll = select.poll()
            for descriptor in self.sockets:
                poll.register(descriptor, select.POLLOUT)
            for descriptor, _ in poll.poll(max(0.0, left) * 1000):
                made = self.sockets[descriptor]
                code = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not code:
                    return self.sockets.pop(descriptor)
                self._failed(descriptor, code)
            if left <= 0:
                return None
        return None

    def _failed(self, descriptor: int, code: int) -> None:
        self.error = OSError(code, os.strerror(code))
        self.sockets.pop(descriptor).close()

    def close(self) -> None:
        for made in self.sockets.values():
            made.close()
        for same in self._watched:
            self._ending.remove(same)
