"""Verbs follow from the rows of operations."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypedDict

import pytest

from kbroker.cli import command, operation_verbs
from kbroker.cli.operation_verbs import VerbView, actions_of
from kbroker.console.openapi import document
from kbroker.console.operation import (
    BYTES,
    FLAG,
    INTEGER,
    INTEGERS,
    SETTINGS,
    TEXT,
    TEXTS,
    CheckedRequest,
    Operation,
    Parameter,
    paging,
)
from kbroker.console.operations import OPERATIONS
from kbroker.console.problems import BadRequest, NotThere

pytestmark = pytest.mark.unit

WITH_VERB = [row for row in OPERATIONS if row.verb]


class Done(TypedDict):
    pass


class ListedRow(TypedDict):
    a_b: int
    c: dict[str, float]


class Listed(TypedDict):
    total: int
    rows: list[ListedRow]


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connected(given: argparse.Namespace) -> Iterator[None]:
        yield None

    monkeypatch.setattr(operation_verbs, "connected", connected)


def run(row: Operation, *words: str, view: VerbView | None = None) -> None:
    views = {} if view is None else {"do": view}
    actions_of([row], views)["do"].run_with("kbroker it do", words)


def row_of(*body: Parameter, positional: tuple[str, ...] = (), **more: Any) -> Operation:
    """Answers with the values that it is given."""
    return Operation(
        "POST", "/it", "Do it", lambda asked: dict(asked.values), Done, body=body, verb="it do",
        positional=positional, **more,
    )  # fmt: skip


def values_of(capsys: pytest.CaptureFixture[str], row: Operation, *words: str) -> dict[str, Any]:
    run(row, *words, "-o", "json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_arguments_are_read_as_the_api_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    row = row_of(
        Parameter("topic", TEXT, "It.", required=True),
        Parameter("brokers", INTEGERS, "They."),
        Parameter("names", TEXTS, "They."),
        Parameter("offset", INTEGER, "It."),
        Parameter("throttle", BYTES, "It."),
        Parameter("all", FLAG, "It.", False),
        positional=("topic", "brokers"),
    )

    values = values_of(
        capsys, row, "t", "1", "2", "--name", "a,b", "--name", "c", "--throttle", "50MB", "--all"
    )

    assert values == {
        "topic": "t",
        "brokers": [1, 2],
        "names": ["a,b", "c"],
        "offset": None,
        "throttle": 50_000_000,
        "all": True,
    }


def test_settings_are_pairs_and_names_to_unset(capsys: pytest.CaptureFixture[str]) -> None:
    row = row_of(Parameter("s", SETTINGS, "They.", required=True), positional=("s",))

    assert values_of(capsys, row, "a=1", "b=x=y", "--unset", "c") == {
        "s": {"a": "1", "b": "x=y", "c": None}
    }
    with pytest.raises(command.Usage, match="nothing to set"):
        run(row)
    with pytest.raises(command.Usage, match="'a': write NAME=VALUE"):
        run(row, "a")


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("5k", 5 << 10), ("1.5MB", 1_500_000), ("2MiB/s", 2 << 20), ("1g", 1 << 30)],
)
def test_bytes_have_units(capsys: pytest.CaptureFixture[str], text: str, count: int) -> None:
    row = row_of(Parameter("throttle", BYTES, "It."))

    assert values_of(capsys, row, "--throttle", text) == {"throttle": count}


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "5 apples", "nan", "1e40", "inf"])
def test_no_number_of_bytes_is_wrong_usage(text: str) -> None:
    with pytest.raises(command.Usage, match="write 50MB"):
        run(row_of(Parameter("throttle", BYTES, "It.")), f"--throttle={text}")


@pytest.mark.parametrize(
    ("default", "words", "is_dry", "hint"),
    [(True, [], True, "add --execute"), (True, ["--execute"], False, ""), (False, [], False, ""),
     (False, ["--dry-run"], True, "")],
)  # fmt: skip
def test_dry_run_is_turned_by_an_option(
    capsys: pytest.CaptureFixture[str], default: bool, words: list[str], is_dry: bool, hint: str
) -> None:
    run(row_of(Parameter("dry_run", FLAG, "It.", default)), *words, "-o", "json")

    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"dry_run": is_dry}
    assert hint in captured.err
    assert bool(captured.err) == bool(hint)


def test_lists_have_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    row = Operation(
        "GET", "/it", "List it", lambda asked: dict(asked.values), Done, paging(), verb="it do"
    )

    values = values_of(capsys, row)

    assert (values["limit"], values["skip"], values["cursor"]) == ((1 << 63) - 1, 0, "")


def test_what_cannot_be_undone_wants_force_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = row_of(
        Parameter("id", TEXT, "It.", required=True), positional=("id",), asks="id {id} ends"
    )
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)

    with pytest.raises(command.Usage, match="add --force"):
        run(row, "x")
    assert values_of(capsys, row, "x", "--force") == {"id": "x"}


def test_problems_have_the_exit_codes_of_the_command() -> None:
    def wrong(asked: CheckedRequest) -> None:
        raise BadRequest("it is wrong")

    def absent(asked: CheckedRequest) -> None:
        raise NotThere("it is not there")

    for serve, kind in ((wrong, command.Usage), (absent, command.CommandFailed)):
        with pytest.raises(kind, match="it is"):
            run(Operation("GET", "/it", "Do it", serve, Done, verb="it do"))


def test_table_has_the_rows_of_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"a_b": 1, "c": {"x": 2.5}}, {"a_b": 3, "c": {}}]
    row = Operation(
        "GET", "/it", "List it", lambda asked: {"total": 2, "rows": rows}, Listed, verb="it do"
    )  # fmt: skip

    run(row)

    assert capsys.readouterr().out == "A B  C\n1    x=2.5\n3\n"


@pytest.mark.parametrize("row", WITH_VERB, ids=lambda row: row.verb)
def test_row_with_a_verb_is_complete(row: Operation) -> None:
    """Its verb is there, and the API says what it answers and what a user needs."""
    verb, action = row.verb.split(" ")

    assert action in command.module_of(verb).ACTIONS
    names = {each.name for each in row.parameters}
    assert set(row.positional) <= names
    assert set(re.findall(r"{(\w+)}", row.asks)) <= names
    assert row.needs in document([row])["paths"][row.path][row.method.lower()]["description"]
    assert row.needs
