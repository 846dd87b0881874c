"""Opens connections to other brokers in threads, outside the loop of the process.

Names are resolved, connections opened, TLS handshakes done and logins made in one thread each,
because all of these may take seconds and the loop must not wait for a millisecond. A thread touches
only its own socket, what is shared of the security settings, and a queue.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kbroker.peers.secured import Secured

if TYPE_CHECKING:
    from kbroker.peers.security import PeerSecurity

logger = logging.getLogger(__name__)

OnConnected = Callable[[Secured | OSError], None]


class Connecting:
    """``fd`` is readable when ``run`` has something to do. security: None: nothing but TCP."""

    def __init__(self, security: PeerSecurity | None = None) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._security = security
        self._done: deque[tuple[OnConnected, Secured | OSError]] = deque()

    def connect(
        self, host: str, port: int, timeout_s: float, receive_bytes: int, then: OnConnected
    ) -> None:
        """Start to connect; ``run`` calls back with a non-blocking socket that is ready for
        requests, or the error. timeout_s: for each address, and for handshake and login together.
        receive_bytes: SO_RCVBUF, -1 for the system's default.
        """

        def make() -> None:
            outcome: Secured | OSError
            try:
                outcome = connected(host, port, timeout_s, receive_bytes, self._security)
            except OSError as error:
                outcome = error
            except UnicodeError as error:  # a name that no resolver takes
                outcome = OSError(f"{host} is no host name: {error}")
            except BaseException as error:
                # INVARIANT: whoever wants the connection hears of its end, and tries again.
                logger.exception("connecting to %s:%d failed", host, port)
                outcome = OSError(f"{type(error).__name__}: {error}")
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

    def _taken(self) -> Iterator[tuple[OnConnected, Secured | OSError]]:
        while self._done:
            yield self._done.popleft()


def connected(
    host: str,
    port: int,
    timeout_s: float,
    receive_bytes: int,
    security: PeerSecurity | None = None,
) -> Secured:
    """Try each address of a host. Raises OSError; ConnectionRefusedError only if all refuse."""
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
        except OSError as error:
            made.close()
            if failure is None or isinstance(failure, ConnectionRefusedError):
                failure = error
            continue
        # Not at another address: whoever refuses this broker there is the same broker.
        secured = Secured(made) if security is None else security.secure(made, host, timeout_s)
        secured.socket.setblocking(False)
        return secured
    raise failure or OSError(f"{host} has no address")
