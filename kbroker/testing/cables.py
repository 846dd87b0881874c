"""Connections between brokers that can be cut and healed: TCP proxies in this process.

Every broker is reached by the others through a proxy of its own, and reaches ZooKeeper through
another. The first request on a connection says which broker opened it: brokers call themselves
``broker-1-fetcher-0`` or ``1`` in the client id, Kafka's and kbroker's alike.

A cut is what a pulled cable is: bytes stay where they are, nothing is closed, and new connections
are accepted by the system but get no response. After ``heal`` the bytes go on. Each direction has
a cut of its own, but a connection is established only while both are open: TCP needs both for it.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from kbroker.testing.ports import LOCALHOST

CHUNK_BYTES = 1 << 18
# WIRE: size, API key, version, correlation id, length of the client id.
_HEAD = struct.Struct(">ihhih")
_BROKER = re.compile(r"(?:broker-)?(\d+)(?:-.*)?")
CLIENT_ID_BYTES_MAX = 200
_ESTABLISHED = 1  # of the kernel's TCP states, the first byte of TCP_INFO


class Ends(NamedTuple):
    """Who is at the ends of a connection. read: what was read of it to know."""

    server: str
    caller: str
    read: bytes = b""


class Cables:
    """All of a cluster. Ends are named: broker ids as text, or "zookeeper"."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By sender and receiver; set while bytes pass.
        self._open: dict[tuple[str, str], threading.Event] = {}
        self._proxies: list[_Proxy] = []

    def to_broker(self, name: str, port: int) -> str:
        """The address of a proxy to the broker of this name; callers identify themselves."""
        return self._proxy(port, lambda connection: Ends(name, *_caller(connection)))

    def from_broker(self, name: str, to: str, port: int) -> str:
        """The address of a proxy that only the broker of this name uses, to reach ``to``."""
        return self._proxy(port, lambda connection: Ends(to, name))

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between these two any more, in either direction."""
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def cut_one_way(self, sender: str, receiver: str) -> None:
        """Nothing that ``sender`` sends reaches ``receiver``; the other direction stays open."""
        self._gate(sender, receiver).clear()

    def heal(self, one: str | None = None, other: str | None = None) -> None:
        """Undo the cuts between these two, of this one, or all."""
        wanted = {name for name in (one, other) if name is not None}
        with self._lock:
            for ends, gate in self._open.items():
                if wanted <= set(ends):
                    gate.set()

    def close(self) -> None:
        """End all connections and proxies."""
        for proxy in self._proxies:
            proxy.close()
        self.heal()

    def _proxy(self, port: int, ends: Callable[[socket.socket], Ends]) -> str:
        proxy = _Proxy(port, ends, self._gate)
        self._proxies.append(proxy)
        return proxy.address

    def _gate(self, sender: str, receiver: str) -> threading.Event:
        with self._lock:
            gate = self._open.get((sender, receiver))
            if gate is None:
                gate = self._open[sender, receiver] = threading.Event()
                gate.set()
            return gate


class _Proxy:
    """Two threads for each connection: a cluster of tests has a few dozen."""

    def __init__(
        self,
        port: int,
        ends: Callable[[socket.socket], Ends],
        gate: Callable[[str, str], threading.Event],
    ) -> None:
        self._port = port
        self._ends = ends
        self._gate = gate
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server((LOCALHOST, 0))
        self.address = f"{LOCALHOST}:{self._listener.getsockname()[1]}"
        _run(self._accept)

    def close(self) -> None:
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                _run(self._serve, near)

    def _serve(self, near: socket.socket) -> None:
        """Connect to the server once the ends are known and nothing is cut between them."""
        far: socket.socket | None = None
        self._sockets.add(near)
        try:
            ends = self._ends(near)
            there = self._gate(ends.caller, ends.server)
            back = self._gate(ends.server, ends.caller)
            there.wait()
            back.wait()
            if _is_given_up(near):
                return  # during a cut: the server never heard of it
            far = socket.create_connection((LOCALHOST, self._port))
            self._sockets.add(far)
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            far.sendall(ends.read)
            backwards = _run(_pump, far, near, back)
            _pump(near, far, there)
            backwards.join()
        except OSError:
            pass  # either end has closed, or the server is down
        finally:
            for one_end in filter(None, (near, far)):
                self._sockets.discard(one_end)
                one_end.close()


def _caller(connection: socket.socket) -> tuple[str, bytes]:
    """The name of the caller, and the bytes read for it: "" for a client."""
    read = connection.recv(_HEAD.size, socket.MSG_WAITALL)
    if len(read) < _HEAD.size:
        raise ConnectionError("it ended before its first request")
    size = max(_HEAD.unpack(read)[4], 0)
    if size > CLIENT_ID_BYTES_MAX:
        return "", read
    name = connection.recv(size, socket.MSG_WAITALL) if size else b""
    match = _BROKER.fullmatch(name.decode(errors="replace"))
    return match[1] if match else "", read + name


def _is_given_up(connection: socket.socket) -> bool:
    """Whether the other end has closed it, whatever it sent before."""
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED


def _pump(source: socket.socket, target: socket.socket, gate: threading.Event) -> None:
    """Pass on what ``source`` sends, its end, too. A target that has ended shows in the other
    direction, where it passes its gate.
    """
    with suppress(OSError):
        while part := source.recv(CHUNK_BYTES):
            gate.wait()
            target.sendall(part)
    gate.wait()
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


def _run(work: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread
