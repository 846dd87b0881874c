"""Digests are OpenSSL's, and a broker without passwords does not load it."""

from __future__ import annotations

import hashlib
import hmac
import subprocess
import sys

import pytest

from kbroker.security.digests import digest, hmac_digest, is_same, pbkdf2, sha256

HEAVY = ("_hashlib", "_ctypes", "hmac", "re2", "uuid", "shutil", "encodings.idna")


@pytest.mark.parametrize("name", ["sha256", "sha512"])
def test_digests_are_those_of_the_standard_library(name: str) -> None:
    assert digest(name, b"data") == hashlib.new(name, b"data").digest()
    assert hmac_digest(b"key", b"data", name) == hmac.new(b"key", b"data", name).digest()
    expected = hashlib.pbkdf2_hmac(name, b"password", b"salt", 3, 16)
    assert pbkdf2(name, b"password", b"salt", 3, 16) == expected


@pytest.mark.parametrize("size", [0, 63, 1 << 20, (1 << 20) + 1])
def test_sha256_is_the_same_with_and_without_openssl(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    assert sha256(data[:size]) == hashlib.sha256(data[:size]).digest()


def test_small_data_is_digested_without_openssl() -> None:
    code = """
import sys
from kbroker.security.digests import sha256
sha256(b"image of a store")
print("_hashlib" in sys.modules)
sha256(bytes(2 << 20))
print("_hashlib" in sys.modules)
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.split() == ["False", "True"]


def test_only_equal_bytes_are_the_same() -> None:
    assert is_same(b"abc", b"abc")
    assert not is_same(b"abc", b"abd")
    assert not is_same(b"abc", b"abcd")


def test_what_few_brokers_need_is_not_loaded_before_the_fork() -> None:
    """It would take memory in each of a broker's processes."""
    code = f"""
import sys
import kbroker.supervisor.launch, kbroker.workers.controller.process
import kbroker.workers.network.network
import kbroker.workers.io.io_worker
from kbroker.supervisor.listening import _resolve
_resolve("127.0.0.1", 0)
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "[]"
