"""The hint in the log of a large read."""

from __future__ import annotations

import logging

import pytest

from kbroker.spark.sessions import hint_at_builder

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("records", "told", "is_said"),
    [
        (1_000_000, None, True),
        (1_000_000, "false", True),
        (1_000_000, "True", False),
        (999_999, None, False),
    ],
)
def test_large_read_through_tcp_says_what_makes_it_faster(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    records: int,
    told: str | None,
    is_said: bool,
) -> None:
    """Spark tells its Python workers how to reach the JVM."""
    monkeypatch.delenv("PYTHON_UNIX_DOMAIN_ENABLED", raising=False)
    if told is not None:
        monkeypatch.setenv("PYTHON_UNIX_DOMAIN_ENABLED", told)

    with caplog.at_level(logging.WARNING):
        hint_at_builder(records)

    assert ("kbroker.spark.builder()" in caplog.text) == is_said
