"""Serves the console over connections that the exporter hands over, in a thread of its own.

The exporter has read the head of the request; the rest is uvicorn's. Each connection carries one
request. A connection that takes longer than ``CONNECTION_S`` ends.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from kbroker.console.application import Console
from kbroker.console.local_broker import LocalBroker

logger = logging.getLogger(__name__)

# BOUND: connections at a time; beyond it new ones are closed.
CONNECTIONS_MAX = 48
CONNECTION_S = 60.0
# BOUND: bytes of the head of a request.
HEAD_BYTES_MAX = 16_384


class _OneRequest(H11Protocol):
    """A connection, which ends in time: also if its client reads as slowly as it may."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._end = self.loop.call_later(CONNECTION_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end.cancel()
        super().connection_lost(exc)


class ConsoleServer:
    """``take`` and ``close`` are called by the exporter's thread."""

    def __init__(self, broker: LocalBroker) -> None:
        self._console = Console(broker)
        self._config = Config(
            self._console.app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        self._config.load()
        self._state = ServerState()
        self._is_ending = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="console", daemon=True)
        self._thread.start()

    def take(self, sock: socket.socket, received: bytes) -> None:
        """Serve a connection, on which this was received already."""
        self._loop.call_soon_threadsafe(self._begin, sock, received)

    def close(self) -> None:
        self._is_ending = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(1.0)
        self._console.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._is_ending:
            try:
                self._loop.run_forever()
            except BaseException:  # of one request, which asyncio lets through: the others go on
                logger.exception("the console's loop failed; it continues")

    def _begin(self, sock: socket.socket, received: bytes) -> None:
        if len(self._state.connections) >= CONNECTIONS_MAX:
            sock.close()
            return
        task = self._loop.create_task(self._serve(sock, received))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    async def _serve(self, sock: socket.socket, received: bytes) -> None:
        try:
            _, protocol = await self._loop.connect_accepted_socket(
                lambda: _OneRequest(self._config, self._state, {}, self._loop), sock
            )
        except OSError:
            sock.close()
            return
        protocol.data_received(received)
