"""Two ends of a TLS connection over a socket pair, and their transports."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any, NamedTuple, cast

from kbroker._ext.sockets.tls_transport import TlsTransport
from kbroker._ext.sockets.transport import TransportCalls
from kbroker.security import certificates
from kbroker.security.tls.tls_socket import TlsSocket


class Site(NamedTuple):
    """An authority with the contexts of a server and of a client that trust it."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def make_site(place: Path) -> Site:
    authority = certificates.create_authority("test CA")
    key = place / "server.pem"
    key.write_bytes(authority.issue("server", hosts=["localhost"], server=True).pem)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=authority.certificate.decode())
    return Site(server, client)


class Pair(NamedTuple):
    """A transport and the peer's blocking-or-not SSLSocket."""

    ours: TransportCalls
    transport: TlsTransport
    theirs: ssl.SSLSocket


def connect(
    site: Site,
    *,
    buffer_bytes: int | None = None,
    client_side: bool = False,
    asked: list[str] | None = None,
) -> Pair:
    """Shake hands. client_side: whether the transport is the client's. asked: gets an entry for
    each of its reads from OpenSSL (CountedReads).
    """
    left, right = socket.socketpair()
    for end in (left, right):
        end.setblocking(False)
        if buffer_bytes is not None:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    ours = site.server if not client_side else site.client
    theirs = site.client if not client_side else site.server
    hostname = "localhost"
    mine = TlsSocket(
        left, ours, server_side=not client_side, server_hostname=hostname if client_side else None
    )
    other = theirs.wrap_socket(
        right,
        server_side=client_side,
        do_handshake_on_connect=False,
        server_hostname=None if client_side else hostname,
    )
    waiting: list[TlsSocket | ssl.SSLSocket] = [mine, other]
    while waiting:
        for one in list(waiting):
            try:
                one.do_handshake()
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                continue
            waiting.remove(one)
    if asked is not None:
        mine.tls = cast(ssl.SSLObject, CountedReads(mine.tls, asked))
    transport = TlsTransport(mine.fileno(), mine)
    return Pair(TransportCalls(transport), transport, other)


class CountedReads:
    """A connection in OpenSSL; notes each read of it: the name of its exception, or ""."""

    def __init__(self, tls: ssl.SSLObject, asked: list[str]) -> None:
        self._tls = tls
        self._asked = asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tls, name)

    def read(self, *arguments: Any) -> Any:
        try:
            found = self._tls.read(*arguments)
        except ssl.SSLError as error:
            self._asked.append(type(error).__name__)
            raise
        self._asked.append("")
        return found


def drain(end: ssl.SSLSocket, most: int = 1 << 30) -> bytes:
    """All that has arrived."""
    found = bytearray()
    while len(found) < most:
        try:
            data = end.recv(65536)
        except ssl.SSLWantReadError:
            break
        if not data:
            break
        found += data
    return bytes(found)
