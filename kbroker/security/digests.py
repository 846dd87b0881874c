"""Digests of OpenSSL, which is loaded with the first of them: it takes half a MiB in each process,
and a broker that knows no passwords needs none.
"""

from __future__ import annotations


def load() -> None:
    """For a process that forks those that will need them."""
    import hashlib  # noqa: F401
    import hmac  # noqa: F401


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
