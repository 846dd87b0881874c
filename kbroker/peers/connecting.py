"""Opens connections to other brokers in threads, outside the loop of the process.

Names are resolved and connections opened in one thread each, because both may take seconds and the
loop must not wait for a millisecond. A thread touches only its own socket and a queue.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator

OnConnected = Callable[[socket.socket | OSError], None]


class Connecting:
    """``fd`` is readable when ``run`` has something to do."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._done: deque[tuple[OnConnected, socket.socket | OSError]] = deque()

    def connect(
        self, host: str, port: int, timeout_s: float, receive_bytes: int, then: OnConnected
    ) -> None:
        """Start to connect; ``run`` calls back with a connected non-blocking socket or the error.
        receive_bytes: SO_RCVBUF, -1 for the system's default.
        """

        def make() -> None:
            outcome: socket.socket | OSError
            try:
                outcome = connected(host, port, timeout_s, receive_bytes)
            except OSError as error:
                outcome = error
            except UnicodeError as error:  # a name that no resolver takes
                outcome = OSError(f"{host} is no host name: {error}")
            self._done.append((then, outcome))
            os.eventfd_write(self.fd, 1)

        threading.Thread(target=make, name="connecting", daemon=True).start()

    def run(self) -> None:
        """Call back for every connection that was established or failed since the last call."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return
        for then, outcome in self._taken():
            then(outcome)

    def _taken(self) -> Iterator[tuple[OnConnected, socket.socket | OSError]]:
        while self._done:
            yield self._done.popleft()


def connected(host: str, port: int, timeout_s: float, receive_bytes: int) -> socket.socket:
    """Try each address of a host. Raises OSError."""
    failure: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(timeout_s)
            if receive_bytes > 0:
                # Before the connection is made: the window that TCP announces follows from it.
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            made.connect(address)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setblocking(False)
        except OSError as error:
            made.close()
            failure = error
        else:
            return made
    raise failure or OSError(f"{host} has no address")
