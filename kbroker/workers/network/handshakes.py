"""TLS handshakes of new connections, in a thread of the network process.

A signature takes OpenSSL up to a millisecond, and thousands of clients may connect at once: in the
loop, established clients would wait for all of them. OpenSSL releases the GIL while it computes,
and the thread has a lower priority than the loop. A connection is handed over when its handshake
is done.

The loop calls ``start``, ``results`` and ``close``; everything else runs in the thread. Between
them are two queues and two eventfds.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from kbroker._ext.sockets.tls_transport import TlsTransport
from kbroker.errors import InvariantError
from kbroker.security.principal import ANONYMOUS, KafkaPrincipal, of_user
from kbroker.security.tls.certificate import read_certificate
from kbroker.security.tls.contexts import reason_of
from kbroker.security.tls.listener import ListenerTls
from kbroker.security.tls.principal_mapping import PrincipalMapping
from kbroker.security.tls.tls_socket import RECEIVE_BYTES, TlsSocket
from kbroker.workers.network.arrival import Arrival

logger = logging.getLogger(__name__)

# BOUND: handshakes that have begun, each of which holds about 50 KB. Further clients wait; what
# they send stays in the kernel.
BEGUN_MAX = 1000
# BOUND: connections that are only there until the client has read the alert; others are reset.
ENDING_MAX = 1000
ENDING_MS = 1000
# A handshake that has begun and takes longer than this is ended if others wait for its place.
HURRY_MS = 3000
_NICENESS = 5
_EVENTS_MAX = 64
_HELLO_BYTES = 16
_DISCARD_BYTES = 65536
_HANDSHAKE = 0x16
_HTTP = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"PRI ")
# Of a Kafka request: a length below this, then an API key and a version.
_KAFKA_LENGTH_MAX = 1 << 27
_KAFKA_API_MAX = 200

# What the peer says in its alert about this side's certificate or offer.
_ALERTS = {
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the certificate of this listener",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client rejects the certificate of this listener",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client rejects the certificate of this listener",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the certificate of this listener has expired",
    "UNSUPPORTED_PROTOCOL": "the client offers only versions of TLS that ssl.enabled.protocols "
    "does not have",
    "NO_SHARED_CIPHER": "the client offers no cipher suite that this listener has",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has shown no certificate; "
    "ssl.client.auth is required",
}


class HandshakeEnd(NamedTuple):
    """The end of a handshake. connected, principal: None if it failed, for ``reason``, which is
    empty if the client went away.
    """

    arrival: Arrival
    connected: TlsSocket | None
    principal: KafkaPrincipal | None
    reason: str

    def transport(self) -> TlsTransport:
        """What owns the connection from now on."""
        assert self.connected is not None
        return TlsTransport(self.connected.fileno(), self.connected)


class _Waiting:
    """A connection in the thread."""

    __slots__ = ("arrival", "deadline_ms", "events", "hurry_ms", "is_queued", "socket", "tls")

    def __init__(
        self, sock: socket.socket, arrival: Arrival, tls: ListenerTls, now_ms: int
    ) -> None:
        self.socket: socket.socket | TlsSocket = sock  # TLS from its first bytes on
        self.arrival = arrival
        self.tls = tls
        self.deadline_ms = now_ms
        self.events = 0  # that it waits for
        self.hurry_ms = 0
        self.is_queued = False


class Handshakes:
    """The handshakes of one network process. ``fd`` is readable when there are results."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.timeout_ms = 30_000
        self._now_ms = now_ms
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._new: deque[_Waiting] = deque()
        self._done: deque[HandshakeEnd] = deque()
        self._hosts: dict[str, int] = {}  # of connections that are here; the loop's
        self._stopping = False
        self._failure: BaseException | None = None  # what ended the thread
        self._epoll = select.epoll()
        # In the order of their deadlines, which are all equally far away.
        self._waiting: dict[int, _Waiting] = {}
        self._begun: dict[int, _Waiting] = {}  # of these, in the order in which they began
        self._queue: deque[_Waiting] = deque()  # their first bytes are here, but no place for them
        # Of those that have failed: socket and deadline, in its order.
        self._ending: dict[int, tuple[socket.socket, int]] = {}
        self._thread = threading.Thread(target=self._run, name="tls-handshakes", daemon=True)
        self._thread.start()

    # -- of the loop -----------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Connections whose handshake is in progress."""
        return sum(self._hosts.values())

    def hosts(self) -> dict[str, int]:
        """The same by address."""
        return dict(self._hosts)

    def start(self, sock: socket.socket, arrival: Arrival, tls: ListenerTls) -> None:
        """Shake hands on a connected, non-blocking socket, which is this object's from now on."""
        if self._stopping:
            sock.close()
            return
        self._hosts[arrival.host] = self._hosts.get(arrival.host, 0) + 1
        self._new.append(_Waiting(sock, arrival, tls, self._now_ms() + self.timeout_ms))
        if len(self._new) == 1:  # else the thread has been told
            os.eventfd_write(self._wake, 1)

    def results(self) -> list[HandshakeEnd]:
        """Handshakes that have ended since the last call. Raises InvariantError if the thread has
        ended: every connection would wait for it for ever.
        """
        if self._failure is not None:
            raise InvariantError("the thread of TLS handshakes has ended") from self._failure
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass  # those that it told of have been taken
        ended = []
        while self._done:
            result = self._done.popleft()
            host = result.arrival.host
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]
            ended.append(result)
        return ended

    def close(self) -> None:
        """End the thread and close all connections that it has."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._failure = None  # the connections are closed, and nobody waits
        for result in self.results():
            if result.connected is not None:
                result.connected.close()
        os.close(self.fd)
        os.close(self._wake)

    # -- of the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        self._epoll.register(self._wake, select.EPOLLIN)
        try:
            while not self._stopping:
                self._turn()
        except BaseException as error:
            self._failure = error
            os.eventfd_write(self.fd, 1)
        finally:
            for each in [*self._waiting.values(), *self._new]:
                each.socket.close()
            for ending, _ in self._ending.values():
                ending.close()
            self._epoll.close()

    def _turn(self) -> None:
        for fd, _ in self._epoll.poll(self._patience_s(), _EVENTS_MAX):
            if fd == self._wake:
                os.eventfd_read(self._wake)
                continue
            each = self._waiting.get(fd)
            if each is not None:
                self._guarded(self._go_on, each)
            elif fd in self._ending:
                self._discard(fd)
        # Not all at once: those that have begun go first.
        for _ in range(_EVENTS_MAX):
            if not self._new:
                break
            self._guarded(self._take, self._new.popleft())
        if self._new:
            os.eventfd_write(self._wake, 1)
        self._expire()
        while self._queue and len(self._begun) < BEGUN_MAX:
            each = self._queue.popleft()
            if each.is_queued:
                each.is_queued = False
                self._guarded(self._begin, each)

    def _guarded(self, step: Callable[[_Waiting], None], each: _Waiting) -> None:
        """An error that nobody expects ends this connection, and nobody else's."""
        try:
            step(each)
        except Exception as error:
            logger.exception("a TLS handshake of %s failed", each.arrival.host)
            self._end(each, f"a failed TLS handshake: {type(error).__name__}")

    def _patience_s(self) -> float | None:
        times_ms = [each.deadline_ms for each in islice(self._waiting.values(), 1)]
        times_ms += [deadline_ms for _, deadline_ms in islice(self._ending.values(), 1)]
        if self._queue:
            times_ms += [each.hurry_ms for each in islice(self._begun.values(), 1)]
        if not times_ms:
            return None
        return max(0.0, (min(times_ms) - self._now_ms()) / 1000)

    def _take(self, each: _Waiting) -> None:
        fd = each.socket.fileno()
        self._waiting[fd] = each
        each.events = select.EPOLLIN
        self._epoll.register(fd, each.events)
        self._go_on(each)  # most have sent their first bytes by now

    def _go_on(self, each: _Waiting) -> None:
        if isinstance(each.socket, TlsSocket):
            self._shake(each)
            return
        has_place = len(self._begun) < BEGUN_MAX
        try:
            if has_place:
                first = each.socket.recv(RECEIVE_BYTES)
            else:
                first = each.socket.recv(_HELLO_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        if not first:
            self._end(each, "")
            return
        strange = not_tls(first)
        if strange:
            self._end(each, strange)
        elif has_place:
            self._begin(each, first)
        else:
            each.is_queued = True
            self._watch(each, 0)  # its bytes are known to be here
            self._queue.append(each)

    def _begin(self, each: _Waiting, first: bytes = b"") -> None:
        """first: of the bytes that the client has sent, those that are received already."""
        assert isinstance(each.socket, socket.socket)
        fd = each.socket.fileno()
        try:
            each.socket = TlsSocket(each.socket, each.tls.context, server_side=True, received=first)
        except OSError as error:  # there is no memory
            self._epoll_forget(fd)
            self._waiting.pop(fd, None)
            each.socket.close()
            self._finish(HandshakeEnd(each.arrival, None, None, _reason(error)))
            return
        each.hurry_ms = self._now_ms() + HURRY_MS
        self._begun[fd] = each
        self._watch(each, select.EPOLLIN)
        self._shake(each)

    def _watch(self, each: _Waiting, events: int) -> None:
        if events != each.events:
            each.events = events
            self._epoll.modify(each.socket.fileno(), events)

    def _shake(self, each: _Waiting) -> None:
        assert isinstance(each.socket, TlsSocket)
        fd = each.socket.fileno()
        try:
            each.socket.do_handshake()
        except BlockingIOError:
            self._watch(each, select.EPOLLOUT if each.socket.has_unsent else select.EPOLLIN)
            return
        except OSError as error:
            self._end(each, _reason(error))
            return
        principal = ANONYMOUS
        shown = each.socket.tls.getpeercert(binary_form=True)
        if shown and not each.tls.uses_sasl:
            try:
                principal = principal_of(shown, each.tls.mapping)
            except ValueError as error:
                self._end(each, str(error))
                return
            except Exception:  # the thread is that of all other clients, too
                logger.exception("cannot find the principal of a certificate")
                self._end(each, "a certificate that the broker cannot read")
                return
        self._forget(fd)
        self._finish(HandshakeEnd(each.arrival, each.socket, principal, ""))

    def _expire(self) -> None:
        now = self._now_ms()
        while self._waiting:
            each = next(iter(self._waiting.values()))
            if each.deadline_ms > now:
                break
            self._end(each, f"no TLS handshake within {self.timeout_ms} ms")
        while self._queue and len(self._begun) >= BEGUN_MAX:
            each = next(iter(self._begun.values()))
            if each.hurry_ms > now:
                break
            self._end(each, "a TLS handshake that is too slow while others wait")
        while self._ending:
            fd, (_, deadline_ms) = next(iter(self._ending.items()))
            if deadline_ms > now:
                break
            self._close_ending(fd)

    def _end(self, each: _Waiting, reason: str) -> None:
        """Close a connection whose handshake has failed."""
        each.is_queued = False
        self._forget(each.socket.fileno())
        if reason and len(self._ending) < ENDING_MAX:
            self._end_sending(each.socket)
        else:
            each.socket.close()
        self._finish(HandshakeEnd(each.arrival, None, None, reason))

    def _end_sending(self, failed: socket.socket | TlsSocket) -> None:
        """Let the client read OpenSSL's alert. A socket that is closed while bytes of the client
        are unread, or arrive, is reset, and the client may see that instead.
        """
        ending = socket.socket(fileno=failed.detach())
        try:
            ending.shutdown(socket.SHUT_WR)
            self._epoll.register(ending, select.EPOLLIN)
        except OSError:  # it is gone
            ending.close()
            return
        self._ending[ending.fileno()] = (ending, self._now_ms() + ENDING_MS)

    def _discard(self, fd: int) -> None:
        """Read what the client still sends; one read a turn, as it may send without end."""
        try:
            received = self._ending[fd][0].recv(_DISCARD_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._close_ending(fd)

    def _close_ending(self, fd: int) -> None:
        self._epoll_forget(fd)
        self._ending.pop(fd)[0].close()

    def _forget(self, fd: int) -> None:
        self._waiting.pop(fd, None)
        self._begun.pop(fd, None)
        self._epoll_forget(fd)

    def _epoll_forget(self, fd: int) -> None:
        try:
            self._epoll.unregister(fd)
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOENT):
                raise

    def _finish(self, result: HandshakeEnd) -> None:
        self._done.append(result)
        if len(self._done) == 1:  # else the loop has been told
            os.eventfd_write(self.fd, 1)


def principal_of(certificate: bytes, mapping: PrincipalMapping) -> KafkaPrincipal:
    """The principal of a client by its certificate. Raises ValueError if there is none."""
    subject = read_certificate(certificate).subject
    name = mapping.name(subject)
    if name is None:
        raise ValueError(f"no rule of ssl.principal.mapping.rules matches: {subject[:200]!r}")
    try:
        return of_user(name)
    except ValueError as error:
        raise ValueError(f"a certificate that names nobody: {error}") from None


def not_tls(first: bytes) -> str | None:
    """What the first bytes of a connection are, if they begin no TLS handshake."""
    if first[0] == _HANDSHAKE:
        return None
    if first[:4] in _HTTP:
        return "an HTTP request on a TLS listener"
    length, key = int.from_bytes(first[:4], "big"), int.from_bytes(first[4:6], "big")
    if len(first) >= 8 and 8 <= length < _KAFKA_LENGTH_MAX and key <= _KAFKA_API_MAX:
        return (
            "a Kafka request in plaintext on a TLS listener; the client's security.protocol must "
            "be SSL or SASL_SSL"
        )
    return "bytes that are no TLS handshake on a TLS listener"


def _reason(error: OSError) -> str:
    """Why a handshake failed; empty if the client only went away."""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionError):
        return ""
    known = _ALERTS.get(getattr(error, "reason", None) or "")
    # No colon: what follows one does not count where lines about a client are limited.
    return f"a failed TLS handshake ({known or reason_of(error)})"
