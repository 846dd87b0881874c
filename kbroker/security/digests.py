"""Digests of OpenSSL, which is loaded with the first of them: it takes half a MiB in each process,
and a broker that knows no passwords needs none.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

# OpenSSL is some times faster, and lets other threads run meanwhile.
_SMALL_BYTES = 1 << 20


def load() -> None:
    """For a process that forks those that will need them."""
    import hashlib  # noqa: F401
    import hmac  # noqa: F401


def sha256(data: bytes) -> bytes:
    """SHA-256 by the interpreter's own code, where that is known, without OpenSSL."""
    own = _own_sha256()
    if own is None or len(data) > _SMALL_BYTES:
        return digest("sha256", data)
    return bytes(own(data).digest())


@cache
def _own_sha256() -> Any:
    """The interpreter's ``sha256``, as ``hashlib`` has it where there is no OpenSSL; or None."""
    for module in ("_sha2", "_sha256"):  # since Python 3.12, before
        with suppress(ImportError):
            return import_module(module).sha256
    return None


def digest(name: str, data: bytes) -> bytes:
    import hashlib

    return hashlib.new(name, data).digest()


def hmac_digest(key: bytes, data: bytes, name: str) -> bytes:
    import hmac

    return hmac.digest(key, data, name)


def pbkdf2(
    name: str, password: bytes, salt: bytes, iterations: int, size: int | None = None
) -> bytes:
    """size: in bytes; None: as many as the digest has. Takes milliseconds."""
    import hashlib

    return hashlib.pbkdf2_hmac(name, password, salt, iterations, size)


def is_same(left: bytes, right: bytes) -> bool:
    """Takes as long whether they differ at the beginning or at the end."""
    import hmac

    return hmac.compare_digest(left, right)
