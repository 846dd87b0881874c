"""Parsing and formatting durations and offsets."""

import pytest

from kbroker.spark.options import option_values as v

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("5", 5),
        ("5ms", 5),
        ("3000us", 3),
        ("2s", 2000),
        ("15m", 900_000),
        ("1min", 60_000),
        ("2h", 7_200_000),
        (" 1D ", 86_400_000),
    ],
)
def test_durations_are_read_as_spark_reads_them(text, ms):
    assert v.parse_duration_ms("x", text) == ms


def test_offsets_text_is_sorted_and_without_blanks():
    offsets = {("b", 10): 5, ("b", 2): 1, ("a", 0): 123}

    assert v.format_offsets(offsets) == '{"a":{"0":123},"b":{"2":1,"10":5}}'
    assert v.parse_offsets(v.format_offsets(offsets), "x") == offsets
