"""``kafka-transactions``: wrong use, and the columns of its tables."""

from __future__ import annotations

import pytest

from kbroker.cli.kafka import table
from kbroker.cli.kafka.parsers import table as columns

pytestmark = pytest.mark.unit

WHERE = ["--bootstrap-server", "x:1"]


def test_columns_are_as_wide_as_their_longest_text():
    assert columns(("A", "Longer"), [("aa", "b"), ("a", "")]) == (
        "A \tLonger\t\naa\tb     \t\na \t      \t"
    )
    assert columns(("A", "B"), []) == "A\tB\t"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*WHERE, "abort", "--topic", "t", "--partition", "0"], "must be identified either with"),
        (
            [*WHERE, "abort", "--topic", "t", "--partition", "0", "--producer-id", "1"],
            "Missing required argument --producer-epoch",
        ),
        ([*WHERE, "find-hanging"], "requires either --topic or --broker-id"),
        ([*WHERE, "find-hanging", "--broker-id", "0", "--partition", "1"], "requires --topic"),
        ([*WHERE, "describe-producers", "--topic", "t", "--partition", "x"], "not convert 'x'"),
        ([*WHERE, "abort"], "error: "),
        (["list"], "--bootstrap-server"),
    ],
)
def test_wrong_use_of_transactions_is_refused(capsys, words, said):
    assert table.main(words, "kafka-transactions") == 1
    captured = capsys.readouterr()
    assert (captured.out, said in captured.err) == ("", True), captured.err
