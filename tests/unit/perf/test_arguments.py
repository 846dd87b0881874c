"""The options that benchmarks have in common."""

from __future__ import annotations

import argparse

import pytest

from perf.arguments import Arguments

pytestmark = pytest.mark.unit

NAMES = ["send", "send_many", "send_many, arrays"]


def parsed(*words: str, separator: str = ",") -> argparse.Namespace:
    options = Arguments("What it measures.\n\nAnd how.")
    options.add_names("--names", NAMES, separator=separator)
    options.add_sizes(("--runs", 5, 1, "per cell"), ("--seconds", 60.0, 0.5, ""))
    options.add_quick()
    options.add_overrides()
    return options.parse(words)


def test_names_are_all_by_default() -> None:
    assert parsed().names == NAMES
    assert parsed(separator=";").names == NAMES


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("send", ["send"]),
        ("send_many, arrays", ["send_many, arrays"]),
        ("send_many,send", ["send_many", "send"]),
        ("send_many, arrays, send", ["send_many, arrays", "send"]),
    ],
)
def test_names_may_have_a_comma(text: str, names: list[str]) -> None:
    assert parsed("--names", text).names == names


def test_toy_size_is_for_what_nobody_chose() -> None:
    assert (parsed().runs, parsed().seconds) == (5, 60.0)
    assert (parsed("--quick").runs, parsed("--quick").seconds) == (1, 0.5)
    assert parsed("--quick", "--runs", "3").runs == 3
    assert parsed("--quick", "--runs", "5").runs == 5


def test_overrides_are_pairs() -> None:
    assert parsed("--override", "a=b=c", "--override", "d=").override == [("a", "b=c"), ("d", "")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--names", "nope"], "no nope; there are send, send_many"),
        (["--names", "send,nope"], "no nope; there are send"),
        (["--runs", "0"], "must be at least 1"),
        (["--override", "x"], "'x' is not KEY=VALUE"),
    ],
)
def test_what_cannot_work_ends_the_program(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        parsed(*words)

    assert raised.value.code == 2
    assert said in capsys.readouterr().err
