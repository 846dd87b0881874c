"""Parsing of values as in Kafka, in ASCII only."""

from __future__ import annotations

import pytest

from kbroker.config.key import (
    BOOLEAN,
    DOUBLE,
    DOUBLE_MAX,
    INT,
    LIST,
    LONG,
    LOW,
    PASSWORD,
    SHORT,
    STRING,
    Key,
    ValueRule,
    format_double,
)
from kbroker.errors import ConfigError

pytestmark = pytest.mark.unit


def key(type: int, **rules: object) -> Key:
    return Key("a.key", type, None, LOW, "doc", **rules)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        (BOOLEAN, "true", True),
        (BOOLEAN, " FALSE\t", False),
        (INT, " 12 ", 12),
        (INT, "+5", 5),
        (INT, "-2147483648", -(2**31)),
        (INT, "2147483647", 2**31 - 1),
        (INT, "007", 7),
        (SHORT, "-32768", -32768),
        (LONG, "9223372036854775807", 2**63 - 1),
        (DOUBLE, "0.9d", 0.9),
        (DOUBLE, "1e3", 1000.0),
        (DOUBLE, ".5", 0.5),
        (STRING, "  a b  ", "a b"),
        (STRING, "", ""),
        (LIST, "", ()),
        (LIST, "a , b,c", ("a", "b", "c")),
        (PASSWORD, " secret ", "secret"),
    ],
)
def test_parse_good_text_gives_typed_value(type, text, value):
    assert key(type).parse(text) == value


@pytest.mark.parametrize(
    ("type", "text"),
    [
        (BOOLEAN, "yes"),
        (BOOLEAN, "1"),
        (BOOLEAN, ""),
        (INT, ""),
        (INT, "-"),
        (INT, "1_000"),
        (INT, "١٢"),  # Arabic digits
        (INT, "²"),
        (INT, "1.0"),
        (INT, "0x10"),
        (INT, "2147483648"),
        (INT, "-2147483649"),
        (SHORT, "32768"),
        (LONG, "9223372036854775808"),
        (LONG, "1" * 5000),
        (DOUBLE, "nan"),
        (DOUBLE, "inf"),
        (DOUBLE, "1e999"),
        (DOUBLE, "1_0.5"),
        (DOUBLE, "0x1p3"),
        (DOUBLE, ""),
        (STRING, "a\0b"),
        (STRING, "a\nERROR b"),
        (LIST, "a,b\rc"),
    ],
)
def test_parse_bad_text_is_refused(type, text):
    with pytest.raises(ConfigError):
        key(type).parse(text)


def test_range_holds_at_its_ends_and_fails_beyond():
    ranged = key(INT, low=1, high=3)

    assert [ranged.parse(str(n)) for n in (1, 3)] == [1, 3]
    for n in (0, 4):
        with pytest.raises(ConfigError):
            ranged.parse(str(n))


def test_one_of_list_checks_each_item():
    policy = key(LIST, one_of=("compact", "delete"))

    assert policy.parse("compact,delete") == ("compact", "delete")
    with pytest.raises(ConfigError):
        policy.parse("delete,shred")


def test_error_names_key_value_and_allowed():
    even = key(INT, low=0, check=ValueRule("even", lambda n: n % 2 == 0))

    with pytest.raises(ConfigError) as raised:
        even.parse("3")

    assert raised.value.key == "a.key"
    assert raised.value.value == "3"
    assert "at least 0" in raised.value.allowed
    assert "even" in raised.value.allowed


def test_error_is_one_short_line_whatever_came():
    with pytest.raises(ConfigError) as raised:
        key(INT).parse("1\nERROR forged" + "x" * 10_000)

    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


def test_error_of_a_password_hides_it():
    secret = key(PASSWORD, check=ValueRule("long", lambda text: len(text) > 100))

    with pytest.raises(ConfigError) as raised:
        secret.parse("hunter2")

    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (0.0, "0.0"),
        (0.001, "0.001"),
        (0.00075, "7.5E-4"),
        (1e-7, "1.0E-7"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (12345678.5, "1.23456785E7"),
        (-2e10, "-2.0E10"),
        (1e22, "1.0E22"),
        (DOUBLE_MAX, "1.7976931348623157E308"),
    ],
)
def test_format_double_prints_as_java(value, text):
    assert format_double(value) == text
    assert float(text) == value


def test_format_gives_back_what_was_parsed():
    assert key(BOOLEAN).format(True) == "true"
    assert key(LIST).format(("a", "b")) == "a,b"
    assert key(LIST).format(()) == ""
    assert key(LONG).format(-1) == "-1"
    assert key(STRING).format(None) is None
