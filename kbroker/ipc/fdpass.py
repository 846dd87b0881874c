"""Passes accepted connections from the acceptor to a network process, and reports closed ones back.

One AF_UNIX SOCK_SEQPACKET pair per network process, created by the supervisor and kept when either
end is restarted. Both ends are non-blocking; ``False`` means "full, try again later". ZeroMQ cannot
carry descriptors, so these messages do not use a mailbox.

    acceptor -> network: listener index u32, peer host (UTF-8, the rest), and the descriptor as
    SCM_RIGHTS
    network -> acceptor: per closed connection a length u8 and the peer host. A length of 0: all
    earlier reports are included in a count of connections that reaches the acceptor another way
"""

from __future__ import annotations

import array
import errno
import logging
import socket
import struct

from kbroker.descriptors import first_kept
from kbroker.errors import SHORTAGES
from kbroker.logcontext import RateLimit

logger = logging.getLogger(__name__)
_dropped = RateLimit()

_HEADER = struct.Struct("=I")
_FD_SIZE = array.array("i").itemsize
_HOST_BYTES_MAX = 255
_CLOSED_BYTES_MAX = 8192  # BOUND: one report of closed connections; well below the socket's buffer
_RECEIVE_MAX = (
    64  # BOUND: connections taken in one turn, so that a burst does not delay those that are served
)


def create_pair() -> tuple[socket.socket, socket.socket]:
    """(acceptor end, network end)."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in pair:
        end.setblocking(False)
    return pair


def host_of(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """The host a connection is counted under: without IPv4 mapping, without scope."""
    host = address[0]
    if host.startswith("::ffff:") and "." in host:
        host = host[7:]
    return host.partition("%")[0]


def send_connection(sock: socket.socket, fd: int, listener_index: int, peer_host: str) -> bool:
    """Acceptor: hand ``fd`` over. The caller closes its own copy when this returns True."""
    rights = array.array("i", [fd])
    body = _HEADER.pack(listener_index) + peer_host.encode()[:_HOST_BYTES_MAX]
    try:
        sock.sendmsg([body], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    except BlockingIOError:
        return False
    return True


def receive_connections(sock: socket.socket, reserved: int = 0) -> list[tuple[int, int, str]]:
    """Network process: the (descriptor, listener index, peer host) of connections that arrived.

    reserved: the last descriptors below the process's limit, a quarter of them at most, that
    are no connection's.

    The caller owns the descriptors, and reports the end of each with ``send_closed`` and its host.

    Takes a bounded number; ``sock`` stays readable while more wait. A connection whose descriptor
    did not fit this process's table is closed by the kernel, and reported as closed.
    """
    connections: list[tuple[int, int, str]] = []
    kept = first_kept(reserved)
    for _ in range(_RECEIVE_MAX):
        try:
            body, ancillary, _, _ = sock.recvmsg(
                _HEADER.size + _HOST_BYTES_MAX, socket.CMSG_SPACE(_FD_SIZE)
            )
        except BlockingIOError:
            break
        if len(body) < _HEADER.size:
            break
        fd = _descriptor_of(ancillary)
        peer_host = body[_HEADER.size :].decode(errors="replace")
        if fd is not None and fd >= kept:
            socket.close(fd)
            fd = None
        if fd is None:
            dropped = _dropped.due()
            if dropped:
                logger.error("out of file descriptors; dropped %d connections; %s",
                             dropped, SHORTAGES[errno.EMFILE])  # fmt: skip
            send_closed(sock, [peer_host])
            continue
        connections.append((fd, _HEADER.unpack_from(body)[0], peer_host))
    return connections


def _descriptor_of(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS and len(data) >= _FD_SIZE:
            return int.from_bytes(data[:_FD_SIZE], "little", signed=True)
    return None


def send_closed(sock: socket.socket, peer_hosts: list[str]) -> bool:
    """Network process: report connections that ended, by ``host_of`` their peers.

    False if the acceptor has not kept up and nothing, or not everything, was sent; the hosts that
    were sent are removed from the list, the caller tries again with the rest.
    """
    while peer_hosts:
        body = bytearray()
        taken = 0
        for host in peer_hosts:
            name = host.encode()[:_HOST_BYTES_MAX]
            if len(body) + 1 + len(name) > _CLOSED_BYTES_MAX:
                break
            body.append(len(name))
            body += name
            taken += 1
        try:
            sock.send(body)
        except BlockingIOError:
            return False
        del peer_hosts[:taken]
    return True


def send_mark(sock: socket.socket) -> bool:
    """Network process: later reports are not included in the count that it sends now."""
    try:
        sock.send(b"\0")
    except BlockingIOError:
        return False
    return True


def receive_closed(sock: socket.socket) -> list[str]:
    """Acceptor.

    The hosts of all connections reported closed since the last call, one entry a connection; an
    empty one for a mark.
    """
    hosts: list[str] = []
    while True:
        try:
            body = sock.recv(_CLOSED_BYTES_MAX)
        except BlockingIOError:
            return hosts
        if not body:
            return hosts
        position = 0
        while position < len(body):
            end = position + 1 + body[position]
            hosts.append(body[position + 1 : end].decode(errors="replace"))
            position = end


def discard_pending(pair: tuple[socket.socket, socket.socket]) -> int:
    """Supervisor, after a network process died: close the connections that its pair still carries.

    Returns how many. Their clients see a closed connection, as do those whose connections the
    process had already taken.
    """
    dropped = 0
    while fds := receive_connections(pair[1]):
        for fd, _, _ in fds:
            socket.close(fd)
            dropped += 1
    receive_closed(pair[0])
    return dropped
