"""An address that answers nothing, as that of a machine that is gone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_FILLING = 4


@contextmanager
def silent_address() -> Iterator[tuple[str, int]]:
    """Its queue of connections is full, so that the kernel drops what would open another one."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = listener.getsockname()
        for _ in range(_FILLING):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        yield address
