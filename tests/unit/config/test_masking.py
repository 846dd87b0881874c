"""What a report shows of settings and lines."""

from __future__ import annotations

import pytest

from kbroker.config.loader import load_properties
from kbroker.config.masking import masked_settings, without_secrets

pytestmark = pytest.mark.unit


def test_passwords_and_unknown_settings_are_hidden() -> None:
    config, _ = load_properties(
        [
            ("ssl.key.password", "one"),
            ("listener.name.external.ssl.keystore.password", "two"),
            ("listeners", "EXTERNAL://:9093"),
            ("listener.security.protocol.map", "EXTERNAL:PLAINTEXT"),
            ("inter.broker.listener.name", "EXTERNAL"),
            ("log.retention.hours", "5"),
        ],
        {"zookeeper.ssl.keystore.password": "three"},
    )

    shown = masked_settings(config)

    assert shown["log.retention.hours"] == "5"
    assert {"one", "two", "three"}.isdisjoint(shown.values())
    assert shown["ssl.key.password"] == "(hidden)"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('user="a" password="b c" x', 'user="a" password="(hidden)" x'),
        ("sasl.password=secret, next=1", "sasl.password=(hidden), next=1"),
        ('{"token": "abc", "n": 1}', '{"token": "(hidden)", "n": 1}'),
        ("http://user:pw@host:80/x", "http://user:(hidden)@host:80/x"),
        ("group billing has 3 members", "group billing has 3 members"),
        ("PLAINTEXT://host:9092", "PLAINTEXT://host:9092"),
    ],
)
def test_what_looks_like_a_password_is_hidden(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
