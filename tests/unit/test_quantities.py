"""Sizes and durations, as people write them: one text means the same in every command."""

from __future__ import annotations

import pytest

from kbroker.cli.operation_verbs import _bytes
from kbroker.quantities import iso_duration_ms, size_bytes, span_ms
from kbroker.spark.load.arguments import size_of

pytestmark = pytest.mark.unit

SIZES = {
    "1": 1,
    "512b": 512,
    "1k": 1024,
    "1KiB": 1024,
    "1kb": 1000,
    "512m": 512 << 20,
    "50MB": 50_000_000,
    "10 MiB": 10 << 20,
    "1.5GB": 1_500_000_000,
    "4g": 4 << 30,
    "4gi": 4 << 30,
    "2T": 2 << 40,
    "1_000": 1000,
    "1e6": 1_000_000,
    "9007199254740993": 9007199254740993,
}


@pytest.mark.parametrize(("text", "size"), SIZES.items())
def test_size_is_the_same_in_every_command(text: str, size: int) -> None:
    assert size_bytes(text) == size
    assert _bytes(text) == _bytes(f"{text}/s") == size_of(text) == size


@pytest.mark.parametrize(
    "text", ["", "0", "0.5", "-1", "m", "5x", "5 m b", "1mm", "inf", "nan", "1..5", "\u0661m"]
)
def test_what_is_no_size_is_none(text: str) -> None:
    assert size_bytes(text) is None


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT1H30M", 5_400_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("pt0.25s", 250),
        ("PT0,25S", 250),
        ("-PT1H", -3_600_000),
        ("PT-1H", -3_600_000),
        ("PT-0.5S", -500),
        ("-PT-0.5S", 500),
        ("P1D", 86_400_000),
        ("PT+6H", 21_600_000),
    ],
)
def test_iso_durations_are_those_of_java(text: str, ms: int) -> None:
    assert iso_duration_ms(text) == ms


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "P1H", "PT1D", "1h", "P1W", "P1Y", "PT1.5H", "PT1S ", "PT.5S"]
)
def test_what_java_does_not_take_is_none(text: str) -> None:
    assert iso_duration_ms(text) is None


def test_weeks_are_read_where_they_are_meant() -> None:
    assert iso_duration_ms("P2WT1S", has_weeks=True) == 1_209_601_000


def test_span_has_parts() -> None:
    assert span_ms("1h30m") == 5_400_000
    assert span_ms("500ms") == 500
    for text in ("", "5", "h", "1h 2m", "-1h"):
        assert span_ms(text) is None
