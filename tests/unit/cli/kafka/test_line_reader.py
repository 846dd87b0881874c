"""Lines as records."""

from __future__ import annotations

import pytest

from kbroker.cli.kafka.line_reader import LineReader, LineReaderError

pytestmark = pytest.mark.unit


def record(line: str, **settings: str):
    return LineReader({name.replace("_", "."): text for name, text in settings.items()}).record(
        line
    )


def test_line_is_a_value():
    assert record("a\tb") == (None, b"a\tb", [])


def test_key_and_headers_are_split_off():
    found = record("a:1,b:2\tkey\tvalue\tmore", parse_key="TRUE ", parse_headers="true")

    assert found == (b"key", b"value\tmore", [("a", b"1"), ("b", b"2")])


def test_null_marker_stands_for_null_everywhere_but_in_header_keys():
    both = {"parse_key": "true", "parse_headers": "true", "null_marker": "N"}

    assert record("a:N\tN\tN", **both) == (None, None, [("a", None)])
    assert record("N\tk\tv", **both) == (b"k", b"v", [])
    with pytest.raises(
        LineReaderError, match="Header keys should not be equal to the null marker 'N'"
    ):
        record("N:1\tk\tv", **both)


def test_line_without_separator_is_an_error_unless_errors_are_ignored():
    with pytest.raises(LineReaderError, match="No key separator found on line number 1: 'x'"):
        record("x", parse_key="true")
    with pytest.raises(
        LineReaderError, match="No header key separator found in pair 'x' on line number 1"
    ):
        record("x\tv", parse_headers="true")
    assert record("x", parse_key="true", ignore_error="true") == (None, b"x", [])
    assert record("x\tv", parse_headers="true", ignore_error="true") == (None, b"v", [("x", None)])


def test_separators_that_are_equal_are_refused():
    with pytest.raises(
        LineReaderError, match=r"headers.delimiter and headers.separator may not be equal"
    ):
        record("x", headers_delimiter=",")
    with pytest.raises(LineReaderError, match=r"null.marker and key.separator may not be equal"):
        record("x", key_separator=",", null_marker=",")
