"""The HTTP of the exporter: one request a connection, and a response that may come in pieces.

Serves people and monitoring. A slow or hostile client costs its connection: requests are bounded
in bytes and time, connections in number, and a response is made as fast as it is read.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

REQUEST_BYTES_MAX = 8192
DISCARDED_BYTES_MAX = 65536

_REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class HttpError(Exception):
    """Becomes a response: status, and a text that says what is allowed."""

    def __init__(self, status: int, text: str, extra: str = "") -> None:
        super().__init__(text)
        self.response = http_response(status, "text/plain", f"{text}\n".encode(), extra)


class HttpRequest:
    """A request whose head is complete. query: the names and values behind the path."""

    __slots__ = ("is_head", "path", "query", "takes_chunks")

    def __init__(self, head: bytes) -> None:
        """Raises HttpError."""
        words = head.split(b"\n", 1)[0].split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            raise HttpError(400, "not an HTTP request")
        if words[0] not in (b"GET", b"HEAD"):
            raise HttpError(405, "GET only", "Allow: GET, HEAD\r\n")
        self.is_head = words[0] == b"HEAD"
        self.takes_chunks = words[2] == b"HTTP/1.1"
        path, _, query = words[1].partition(b"?")
        self.path = path.decode("ascii", "replace")
        self.query: dict[str, str] = {}
        if not query:
            return
        from urllib.parse import parse_qsl  # late: few have one

        try:
            self.query = dict(parse_qsl(query.decode("ascii"), True, max_num_fields=16))
        except ValueError:
            raise HttpError(400, "the query is not one") from None


def host_of(head: bytes) -> str | None:
    """The Host header of a request, the first if there are several; None if there is none, which no
    browser leaves out.
    """
    for line in head.split(b"\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon and name.strip().lower() == b"host":
            return value.strip().decode("latin-1")
    return None


class HttpConnection:
    """One client. deadline: until when its request must be there, or its response read."""

    __slots__ = ("deadline", "is_asking", "is_scrape", "pieces", "request", "rest", "sock")

    def __init__(self, sock: socket.socket, deadline: int) -> None:
        self.sock = sock
        self.deadline = deadline
        self.request = bytearray()
        # What is still to be made of the response; None: there is none yet.
        self.pieces: Iterator[bytes] | None = None
        self.rest = memoryview(b"")
        self.is_asking = False
        self.is_scrape = False

    def answer(self, response: bytes) -> None:
        """Respond with a complete response."""
        self.pieces = iter((response,))

    def send_some(self) -> bool:
        """Send a piece; returns whether there is nothing left. Raises BlockingIOError, OSError."""
        assert self.pieces is not None
        while not self.rest:
            piece = next(self.pieces, None)
            if piece is None:
                return True
            self.rest = memoryview(piece)
        self.rest = self.rest[self.sock.send(self.rest) :]
        return False


def http_response(status: int, content_type: str, body: bytes, extra: str = "") -> bytes:
    """A complete HTTP/1.1 response, after which the connection closes."""
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n{extra}Connection: close\r\n\r\n"
    )
    return head.encode() + body


def streamed(request: HttpRequest, content_type: str, pieces: Iterator[str]) -> Iterator[bytes]:
    """A response whose length is not known yet. An old client gets it until the connection ends."""
    chunks = request.takes_chunks
    coding = "Transfer-Encoding: chunked\r\n" if chunks else ""
    yield (
        f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\n{coding}Connection: close\r\n\r\n"
    ).encode()
    if request.is_head:
        return
    for text in pieces:
        data = text.encode()
        if not data:
            continue
        yield b"%x\r\n%b\r\n" % (len(data), data) if chunks else data
    if chunks:
        yield b"0\r\n\r\n"


def without_body(response: bytes) -> bytes:
    """The response to HEAD."""
    return response[: response.index(b"\r\n\r\n") + 4]
