"""How records look in a terminal, and what lines mean as records."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.cli import records_text
from kbroker.cli.arguments import Usage
from kbroker.client.batches.topic_reader import ReadRecord

pytestmark = pytest.mark.unit

BYTES = st.none() | st.binary(max_size=8)


@given(
    BYTES,
    BYTES,
    st.lists(
        st.tuples(st.text(max_size=4).map(lambda text: text.encode("utf-8", "replace")), BYTES)
    ),
)
def test_any_record_comes_back_from_its_json(key, value, headers):
    record = ReadRecord("t", 1, 2, 3, key, value, tuple(headers))

    line = records_text.json_line(record)

    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert records_text.record_of_json(line) == {
        "key": key,
        "value": value,
        "headers": [(name.decode(), content) for name, content in headers],
        "partition": 1,
        "timestamp_ms": 3,
    }


def test_header_whose_name_is_no_text_keeps_its_bytes():
    """Two such names were the same text."""
    names = (b"\xff", b"\xfe", "\ufffd".encode())
    record = ReadRecord("t", 1, 2, 3, b"k", b"v", tuple((name, b"1") for name in names))

    fields = records_text.record_of_json(records_text.json_line(record))

    assert fields["headers"] == [(b"\xff", b"1"), (b"\xfe", b"1"), ("\ufffd", b"1")]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"headers": [{"name_base64": "*"}]}', "name_base64 is not base 64"),
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"headers": 1}', "headers: write"),
        (b'{"headers": [{"value": "x"}]}', "headers: write"),
        (b'{"value_base64": "*"}', "value_base64 is not base 64"),
        (b'{"value_base64": 1}', "value_base64 is not base 64"),
        (b'{"value": "\\ud800"}', "value is not text"),
        (b'{"partition": "1"}', "partition is not a whole number"),
        (b'{"timestamp": 1e9}', "timestamp is not a whole number"),
        (b'{"timestamp": 99999999999999999999}', "timestamp is not a whole number"),
    ],
)
def test_line_that_is_no_record_says_why(line, why):
    with pytest.raises(records_text.BadLine) as caught:
        records_text.record_of_json(line)

    assert why in str(caught.value)


def test_value_may_be_any_json_and_headers_a_mapping():
    line = json.dumps({"value": {"a": [1]}, "headers": {"h": "v"}}).encode()

    fields = records_text.record_of_json(line)

    assert fields["value"] == b'{"a": [1]}'
    assert fields["headers"] == [("h", b"v")]


def test_format_has_every_field():
    record = ReadRecord("t", 1, 2, 3, b"k", None, ((b"a", b"b"), (b"c", None)))

    text = records_text.compiled("%t %p %o %T %k %v %K %S %h %%\\t\\\\\\n")(record)

    assert text == b"t 1 2 3 k  1 -1 a=b,c=NULL %\t\\\n"


@pytest.mark.parametrize("text", ["%", "%x", "\\", "\\x"])
def test_wrong_format_is_wrong_usage(text):
    with pytest.raises(Usage):
        records_text.compiled(text)


def test_yaml_has_what_json_has():
    record = ReadRecord("t", 1, 2, 3, b"on", "a\x85\U0001f600\n".encode(), ((b"h", b"\xff"),))

    assert records_text.yaml_item(record).decode() == (
        "- topic: t\n  partition: 1\n  offset: 2\n  timestamp: 3\n"
        '  key: "on"\n  value: "a\\u0085\\U0001f600\\n"\n'
        '  headers:\n    - name: h\n      value_base64: "/w=="\n'
    )


def test_columns_of_a_table_fit_the_rows_that_came_together():
    table = records_text.RecordTable()
    row = ReadRecord("t", 1, 2, 1000, b"k", b"v\x1b[1m", ((b"a", b"b"), (b"c", None)))

    assert table(row) == table(row._replace(key=None, value=None, headers=())) == b""
    assert table.rest().decode() == (
        "PARTITION  OFFSET  TIME                           KEY  HEADERS   VALUE\n"
        "1          2       1970-01-01T00:00:01.000+00:00  k    a=b, c=-  v\\x1b[1m\n"
        "1          2       1970-01-01T00:00:01.000+00:00  -              -\n"
    )
    assert table.rest() == b""
    table(row._replace(offset=12345678, key=b"", value=b"\xff", timestamp=-1, headers=()))
    assert table.rest().decode() == (
        "1          12345678  -1                                            \\xff\n"
    )


def test_table_does_not_wait_for_more_than_a_hundred_rows():
    table = records_text.RecordTable()
    row = ReadRecord("t", 0, 0, 0, None, None, ())

    written = [table(row) for _ in range(300)]

    assert [at for at, text in enumerate(written) if text] == [99, 200]
    assert sum(text.count(b"\n") for text in written) == 202


@pytest.mark.parametrize(
    ("text", "line", "fields"),
    [
        ("%k=%v", b"a=b=c", {"key": b"a", "value": b"b=c", "headers": []}),
        ("%v\\n", b"a\nb", {"key": None, "value": b"a\nb", "headers": []}),
        (
            "%T\\t%p%%%h|%k",
            b"5\t7%a=b,c=NULL|k",
            {"key": b"k", "value": None, "timestamp_ms": 5, "partition": 7,
             "headers": [("a", b"b"), ("c", None)]},
        ),
        ("%T %v", b"-1 x", {"key": None, "value": b"x", "timestamp_ms": None, "headers": []}),
    ],
)  # fmt: skip
def test_line_of_a_format_is_a_record(text, line, fields):
    assert records_text.record_of_format(text)(line) == fields


@pytest.mark.parametrize(("text", "line"), [("%k=%v", b"a"), ("%T", b"now"), ("%h|", b"a|")])
def test_line_that_does_not_have_the_format_is_no_record(text, line):
    with pytest.raises(records_text.BadLine):
        records_text.record_of_format(text)(line)


@pytest.mark.parametrize("text", ["texts", "%K", "%k%k", "%", "%o", ""])
def test_format_that_cannot_be_read_is_wrong_usage(text):
    with pytest.raises(Usage):
        records_text.record_of_format(text)
