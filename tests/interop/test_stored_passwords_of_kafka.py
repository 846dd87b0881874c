"""Passwords in ZooKeeper are encrypted as by Apache Kafka 2.7.2: both read what either wrote."""

from __future__ import annotations

import subprocess
from base64 import b64decode

import pytest
from interop.drivers.java import FIRST_TEST_TIMEOUT_S, JVM_OPTIONS, SOURCES, java_missing

from kbroker.security.password_encoder import CBC, GCM, Encoding, PasswordEncoder
from perf.kafka_distribution import kafka_libraries

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

SECRET, PASSWORD = "the sécret", "pässword, with: a comma \U0001f511"
SOURCE = SOURCES / "core" / "StoredPassword.java"
HOW = [
    Encoding(),
    Encoding(cipher=GCM),
    Encoding(key_bits=256, iterations=10_000),
]


@pytest.fixture(autouse=True)
def clean_log() -> None:
    """The broker that other tests of this folder share is not needed."""


def kafka(verb: str, text: str, how: Encoding) -> str:
    jars = kafka_libraries(version="2.7.2")
    command = ["java", *JVM_OPTIONS, "-Dfile.encoding=UTF-8", "-Dsun.jnu.encoding=UTF-8",
               "-cp", f"{jars}/*", str(SOURCE), verb, SECRET, text, how.cipher,
               str(how.key_bits), str(how.iterations)]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={"LC_ALL": "C.UTF-8",
                                                                  "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("how", HOW, ids=["default", "gcm", "long"])
def test_password_of_kafka_is_decrypted(how: Encoding) -> None:
    text = kafka("encode", PASSWORD, how)

    assert PasswordEncoder([SECRET]).decode(text) == PASSWORD
    assert f"cipherAlgorithm:{how.cipher}" in text


@pytest.mark.parametrize("how", HOW, ids=["default", "gcm", "long"])
def test_password_is_decrypted_by_kafka(how: Encoding) -> None:
    text = PasswordEncoder([SECRET], how).encode(PASSWORD)

    # The encoder that decrypts has its own algorithms; the text says those that count.
    other = Encoding(cipher=how.cipher if how.cipher == GCM else CBC)
    assert b64decode(kafka("decode", text, other)).decode() == PASSWORD
