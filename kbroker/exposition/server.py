"""A thread that serves a few pages by HTTP, beside a program that does something else."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from kbroker.errors import NO_ROOM_TO_ACCEPT
from kbroker.exposition.http import (
    DISCARDED_BYTES_MAX,
    REQUEST_BYTES_MAX,
    HttpConnection,
    HttpError,
    HttpRequest,
    host_of,
    http_response,
)

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 16  # BOUND: beyond it new connections are closed at once
# BOUND: a request must be there, and its response read, within this.
CONNECTION_TIMEOUT_MS = 10_000
_NO_ROOM_PAUSE_S = 0.1


class PageServer:
    """listener: listens already. serve: the response, in pieces; may raise HttpError. refusal: of
    requests with that Host header, None if they are served.

    Nothing waits for a slow client, or for this thread, but ``close``, for a second.
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[HttpRequest], Iterator[bytes]],
        refusal: Callable[[str], str | None],
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._serve = serve
        self._refusal = refusal
        self._open: dict[int, HttpConnection] = {}
        self._wake_read, self._wake_write = os.pipe()
        self._poll = select.poll()
        self._poll.register(listener.fileno(), select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="kafka-metrics-page", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and close all sockets."""
        os.write(self._wake_write, b"\0")
        self._thread.join(1.0)

    def forget(self) -> None:
        """Close the sockets, in the thread, or in a new process, where there is no thread."""
        for connection in list(self._open.values()):
            connection.sock.close()
        self._open.clear()
        self._listener.close()
        for number in (self._wake_read, self._wake_write):
            with suppress(OSError):
                os.close(number)

    # -- the thread

    def _run(self) -> None:
        try:
            while self._goes_on():
                pass
        finally:
            self.forget()

    def _goes_on(self) -> bool:
        try:
            return self._turn()
        except Exception:
            logger.exception("a turn of the metrics' page failed; it continues")
            time.sleep(_NO_ROOM_PAUSE_S)
            return True

    def _turn(self) -> bool:
        """Whether there is another one."""
        for number, _ in self._poll.poll(self._ms_left()):
            if number == self._wake_read:
                return False
            if number == self._listener.fileno():
                self._accept()
            elif (connection := self._open.get(number)) is not None:
                self._on_event(connection)
        now = _now_ms()
        for connection in [one for one in self._open.values() if one.deadline <= now]:
            self._close(connection)
        return True

    def _ms_left(self) -> int | None:
        if not self._open:
            return None
        return max(0, min(one.deadline for one in self._open.values()) - _now_ms()) + 1

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno in NO_ROOM_TO_ACCEPT:
                time.sleep(_NO_ROOM_PAUSE_S)
            return
        if len(self._open) >= CONNECTIONS_MAX:
            sock.close()
            return
        sock.setblocking(False)
        self._open[sock.fileno()] = HttpConnection(sock, _now_ms() + CONNECTION_TIMEOUT_MS)
        self._poll.register(sock.fileno(), select.POLLIN)

    def _close(self, connection: HttpConnection) -> None:
        number = connection.sock.fileno()
        if self._open.pop(number, None) is not None:
            self._poll.unregister(number)
            connection.sock.close()

    def _on_event(self, connection: HttpConnection) -> None:
        try:
            if connection.pieces is None:
                self._read(connection)
            # One piece a turn, so that others have theirs.
            if connection.pieces is not None and connection.send_some():
                # Unread data would turn the close into a reset, and the response would be lost.
                with suppress(OSError):
                    connection.sock.recv(DISCARDED_BYTES_MAX)
                self._close(connection)
        except BlockingIOError:
            return
        except OSError:
            self._close(connection)
        except Exception:
            logger.exception("closing a connection: cannot make its response")
            self._close(connection)

    def _read(self, connection: HttpConnection) -> None:
        data = connection.sock.recv(REQUEST_BYTES_MAX)
        if not data:
            raise ConnectionResetError
        connection.request += data
        if b"\r\n\r\n" in connection.request or b"\n\n" in connection.request:
            connection.pieces = self._response(bytes(connection.request))
        elif len(connection.request) >= REQUEST_BYTES_MAX:
            connection.answer(http_response(431, "text/plain", b"request too large\n"))
        if connection.pieces is not None:
            self._poll.modify(connection.sock.fileno(), select.POLLOUT)

    def _response(self, head: bytes) -> Iterator[bytes]:
        host = host_of(head)
        refused = None if host is None else self._refusal(host)
        try:
            if refused is not None:
                raise HttpError(403, refused)
            return self._serve(HttpRequest(head))
        except HttpError as error:
            return iter((error.response,))


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
