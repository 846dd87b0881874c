"""A broker of a few lines with scripted responses: wrong ones, late ones, or with SASL."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from support.network.frames import read_frames, response_frame

from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey, request_class
from kbroker.protocol.header import decode_request_header
from kbroker.protocol.message import Message
from kbroker.protocol.messages.api_versions import ApiVersionsResponse
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from kbroker.protocol.messages.sasl_handshake import SaslHandshakeResponse

# A request and the connection's own dictionary, which has the request's "frame_of" too: it creates
# the bytes of a response. The response, raw bytes, pieces of them with pauses in the iterator, or
# None: the connection is closed.
Respond = Callable[[Any, dict[str, Any]], Message | bytes | Iterator[bytes] | None]


class FakeBroker:
    """answers: responses by API key. Other requests are served like a broker without topics.

    context: clients speak TLS; it may be set later.
    """

    def __init__(
        self,
        answers: dict[int, Respond] | None = None,
        versions: dict[int, tuple[int, int]] | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.context = context
        self.connections = 0
        self.answers: dict[int, Respond] = {
            ApiKey.API_VERSIONS: self.api_versions,
            ApiKey.METADATA: self.metadata,
            **(answers or {}),
        }
        self.versions = versions or {int(key): key.versions for key in ApiKey if key < 40}
        self.requests: list[Any] = []
        self.headers: list[tuple[int, int]] = []  # of these: API key and version
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.bootstrap = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> FakeBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()

    def api_versions(self, request: Any, state: dict[str, Any]) -> Message:
        rows = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, (first, last) in self.versions.items()
        ]
        return ApiVersionsResponse(api_keys=rows)

    def metadata(self, request: Any, state: dict[str, Any]) -> Message:
        broker = MetadataResponse.MetadataResponseBroker(
            node_id=0, host="127.0.0.1", port=self.port
        )
        return MetadataResponse(brokers=[broker], topics=[])

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        state: dict[str, Any] = {}
        with suppress(OSError), connection:
            self.connections += 1
            if self.context is not None:
                connection = encrypted(connection, self.context)
            for frame in read_frames(connection):
                header = decode_request_header(frame, 4)
                key, version = header.api_key, header.api_version
                request = codec.decode_exact(request_class(key), version, frame, header.end_offset)
                self.requests.append(request)
                self.headers.append((key, version))

                def frame_of(
                    message: Message,
                    key: int = key,
                    version: int = version,
                    correlation_id: int = header.correlation_id,
                ) -> bytes:
                    return response_frame(message, key, version, correlation_id)

                state["frame_of"] = frame_of
                response = self.answers[key](request, state)
                if response is None:
                    return
                if isinstance(response, Message):
                    response = frame_of(response)
                for piece in [response] if isinstance(response, bytes) else response:
                    connection.sendall(piece)


def encrypted(connection: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """After the handshake. Raises OSError, once the client has read why."""
    made = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
    try:
        made.do_handshake()
    except ssl.SSLError:
        # Closed with bytes of the client unread, it is reset, and the alert is lost.
        with socket.socket(fileno=made.detach()) as ending:
            ending.shutdown(socket.SHUT_WR)
            while ending.recv(1 << 16):
                pass
        raise
    return made


def sasl_responses(
    mechanism: str, username: str, password: str, lifetime_ms: int = 0
) -> dict[int, Respond]:
    """The server's side of PLAIN or SCRAM, written from the RFCs. lifetime_ms: of a session."""

    def handshake(request: Any, state: dict[str, Any]) -> Message:
        known = request.mechanism == mechanism
        return SaslHandshakeResponse(error_code=0 if known else 33, mechanisms=[mechanism])

    def failed(why: str) -> Message:
        return SaslAuthenticateResponse(error_code=58, error_message=why)

    def plain(request: Any, state: dict[str, Any]) -> Message:
        if bytes(request.auth_bytes) != f"\0{username}\0{password}".encode():
            return failed("wrong user or password")
        return SaslAuthenticateResponse(auth_bytes=b"", session_lifetime_ms=lifetime_ms)

    def scram(request: Any, state: dict[str, Any]) -> Message:
        digest = "sha256" if mechanism.endswith("256") else "sha512"
        text = bytes(request.auth_bytes).decode()
        if "first" not in state:
            state["bare"] = text[3:]
            nonce = text.rpartition("r=")[2] + "server"
            state["salt"] = os.urandom(12)
            salt = base64.b64encode(state["salt"]).decode()
            state["first"] = f"r={nonce},s={salt},i=4096"
            return SaslAuthenticateResponse(auth_bytes=state["first"].encode())
        without, _, proof = text.rpartition(",p=")
        salted = hashlib.pbkdf2_hmac(digest, password.encode(), state["salt"], 4096)
        signed = f"{state['bare']},{state['first']},{without}".encode()
        stored = hashlib.new(digest, hmac.digest(salted, b"Client Key", digest)).digest()
        signature = hmac.digest(stored, signed, digest)
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(digest, key).digest() != stored or f"n={username}," not in state["bare"]:
            return failed("wrong user or password")
        server = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
        final = b"v=" + base64.b64encode(server)
        return SaslAuthenticateResponse(auth_bytes=final, session_lifetime_ms=lifetime_ms)

    return {
        ApiKey.SASL_HANDSHAKE: handshake,
        ApiKey.SASL_AUTHENTICATE: plain if mechanism == "PLAIN" else scram,
    }
