"""Free ports that stay with who asked for them."""

from __future__ import annotations

import socket

LOCALHOST = "127.0.0.1"


class HeldPort:
    """A port that the system assigns to nobody else until ``release``.

    It stays bound, and this socket never listens. A server can bind it anyway if it sets
    SO_REUSEADDR, as kbroker and Java do: also again, after a restart.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((LOCALHOST, 0))
        self.number: int = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        return f"{LOCALHOST}:{self.number}"

    def release(self) -> None:
        self._socket.close()
