"""docs/command-line.md: every verb and option is in it, whoever generates it."""

from __future__ import annotations

import pytest

from kbroker.cli.command import VERBS
from tools.command_line_page import command_line

pytestmark = pytest.mark.unit


def test_every_verb_and_option_is_told():
    page = command_line()

    assert [verb for verb in VERBS if f"\n## kbroker {verb}\n" not in page] == []
    for name in ("### kbroker topic create", "`-p`, `--partitions N`", "`--to-datetime TIME`"):
        assert name in page
    assert "%(" not in page and "==SUPPRESS==" not in page


def test_page_does_not_depend_on_who_generates_it(monkeypatch):
    page = command_line()
    monkeypatch.setenv("KBROKER_TIMEOUT", "not a number")
    monkeypatch.setenv("KBROKER_OUTPUT", "json")
    monkeypatch.setenv("COLUMNS", "40")

    assert command_line() == page
