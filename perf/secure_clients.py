"""Clients of the benchmarks over TLS and SASL: tls_load.c, and logins with SCRAM.

The figures of a run are those between two calls of ``mark``: after the warm-up, and at the end.
"""

import base64
import hashlib
import hmac
import secrets
import socket
import ssl
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from perf.frames import request_frame

SOURCE = Path(__file__).with_name("tls_load.c")
API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
MECHANISM = "SCRAM-SHA-512"
_DIGEST = "sha512"
_HANG_S = 60.0

Mark = Callable[[], None]


@cache
def program() -> str:
    """tls_load.c, compiled once. Raises RuntimeError."""
    place = Path(tempfile.mkdtemp(prefix="perf-tls-"))
    made = place / "tls_load"
    command = ["cc", "-O2", "-pthread", "-o", str(made), str(SOURCE), "-lssl", "-lcrypto"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(
            f"{SOURCE.name} needs a C compiler and OpenSSL's headers (libssl-dev):\n{done.stderr}"
        )
    return str(made)


def tls_load(
    address: tuple[str, int],
    ca_file: Path | None,
    frames: Sequence[bytes],
    prefix: bytes,
    count: int,
    seconds: float,
    warmup_s: float,
    mark: Mark,
    *,
    what: str = "load",
    user: str = "",
) -> dict[str, float]:
    """Run tls_load.c: requests with one in flight on ``count`` sockets, one a second on each
    ("paced"), or connections ("connect") or logins ("login") by ``count`` threads. Raises
    RuntimeError.

    ca_file: None, of paced requests, for no TLS. prefix: of an answer; of a login, the salted
    password. ``mark`` is also called when all sockets of paced requests are connected.
    """
    with tempfile.TemporaryDirectory(prefix="perf-frames-") as place:
        files = [Path(place) / f"frame{n}" for n in range(len(frames))]
        for file, frame in zip(files, frames, strict=True):
            file.write_bytes(frame)
        expected = Path(place) / "prefix"
        expected.write_bytes(prefix)
        words = [program(), what, address[0], str(address[1])]
        words += [str(ca_file or "-"), str(seconds), str(warmup_s), str(count), str(expected)]
        with subprocess.Popen(
            [*words, *map(str, files), *([user] if user else [])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            assert running.stdout is not None and running.stderr is not None
            for line in running.stdout:
                if line.strip() in ("connected", "warm", "done"):
                    mark()
                    continue
                total, took, p50, p99, used = map(float, line.split())
                break
            else:
                raise RuntimeError(running.stderr.read().strip() or "tls_load ended early")
    if not total:
        raise RuntimeError(f"no answer within {took:.1f} s")
    return {"count": total, "seconds": took, "p50_us": p50, "p99_us": p99, "cpu_s": used}


def api_versions_frame() -> bytes:
    return request_frame(API_VERSIONS, 0, b"")


def sasl_handshake_frame() -> bytes:
    name = MECHANISM.encode()
    return request_frame(SASL_HANDSHAKE, 1, struct.pack(">h", len(name)) + name)


# -- SCRAM


class Login:
    """Connects over TLS and logs in with SCRAM-SHA-512.

    ``salted`` is the salted password, of the last login.
    """

    def __init__(self, address: tuple[str, int], ca_file: Path, user: str, password: str) -> None:
        self._address, self._user, self._password = address, user, password.encode()
        self._context = ssl.create_default_context(cafile=str(ca_file))
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.salted = b""

    def run(self) -> None:
        """One login. Raises OSError, ValueError."""
        plain = socket.create_connection(self._address, _HANG_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._context.wrap_socket(plain, server_hostname=self._address[0]) as secured:
            _call(secured, sasl_handshake_frame())
            nonce = secrets.token_urlsafe(18)
            first_bare = f"n={self._user},r={nonce}"
            server_first = _token(secured, f"n,,{first_bare}".encode()).decode()
            fields = dict(part.split("=", 1) for part in server_first.split(","))
            salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
            self.salted = hashlib.pbkdf2_hmac(_DIGEST, self._password, salt, iterations)
            without = f"c=biws,r={fields['r']}"
            signed = f"{first_bare},{server_first},{without}".encode()
            client_key = hmac.digest(self.salted, b"Client Key", _DIGEST)
            stored = hashlib.new(_DIGEST, client_key).digest()
            signature = hmac.digest(stored, signed, _DIGEST)
            proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
            final = f"{without},p={base64.b64encode(proof).decode()}".encode()
            if not _token(secured, final).startswith(b"v="):
                raise ValueError("the broker did not prove that it knows the password")


def _call(secured: ssl.SSLSocket, frame: bytes) -> bytes:
    """The response without its length and correlation id. Raises ValueError for an error code."""
    secured.sendall(frame)
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack(">i", data[:4])[0]:
        part = secured.recv(65536)
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    (code,) = struct.unpack_from(">h", data, 8)
    if code:
        raise ValueError(f"error {code}: {data[10:]!r}")
    return data[8:]


def _token(secured: ssl.SSLSocket, token: bytes) -> bytes:
    """Send a token with SaslAuthenticate 0; the broker's token."""
    body = struct.pack(">i", len(token)) + token
    response = _call(secured, request_frame(SASL_AUTHENTICATE, 0, body))
    (message_bytes,) = struct.unpack_from(">h", response, 2)
    at = 4 + max(message_bytes, 0)
    (size,) = struct.unpack_from(">i", response, at)
    return response[at + 4 : at + 4 + size]
