"""The verbs of ``kbroker`` with a listener that encrypts and asks for a password."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.security.secured import PASSWORDS, Site

from kbroker.cli import command
from kbroker.testing import Broker

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def broker(site) -> Iterator[Broker]:
    # Brokers and tools of the test itself have a listener of their own.
    with Broker(site.settings("PLAINTEXT", "SASL_SSL")) as started:
        yield started


@pytest.fixture
def run(broker, site, capsysbinary, monkeypatch, tmp_path):
    """With the settings in the user's own file, as after the first day."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("KBROKER_BOOTSTRAP_SERVER", raising=False)

    def call(*words: str, given: bytes = b"", **changed: str) -> tuple[int, bytes, str]:
        settings = {
            "bootstrap.servers": broker.listeners["SASL_SSL"],
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(site.ca_file),
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": PASSWORDS["alice"],
            # A setting of a consumer, which the same file may be for.
            "group.id": "g",
        } | {name.replace("_", "."): value for name, value in changed.items()}
        place = Path(tmp_path) / "kbroker"
        place.mkdir(exist_ok=True)
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        (place / "client.properties").write_text("".join(lines))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        code = command.main(words)
        captured = capsysbinary.readouterr()
        return code, captured.out, captured.err.decode()

    return call


def test_verbs_log_in_and_encrypt(run):
    assert run("topic", "create", "t", "-p", "1")[0] == 0
    assert run("produce", "t", given=b"secret\n") == (0, b"", "wrote 1 record to t\n")
    assert run("consume", "t", "--exit") == (0, b"secret\n", "")
    assert run("status")[0] == 0
    assert run("doctor")[0] == 0


@pytest.mark.parametrize("words", ["topic list", "produce t", "consume t --exit", "doctor"])
def test_wrong_password_is_one_line_without_it(run, words):
    code, out, err = run(*words.split(), given=b"x\n", sasl_password="wrong-word")

    assert code == 1
    assert "wrong-word" not in out.decode() + err
    assert err.count("\n") == 1 and err.startswith(f"kbroker {words.split()[0]}")


def test_doctor_says_what_is_wrong_with_the_certificate(run, tmp_path_factory):
    other = Site(tmp_path_factory.mktemp("other"))

    code, out, _ = run("doctor", "-o", "json", ssl_ca_location=str(other.ca_file))

    assert code == 1
    assert b"not trusted" in out and b"ssl.truststore.location" in out


def test_doctor_says_that_the_listener_may_expect_another_protocol(run):
    code, out, _ = run("doctor", "-o", "json", "--timeout", "3", security_protocol="PLAINTEXT")

    assert code == 1
    assert b"check security.protocol: the listener may expect another" in out
