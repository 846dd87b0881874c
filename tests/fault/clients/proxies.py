"""The way from clients to a broker, on which the exam does harm that the cluster does not notice.

Frames are read whole. What is done to them is the ``harm`` of the moment:

- *silent*: bytes stay where they are, in both directions, and new connections say nothing;
- *late*: each response takes a second longer;
- *errors*: each response says in every place that something is wrong;
- *cut*: connections are closed, and new ones, too;
- *once*: each connection is closed once, in the place of a response;
- *doubled*: each response comes twice.

Where clients use TLS, bytes are passed on as they are, and what they say is left alone: there is
no harm of OF_FRAMES.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from support.network.frames import read_frames, response_frame

from kbroker.errors import ErrorCode
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey, response_class
from kbroker.protocol.header import decode_response_header
from kbroker.protocol.message import Struct

LOCALHOST = "127.0.0.1"
LATE_S = 1.0
HARMS = ("silent", "late", "errors", "cut", "once", "doubled")
OF_FRAMES = ("errors", "doubled")
# What a broker says that cannot do what it is asked, where clients expect it.
_OF_COORDINATORS = (
    ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN, ApiKey.CONSUMER_GROUP_HEARTBEAT,
)  # fmt: skip
WRONG = dict.fromkeys(_OF_COORDINATORS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_UNHARMED = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


class Proxy:
    """Listens on ``address``. port: of the broker. sees_frames: False if they are encrypted."""

    def __init__(self, port: int, *, sees_frames: bool = True) -> None:
        self._exchange = _Exchange if sees_frames else _Bytes
        self._to = (LOCALHOST, port)
        self._listener = socket.create_server((LOCALHOST, 0))
        self.address = f"{LOCALHOST}:{self._listener.getsockname()[1]}"
        self._changed = threading.Condition()
        self._harm = ""
        self._closed = False
        self._sockets: set[socket.socket] = set()
        _run(self._accept)

    def harm(self, what: str) -> None:
        """From now on; "" heals. One of HARMS."""
        assert what in ("", *HARMS), what
        assert self._exchange is _Exchange or what not in OF_FRAMES, what
        with self._changed:
            self._harm = what
            self._changed.notify_all()
            ends = list(self._sockets) if what == "cut" else []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.harm("cut")

    def _wait_heard(self) -> str:
        """The harm, once it is not silence."""
        with self._changed:
            self._changed.wait_for(lambda: self._harm != "silent")
            return self._harm

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._closed:
                near, _ = self._listener.accept()
                _run(self._serve, near)

    def _serve(self, near: socket.socket) -> None:
        with near:
            self._sockets.add(near)
            try:
                if self._wait_heard() == "cut":
                    return
                with socket.create_connection(self._to) as far:
                    self._sockets.add(far)
                    for end in (near, far):
                        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._exchange(self._wait_heard, near, far).run()
                    self._sockets.discard(far)
            except OSError:
                pass  # an end has closed, or the broker is down
            finally:
                self._sockets.discard(near)


class _Exchange:
    """One connection. asked: API key and version by correlation id."""

    def __init__(self, harm: Callable[[], str], near: socket.socket, far: socket.socket) -> None:
        self._harm, self._near, self._far = harm, near, far
        self._asked: dict[int, tuple[int, int]] = {}
        self._was_cut = False

    def run(self) -> None:
        back = _run(self._responses)
        with suppress(OSError):
            for frame in read_frames(self._near):
                key, version, correlation_id = struct.unpack_from(">hhi", frame, 4)
                self._asked[correlation_id] = key, version
                self._harm()
                self._far.sendall(frame)
        self._end()
        back.join()

    def _responses(self) -> None:
        with suppress(OSError):
            for frame in read_frames(self._far):
                for one in self._sent(frame, self._harm()):
                    self._near.sendall(one)
                if self._was_cut:
                    break
        self._harm()  # the end of a connection is not heard in silence either
        self._end()

    def _sent(self, frame: bytes, harm: str) -> list[bytes]:
        """What the client gets in the place of a response."""
        (correlation_id,) = struct.unpack_from(">i", frame, 4)
        key, version = self._asked.pop(correlation_id, (ApiKey.API_VERSIONS, 0))
        if key in _UNHARMED:
            return [frame]
        if harm == "late":
            time.sleep(LATE_S)
        if harm == "once":
            self._was_cut = True
            return []
        if harm == "errors":
            return [wrong(frame, key, version)]
        return [frame, frame] if harm == "doubled" else [frame]

    def _end(self) -> None:
        for end in (self._near, self._far):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class _Bytes(_Exchange):
    """One connection, of which nobody here knows what it says."""

    def run(self) -> None:
        back = _run(self._pass_on, self._far, self._near, True)
        self._pass_on(self._near, self._far, False)
        back.join()

    def _pass_on(self, source: socket.socket, target: socket.socket, back: bool) -> None:
        with suppress(OSError):
            while part := source.recv(1 << 16):
                harm = self._harm()
                if back and harm == "late":
                    time.sleep(LATE_S)
                if back and harm == "once":
                    break
                target.sendall(part)
        self._harm()  # the end of a connection is not heard in silence either
        self._end()


def wrong(frame: bytes, key: int, version: int) -> bytes:
    """The same response with an error in each place for one."""
    correlation_id, at = decode_response_header(frame, key, version, 4)
    message = codec.decode_exact(response_class(key), version, frame, at)
    _spoil(message, WRONG.get(key, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    return response_frame(message, key, version, correlation_id)


def _spoil(struct_or_list: Any, code: int) -> None:
    if isinstance(struct_or_list, list):
        for one in struct_or_list:
            _spoil(one, code)
    elif isinstance(struct_or_list, Struct):
        for name in type(struct_or_list).__slots__:
            if name == "error_code":
                struct_or_list.error_code = code
            else:
                _spoil(getattr(struct_or_list, name, None), code)


def _run(work: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread
