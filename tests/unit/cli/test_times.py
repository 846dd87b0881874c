"""Points in time and durations, as people write them."""

from __future__ import annotations

import argparse

import pytest

from kbroker.cli import times

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1700000000123", 1_700_000_000_123),
        ("1970-01-02", 86_400_000),
        ("2023-11-14T22:13:20.123", 1_700_000_000_123),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
    ],
)
def test_time_is_utc_unless_it_has_a_zone(text, ms):
    assert times.time_ms(text) == ms


@pytest.mark.parametrize("text", ["", "soon", "-1", "1969-12-31", "9" * 16, "9" * 400, "١٢"])
def test_what_is_no_time_is_rejected(text):
    with pytest.raises(argparse.ArgumentTypeError):
        times.time_ms(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500),
        ("90s", 90_000),
        ("15m", 900_000),
        ("1h30m", 5_400_000),
        ("7d", 604_800_000),
        ("PT1H30M", 5_400_000),
        ("P1DT0.5S", 86_400_500),
        ("p2w", 1_209_600_000),
    ],
)
def test_duration_is_short_or_iso(text, ms):
    assert times.duration_ms(text) == ms


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "5", "h", "1x", "1h 2m", "-1h", "9" * 30 + "s", "9999999999w"]
)
def test_what_is_no_duration_is_rejected(text):
    with pytest.raises(argparse.ArgumentTypeError):
        times.duration_ms(text)


def test_time_is_written_in_utc():
    assert times.time_text(1_700_000_000_123) == "2023-11-14T22:13:20.123+00:00"
