"""A connection to another broker, for one request at a time.

It never blocks the loop of the process. Any failure closes the connection and fails the request
with LinkFailed: it may or may not have been executed, and the caller decides whether to retry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from kbroker.ipc.pending import Pending
from kbroker.peers.connecting import Connecting
from kbroker.peers.secured import Secured
from kbroker.protocol.message import Message
from kbroker.wire.stream import Malformed, Stream

# BOUND: size of a response; one about 200,000 partitions has 4 MB.
RESPONSE_BYTES_MAX = 32 << 20
_READ_BYTES = 64 << 10
ANY_SIZE = -1  # of the receive buffer: the system's
# BOUND: bytes read in one turn of the loop.
_TURN_BYTES = 1 << 20


class LinkFailed(Exception):
    """There was no response; the message says why. is_refused: nothing listens there."""

    def __init__(self, reason: str, *, is_refused: bool = False) -> None:
        super().__init__(reason)
        self.is_refused = is_refused


class PeerAddress(NamedTuple):
    host: str
    port: int


class Loop(Protocol):
    """The process that owns the link: ``workers.base.Worker``."""

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        """Call back whenever ``fd`` is readable."""

    def watch_writable(self, fd: int, wanted: bool) -> None:
        """Set whether the reader is also called when ``fd`` is writable."""

    def remove_reader(self, fd: int) -> None:
        """Called before ``fd`` is closed."""


class LinkTimeouts(NamedTuple):
    """Timeouts for connecting and, once connected, for a response."""

    connect_ms: int
    response_ms: int


class Link:
    """A link to one broker. It connects at the first request and stays connected.

    client_id: of this broker. now_ms: the clock of ``tick``. lost: called when a connection has
    ended that no request waited for.
    """

    lost: Callable[[str], None] | None = None

    def __init__(
        self,
        loop: Loop,
        connecting: Connecting,
        client_id: str,
        times: LinkTimeouts,
        now_ms: Callable[[], int],
    ) -> None:
        self._loop = loop
        self._connecting = connecting
        self._times = times
        self._now_ms = now_ms
        self._made: Secured | None = None
        self._renew_at_ms: int | None = None  # its session is about to end then
        self._attempt = 0  # distinguishes the current connection attempt from abandoned ones
        self._asked: Pending[Any] | None = None
        self._is_opening = False
        self._deadline_ms = 0
        self._stream = Stream(client_id, RESPONSE_BYTES_MAX)
        self._out = memoryview(b"")

    def ask(self, endpoint: PeerAddress, request: Message, version: int) -> Pending[Any]:
        """Resolves with the response or LinkFailed. The previous request must have completed."""
        assert self._asked is None, "a request is under way"
        self.renew()
        _, frame = self._stream.message(request, version)
        self._out = memoryview(frame)
        asked = self._asked = Pending()
        if self._made is not None:
            self._deadline_ms = self._now_ms() + self._times.response_ms
            self._exchange()
        else:
            self._connect(endpoint)
        return asked

    def open(self, endpoint: PeerAddress) -> Pending[None]:
        """Only connect; resolves when there is a connection, or with LinkFailed. Nothing is asked
        of a broker that may not know the request.
        """
        assert self._asked is None and self._made is None, "it is in use"
        opened = self._asked = Pending()
        self._is_opening = True
        self._connect(endpoint)
        return opened

    def tick(self, now_ms: int) -> None:
        """Fail the request if it has timed out."""
        if self._asked is not None and now_ms >= self._deadline_ms:
            self._fail("it did not respond in time")

    @property
    def is_asking(self) -> bool:
        """Whether a request is under way."""
        return self._asked is not None

    @property
    def connection(self) -> int:
        """Another number for each connection, or attempt at one."""
        return self._attempt

    def renew(self) -> None:
        """Close an idle connection whose session is about to end: the other broker would close it
        at the next request. That request makes another.
        """
        if self._asked is None and self._renew_at_ms is not None:
            if self._now_ms() >= self._renew_at_ms:
                self._fail("its session is about to end")

    def give_up(self, reason: str = "nobody waits for its response any more") -> None:
        """A request under way ends with LinkFailed; without one nothing happens."""
        if self._asked is not None:
            self._fail(reason)

    def close(self, reason: str = "the link is closed") -> None:
        """Close the connection and fail a request in flight. The link can be reused."""
        self._fail(reason)

    # -- connecting --------------------------------------------------------------------------

    def _connect(self, endpoint: PeerAddress) -> None:
        self._attempt += 1
        attempt, connect_ms = self._attempt, self._times.connect_ms
        # All addresses of a host are tried, each for this long.
        self._deadline_ms = self._now_ms() + connect_ms + self._times.response_ms

        def on_connected(outcome: Secured | OSError) -> None:
            self._connected(attempt, outcome)

        self._connecting.connect(*endpoint, connect_ms / 1000, ANY_SIZE, on_connected)

    def _connected(self, attempt: int, outcome: Secured | OSError) -> None:
        if attempt != self._attempt or self._asked is None:
            if isinstance(outcome, Secured):
                outcome.socket.close()
        elif isinstance(outcome, OSError):
            is_refused = isinstance(outcome, ConnectionRefusedError)
            self._fail(f"cannot connect: {outcome}", is_refused=is_refused)
        else:
            now_ms = self._now_ms()
            self._made = outcome
            if outcome.renews_after_ms is not None:
                self._renew_at_ms = now_ms + outcome.renews_after_ms
            self._deadline_ms = now_ms + self._times.response_ms
            self._loop.add_reader(outcome.socket.fileno(), self._exchange)
            if self._is_opening:
                opened, self._asked, self._is_opening = self._asked, None, False
                opened.resolve()
            if self._made is outcome:
                self._exchange()

    # -- bytes -------------------------------------------------------------------------------

    def _exchange(self) -> None:
        """Send and receive as much as possible."""
        made = self._made
        assert made is not None
        try:
            self._send(made)
            self._receive(made)
        except (BlockingIOError, InterruptedError):
            pass  # the rest when the socket is ready again
        except OSError as error:
            self._fail(made.reason(error))

    def _send(self, made: Secured) -> None:
        if not self._out and not made.has_unsent:
            return
        try:
            while self._out or made.has_unsent:
                self._out = self._out[made.socket.send(self._out) :]
        finally:
            is_left = bool(self._out) or made.has_unsent
            self._loop.watch_writable(made.socket.fileno(), is_left)

    def _receive(self, made: Secured) -> None:
        left = _TURN_BYTES
        while (left > 0 or made.has_received) and self._made is made:
            data = made.socket.recv(_READ_BYTES)
            if not data:
                self._fail("it closed the connection")
                return
            left -= len(data)
            self._take(data)

    def _take(self, data: bytes) -> None:
        """Complete the request once its whole response has arrived."""
        asked = self._asked
        if asked is None or self._out:
            self._fail("it sent a response without a request")
            return
        try:
            if not self._stream.feed(data):
                return
            request, body = self._stream.take()
            response = request.decoded(body)
        except Malformed as error:
            self._fail(f"not a Kafka response: {error}")
            return
        self._asked = None
        asked.resolve(response)

    def _fail(self, reason: str, *, is_refused: bool = False) -> None:
        """Close the connection, then fail the request, whose caller may retry at once."""
        made, self._made = self._made, None
        self._renew_at_ms = None
        self._is_opening = False
        if made is not None:
            self._loop.remove_reader(made.socket.fileno())
            made.socket.close()
        self._attempt += 1
        self._out = memoryview(b"")
        self._stream.reset()
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.resolve(error=LinkFailed(reason, is_refused=is_refused))
        elif made is not None and self.lost is not None:
            self.lost(reason)
