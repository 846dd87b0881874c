"""A connection that can be interrupted and restored: a proxy for bytes."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType


class Cable:
    """Listens on ``address`` and forwards to a port on this machine."""

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._is_cut = False
        self.silent = 0  # so many of the next connections are accepted and forwarded nowhere
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close all connections; new ones are closed at once."""
        with self._lock:
            self._is_cut = True
            ends, self._open = self._open, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        with self._lock:
            self._is_cut = False

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                with self._lock:
                    if self._is_cut:
                        near.close()
                        continue
                    if self.silent:
                        self.silent -= 1
                        self._open.append(near)
                        continue
                    try:
                        far = socket.create_connection(self._to)
                    except OSError:
                        near.close()
                        continue
                    self._open += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=_pump, args=(source, target), daemon=True).start()

    def __enter__(self) -> Cable:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cut()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(65536):
            target.sendall(part)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
