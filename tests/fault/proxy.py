"""A proxy between clients and a broker that duplicates, delays and loses requests.

It forwards whole frames. What it does to a request is drawn from a seed:

- *twice*: the same frame again on a connection of its own, after the broker has answered the first
  and before the client gets that response;
- *late*: the same again some time later, when the client has long gone on (``late``);
- *slow*: the request is held back for a while;
- *lost*: the broker gets the request, the client never the response: its connection is cut;
- *silent*: the same, but the connection stays.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections import Counter
from contextlib import suppress

from support.network.frames import read_frame

TIMEOUT_S = 10.0
REPEATED = {0: "Produce", 24: "AddPartitionsToTxn", 25: "AddOffsetsToTxn", 26: "EndTxn"}
REPEATED |= {28: "TxnOffsetCommit"}


class Proxy:
    """Listens once created; ``upstream`` may be set later, but before the first client.

    chances: of ``twice``, ``late``, ``slow``, ``lost`` and ``silent``, for each request of
    ``REPEATED``.
    lose_next: the key of a request whose next response is lost; None again once it is.
    """

    def __init__(self, seed: int, **chances: float) -> None:
        self.upstream = ("", 0)
        self.lose_next: int | None = None
        self.done: Counter[str] = Counter()
        self._chances = chances
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._closing = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in list(self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def heal(self) -> None:
        """Only forward requests from now on."""
        self._chances = {}

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, client)

    def _connect(self) -> socket.socket:
        upstream = socket.create_connection(self.upstream, timeout=TIMEOUT_S)
        upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets.add(upstream)
        return upstream

    def _serve(self, client: socket.socket) -> None:
        """Forward one request at a time; a broker responds in order anyway."""
        self._sockets.add(client)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        upstream = None
        with suppress(OSError):
            upstream = self._connect()
            while (frame := read_frame(client)) is not None:
                if not self._pass_on(frame, client, upstream):
                    break
        for one in (client, upstream):
            if one is not None:
                self._sockets.discard(one)
                one.close()

    def _pass_on(self, frame: bytes, client: socket.socket, upstream: socket.socket) -> bool:
        """Forward data; returns whether the connection is still open."""
        (key,) = struct.unpack_from(">h", frame, 4)
        plan = self._plan() if key in REPEATED else set()
        if key == self.lose_next:
            plan.add("lost")
        if "slow" in plan:
            self._closing.wait(self._random.uniform(0.01, 0.1))
        upstream.settimeout(3 * TIMEOUT_S)
        upstream.sendall(frame)
        response = read_frame(upstream)
        if response is None:
            return False
        for kind in plan:
            self.done[f"{kind} {REPEATED[key]}"] += 1
        if "late" in plan:
            self._start(self._repeat, frame, self._random.uniform(0.05, 1.0))
        if "twice" in plan:
            self._repeat(frame, 0.0)
        if "lost" in plan:
            self.lose_next = None
            return False
        if "silent" not in plan:
            client.sendall(response)
        return True

    def _plan(self) -> set[str]:
        return {kind for kind, chance in self._chances.items() if self._random.random() < chance}

    def _repeat(self, frame: bytes, delay_s: float) -> None:
        if delay_s and self._closing.wait(delay_s):
            return
        with suppress(OSError), self._connect() as again:
            again.sendall(frame)
            read_frame(again)
            self._sockets.discard(again)
