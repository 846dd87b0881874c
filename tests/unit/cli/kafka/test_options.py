"""Options by the rules of joptsimple, and its usage text."""

from __future__ import annotations

import pytest

from kbroker.cli.kafka.options import Given, ToolOptionError, WrongUse, flag, usage, valued

pytestmark = pytest.mark.unit

OPTIONS = (
    flag("list", "Print all."),
    flag("describe", "Describe."),
    flag("members", "The members.", needs=("describe",)),
    valued("topic", "topic", "A topic."),
    valued("partitions", "count", "How many.", kind=int),
    valued("time", "time", "Which.", default="latest"),
    valued("state", "", "States.", optional=True, needs=("describe", "list")),
    valued("shift-by", "n", "How far.", kind=int, long=True),
    valued("wait", "ms", "How long.", kind=int, optional=True),
    valued("topics", "names", "Several.", separator=","),
)


def given(*words: str) -> Given:
    return Given(OPTIONS, words)


@pytest.mark.parametrize(
    "words", [("--topic", "t"), ("--topic=t",), ("-topic", "t"), ("-topic=t",)]
)
def test_value_is_the_next_word_or_behind_an_equals_sign(words):
    assert given(*words).one("topic") == "t"


def test_required_value_is_the_next_word_whatever_it_looks_like():
    assert given("--topic", "--list").one("topic") == "--list"
    assert given("--shift-by", "-5").one("shift-by") == -5


def test_optional_value_is_left_out_before_another_option_and_at_the_end():
    assert given("--state", "--list").one("state") is None
    assert given("--list", "--state").one("state") is None
    assert given("--list", "--state", "stable").one("state") == "stable"
    assert given("--wait", "--list").one("wait") is None
    assert given("--wait", "-5").one("wait") == -5


def test_words_without_an_option_are_left_alone():
    assert given("x", "--list", "--", "--topic").rest == ["x", "--topic"]


def test_option_that_is_not_given_has_its_default_but_is_not_there():
    found = given("--list")

    assert found.one("time") == "latest" and "time" not in found
    assert found.one("topic") is None and found.all("topic") == []


def test_repeated_and_separated_values_are_all_there():
    assert given("--topic", "a", "--topic", "b").all("topic") == ["a", "b"]
    assert given("--topics", "a,b", "--topics", "c").all("topics") == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bogus"], "bogus is not a recognized option"),
        (["--bogus=1"], "bogus is not a recognized option"),
        (["--lis"], "lis is not a recognized option; did you mean --list?"),
        (["--topic"], "Option topic requires an argument"),
        (["--partitions", "x"], "Cannot parse argument 'x' of option partitions"),
        (["--partitions", "2147483648"], "Cannot parse argument '2147483648' of option partitions"),
        (
            ["--members"],
            "Option(s) [members] are unavailable given other options on the command line",
        ),
    ],
)
def test_what_cannot_be_read_is_said_in_the_words_of_joptsimple_and_what_is_near(words, message):
    with pytest.raises(ToolOptionError) as caught:
        given(*words).one("partitions")
    assert str(caught.value) == message


def test_several_values_where_one_is_asked_for_are_wrong():
    with pytest.raises(ToolOptionError, match="Found multiple arguments for option topic, but you"):
        given("--topic", "a", "--topic", "b").one("topic")


def test_missing_and_contradictory_options_are_named():
    with pytest.raises(WrongUse, match=r'^Missing required argument "\[topic\]"$'):
        given("--list").require("topic")
    with pytest.raises(WrongUse) as caught:
        given("--list", "--describe").exclude("list", ["topic", "describe"])
    assert str(caught.value) == 'Option "[list]" can\'t be used with option "[describe]"'


def test_usage_has_two_columns_as_joptsimple_lays_them_out():
    options = [
        valued("bootstrap-server", "HOST1:PORT1,...,HOST3:PORT3", "The brokers to connect to, in "
               "a list with commas."),
        flag("help", "Print usage information."),
        valued("time", "<timestamp>", "Which offsets.", default="latest"),
    ]  # fmt: skip

    assert usage(options).splitlines() == [
        "Option                              Description                         ",
        "------                              -----------                         ",
        "--bootstrap-server <String: HOST1:  The brokers to connect to, in a list",
        "  PORT1,...,HOST3:PORT3>              with commas.                      ",
        "--help                              Print usage information.            ",
        "--time <String: <timestamp>>        Which offsets. (default: latest)    ",
    ]
