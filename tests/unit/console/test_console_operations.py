"""What the API takes, and by which names it is called."""

from __future__ import annotations

import pytest

from kbroker.console.operation import (
    INTEGERS,
    SETTINGS,
    TEXT,
    Operation,
    Parameter,
)
from kbroker.console.operations import OPERATIONS
from kbroker.console.problems import BadRequest
from kbroker.exposition.own_hosts import is_own_host

pytestmark = pytest.mark.unit

NAMES = frozenset({"kafka.example", "machine"})


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:9644",
        "127.0.0.1",
        "10.1.2.3:9644",
        "[::1]",
        "[::1]:9644",
        "machine:1",
    ],
)
def test_host_that_nobody_else_can_point_here_is_accepted(host: str) -> None:
    assert is_own_host(host, NAMES)


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:9644", "localhost.evil.example", "127.0.0.1.evil.example:1"],
)
def test_host_of_somebody_else_is_rejected(host: str) -> None:
    assert not is_own_host(host, NAMES)


def test_list_of_numbers_is_checked_one_by_one() -> None:
    row = Parameter("partitions", INTEGERS, "", high=9)

    assert row.read("1,9") == [1, 9]
    with pytest.raises(BadRequest, match="whole numbers, 0 to 9"):
        row.read("1,10")


def test_settings_are_texts_or_null() -> None:
    row = Parameter("settings", SETTINGS, "")

    assert row.check({"a": "1", "b": None}) == {"a": "1", "b": None}
    with pytest.raises(BadRequest, match="names and texts"):
        row.check({"a": 1})


def test_words_are_named_if_another_is_given() -> None:
    row = Parameter("from", TEXT, "", one_of=("earliest", "latest"))

    with pytest.raises(BadRequest, match="'end' is not allowed: earliest, latest"):
        row.read("end")


@pytest.mark.parametrize("each", OPERATIONS, ids=lambda each: f"{each.method} {each.path}")
def test_operation_takes_its_own_defaults(each: Operation) -> None:
    for row in (*each.query, *each.body):
        if row.default is not None:
            given = list(row.default) if isinstance(row.default, tuple) else row.default
            assert row.check(given) == given
        assert row.text.endswith(".")
