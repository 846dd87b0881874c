"""The end of a client while its threads wait for brokers: what connects, or sleeps before another
attempt, is interrupted, for it would wait for a silent broker longer than anybody waits for it.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from kbroker.client.errors import ClientClosed, ClientError


class Ending:
    """Of a client, or of a thread of it. Any thread."""

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()

    @property
    def has_begun(self) -> bool:
        return self._begun.is_set()

    def begin(self) -> None:
        """Interrupt what is under way, and whatever is begun after this."""
        with self._lock:
            self._begun.set()
            for made in self._sockets:
                with suppress(OSError):  # it is not connected yet, or not any more
                    made.shutdown(socket.SHUT_RDWR)

    def sleep(self, seconds: float) -> None:
        """No longer than until the end."""
        self._begun.wait(seconds)

    def check(self) -> None:
        """Raises ClientClosed once it has begun."""
        if self.has_begun:
            raise ClientClosed("the client is closed")

    def add(self, made: socket.socket) -> socket.socket:
        """Shut the socket down when the end begins; returns what to ``remove``. Raises
        ClientClosed.
        """
        with self._lock:
            self.check()
            same = made.dup()  # TLS takes the descriptor of the one that it is given
            self._sockets.add(same)
        return same

    def remove(self, same: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(same)
        same.close()

    @contextmanager
    def interrupts(self, made: socket.socket) -> Iterator[None]:
        """What waits for the socket in the block, also under TLS, raises ClientClosed when the end
        begins.
        """
        same = self.add(made)
        try:
            yield
            self.check()
        except (OSError, ClientError) as error:
            if self.has_begun:
                raise ClientClosed("the client is closed") from error
            raise
        finally:
            self.remove(same)
