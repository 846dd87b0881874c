"""Log lines and rate limits."""

from __future__ import annotations

import logging

import pytest

from kbroker.logcontext import LIMITER_KEYS_MAX, LineFormatter, RateLimit

pytestmark = pytest.mark.unit


def record(text: str, *arguments: object, exc_info: object = None) -> logging.LogRecord:
    return logging.LogRecord("kbroker.x", logging.WARNING, "f", 1, text, arguments, exc_info)  # type: ignore[arg-type]


def test_line_has_time_level_process_and_message() -> None:
    line = LineFormatter("io-0").format(record("%d of %s", 1, "two"))

    time, rest = line[:23], line[23:]
    assert len(time.split()) == 2
    assert rest == " WARNING [io-0] 1 of two"


def test_lines_after_the_first_are_indented() -> None:
    """A line that does not start with a time belongs to the one before; nobody can forge a line."""
    try:
        raise ValueError("x\n2026-01-01 00:00:00.000 ERROR [io-0] forged")
    except ValueError as error:
        line = LineFormatter("io-0").format(
            record("failed", exc_info=(type(error), error, error.__traceback__))
        )

    assert all(text.startswith("    ") for text in line.split("\n")[1:])
    assert "Traceback" in line


def test_repeats_are_counted_until_the_interval_has_passed() -> None:
    now = 0.0
    limit = RateLimit(10.0, clock=lambda: now)

    counts = [limit.due("a"), limit.due("a"), limit.due("a")]
    now = 10.0
    counts.append(limit.due("a"))
    counts.append(limit.due("b"))

    assert counts == [1, 0, 0, 3, 1]


def test_keys_are_bounded() -> None:
    limit = RateLimit(10.0, clock=lambda: 0.0)

    for number in range(LIMITER_KEYS_MAX + 5):
        assert limit.due(number) == 1

    assert len(limit._seen) == LIMITER_KEYS_MAX
