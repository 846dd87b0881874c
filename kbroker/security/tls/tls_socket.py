"""A TLS connection whose bytes are carried here between OpenSSL and the socket.

``ssl.SSLSocket`` makes OpenSSL read from the socket itself, two system calls for each record. Here
OpenSSL sees memory only, and one call receives what has arrived. Handshakes and logins use this
object as they would a socket; then a ``TlsTransport`` takes over what it has.
"""

from __future__ import annotations

import errno
import socket
import ssl
import time
from typing import Self

RECORD_BYTES = 16384  # of plaintext
# BOUND: what OpenSSL is given at a time, a record with all that belongs to it; its memory for bytes
# that have arrived grows with this, and stays.
RECEIVE_BYTES = 5 + RECORD_BYTES + 256


class TlsSocket:
    """Owns a connected socket. As with any socket, a call with a timeout ends within it, and one
    that does not block raises BlockingIOError and is repeated when the socket is ready.

    tls: the connection in OpenSSL, which reads from ``incoming`` and writes to ``outgoing``.
    received: what the client has sent already, as one call of ``recv`` for RECEIVE_BYTES gave it.
    """

    def __init__(
        self,
        plain: socket.socket,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
        received: bytes = b"",
    ) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self.incoming, self.outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._plain = plain
        self._timeout_s = plain.gettimeout()  # of a call; ``plain`` has what is left of it
        self._unsent = b""
        # Whether the handshake goes on only with bytes that OpenSSL does not have.
        self._waits_for_bytes = server_side and not received
        self._is_empty = self._take(received) if received else False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self._plain.fileno()

    def settimeout(self, seconds: float | None) -> None:
        self._timeout_s = seconds
        self._plain.settimeout(seconds)

    def setblocking(self, blocking: bool) -> None:
        self.settimeout(None if blocking else 0.0)

    def close(self) -> None:
        self._plain.close()

    def detach(self) -> int:
        """Give up the descriptor, which the caller closes."""
        return self._plain.detach()

    @property
    def has_unsent(self) -> bool:
        """Whether there are bytes that the socket has not taken: ``send(b"")`` tries again."""
        return bool(self._unsent or self.outgoing.pending)

    @property
    def has_received(self) -> bool:
        """Whether there are bytes that have left the socket, so that it does not tell of them."""
        return bool(self.tls.pending() or self.incoming.pending)

    def do_handshake(self) -> None:
        """Raises OSError, an ssl.SSLError among them; the peer is told by an alert if possible."""
        deadline = self._deadline()
        while True:
            self._flush(deadline)
            if self._waits_for_bytes:
                self._receive(deadline)
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self._waits_for_bytes = True
                self._flush(deadline)
                if self._is_empty and self._timeout_s == 0:
                    raise BlockingIOError(errno.EAGAIN, "the rest has not arrived") from None
            except ssl.SSLError:
                self._try_to_flush(deadline)
                raise
            else:
                self._flush(deadline)
                return

    def recv(self, size: int) -> bytes:
        """Empty at the end of the stream, with or without a close_notify. Raises OSError."""
        deadline = self._deadline()
        while True:
            try:
                return self.tls.read(size)
            except ssl.SSLWantReadError:
                self._receive(deadline)
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                return b""
            finally:
                self._try_to_flush(deadline)  # what OpenSSL answers by itself

    def send(self, data: bytes | memoryview) -> int:
        """How many bytes were taken, of one record at most. Raises OSError."""
        deadline = self._deadline()
        self._flush(deadline)
        if not data:
            return 0
        taken = self.tls.write(data[:RECORD_BYTES])
        self._try_to_flush(deadline)
        return taken

    def sendall(self, data: bytes) -> None:
        """Raises OSError; for a socket that blocks."""
        deadline = self._deadline()
        while data:
            data = data[self.tls.write(data[:RECORD_BYTES]) :]
            self._flush(deadline)

    def _deadline(self) -> float | None:
        return time.monotonic() + self._timeout_s if self._timeout_s else None

    def _limit(self, deadline: float | None) -> None:
        if deadline is None:
            return
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._plain.settimeout(left)

    def _receive(self, deadline: float | None) -> None:
        self._limit(deadline)
        self._is_empty = self._take(self._plain.recv(RECEIVE_BYTES))
        self._waits_for_bytes = False

    def _take(self, data: bytes) -> bool:
        """Give bytes to OpenSSL. Whether the socket is likely to be empty now."""
        if data:
            self.incoming.write(data)
        else:
            self.incoming.write_eof()
        return 0 < len(data) < RECEIVE_BYTES

    def _flush(self, deadline: float | None) -> None:
        if self.outgoing.pending:
            self._unsent += self.outgoing.read()
        while self._unsent:
            self._limit(deadline)
            self._unsent = self._unsent[self._plain.send(self._unsent) :]

    def _try_to_flush(self, deadline: float | None) -> None:
        try:
            self._flush(deadline)
        except OSError:
            pass  # later; a broken socket is found by the next call
