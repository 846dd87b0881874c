"""The .properties format, each rule of it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from kbroker.properties import PropertiesError, parse_properties, read_properties

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("", []),
        ("# a comment\n! another\n\n   \t\n", []),
        ("a=1", [("a", "1")]),
        ("a = 1  ", [("a", "1  ")]),
        ("a:1\nb : 2", [("a", "1"), ("b", "2")]),
        ("a 1", [("a", "1")]),
        ("a\t=\t1", [("a", "1")]),
        ("a", [("a", "")]),
        ("a=", [("a", "")]),
        ("a==1", [("a", "=1")]),
        ("a=b=c:d", [("a", "b=c:d")]),
        ("  a=1", [("a", "1")]),
        ("a=1\r\nb=2\rc=3", [("a", "1"), ("b", "2"), ("c", "3")]),
        ("a=1,\\\n   2,\\\n   3\nb=4", [("a", "1,2,3"), ("b", "4")]),
        ("a=1\\\n# not a comment", [("a", "1# not a comment")]),
        ("a=ends\\\\\nb=2", [("a", "ends\\"), ("b", "2")]),
        ("a=1\\", [("a", "1")]),
        ("# comment \\\na=1", [("a", "1")]),
        ("a\\=b=1", [("a=b", "1")]),
        ("a\\ b=1", [("a b", "1")]),
        ("a=\\t\\n\\r\\f\\q", [("a", "\t\n\r\fq")]),
        ("a=\\u0041\\u20ac", [("a", "A€")]),
        ("a=1 # no comment here", [("a", "1 # no comment here")]),
        ("a=1\na=2", [("a", "1"), ("a", "2")]),
    ],
)
def test_parse_follows_the_format(text, pairs):
    assert parse_properties(text) == pairs


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u12g4", "x=1\na=\\u"])
def test_parse_broken_escape_names_the_line(text):
    with pytest.raises(PropertiesError, match=rf"line {text.count(chr(10)) + 1}"):
        parse_properties(text)


def test_read_takes_utf8_with_mark_and_latin1(tmp_path):
    utf8, latin1 = tmp_path / "utf8", tmp_path / "latin1"
    utf8.write_bytes(b"\xef\xbb\xbfa=" + "é".encode())
    latin1.write_bytes(b"a=\xe9")

    assert read_properties(str(utf8)) == [("a", "é")]
    assert read_properties(str(latin1)) == [("a", "é")]


def test_file_without_end_is_refused_after_some_bytes() -> None:
    with pytest.raises(OSError, match="More than"):
        read_properties("/dev/zero")


def test_fifo_is_only_waited_for_at_a_start(tmp_path: Path) -> None:
    """``-c <(envsubst < template)`` is one; SIGHUP must not wait for a writer."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with pytest.raises(OSError, match="Not a regular file"):
        read_properties(str(path), regular_only=True)
    writer = threading.Thread(target=path.write_text, args=("a=1\n",))
    writer.start()

    assert read_properties(str(path)) == [("a", "1")]

    writer.join()
