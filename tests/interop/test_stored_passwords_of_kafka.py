"""Passwords in ZooKeeper are encrypted as by Apache Kafka 2.7.2: both read what either wrote."""

from __future__ import annotations

import subprocess
from base64 import b64decode

import pytest
from support.drivers.java import (
    FIRST_TEST_TIMEOUT_S,
    JVM_OPTIONS,
    SOURCES,
    java_missing,
    libraries,
)
from support.drivers.kafka_tools import run_tool

from kbroker.security.password_encoder import CBC, GCM, Encoding, PasswordEncoder
from kbroker.testing import Broker
from perf.kafka_distribution import kafka_libraries

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

CONFIGS = "kafka.admin.ConfigCommand"
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


@pytest.mark.parametrize("version", ["2.7.2", "3.9.1"])
def test_password_is_set_by_kafkas_tool_and_not_described(version: str) -> None:
    jars = kafka_libraries(version="2.7.2")
    if version != "2.7.2":
        jars = libraries(version, "kafka-tools")
    name, value = "listener.name.plaintext.ssl.key.password", "Zq7-key"
    with Broker({"password.encoder.secret": SECRET}) as broker:
        named = ("--bootstrap-server", broker.bootstrap, "--entity-type", "brokers",
                 "--entity-name", "0")  # fmt: skip
        run_tool(jars, CONFIGS, *named, "--alter", "--add-config", f"{name}={value}")
        text = run_tool(jars, CONFIGS, *named, "--describe")

    assert f"{name}=null sensitive=true" in text
    assert value not in text + broker.log_text


def test_kafkas_tool_is_told_that_there_is_no_secret() -> None:
    jars = kafka_libraries(version="2.7.2")
    with Broker() as broker, pytest.raises(AssertionError) as raised:
        run_tool(
            jars, CONFIGS, "--bootstrap-server", broker.bootstrap, "--entity-type", "brokers",
            "--entity-name", "0", "--alter", "--add-config", "listener.name.x.ssl.key.password=x",
        )  # fmt: skip
    assert "Password encoder secret not configured" in str(raised.value)
