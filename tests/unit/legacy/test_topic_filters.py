"""Filters of topics, and what a consumer of 0.8 registers."""

from __future__ import annotations

import json

import pytest

from kbroker.client.errors import SettingRefused
from kbroker.legacy.zookeeper_consumer.topic_filters import (
    Blacklist,
    StreamSubscription,
    Whitelist,
)

pytestmark = pytest.mark.unit

TOPICS = ["orders", "orders-eu", "payments", "__consumer_offsets"]


def test_a_whitelist_matches_whole_names():
    assert StreamSubscription({"": 2}, Whitelist("orders")).topics(TOPICS, True) == {"orders": 2}
    found = StreamSubscription({"": 1}, Whitelist("orders.*")).topics(TOPICS, True)
    assert found == {"orders": 1, "orders-eu": 1}


def test_a_blacklist_has_the_others():
    found = StreamSubscription({"": 1}, Blacklist("orders.*")).topics(TOPICS, True)
    assert found == {"payments": 1}


@pytest.mark.parametrize("made", [Whitelist(".*"), Blacklist("nothing")])
def test_internal_topics_are_hidden_unless_they_are_wanted(made):
    """CONS-23."""
    assert "__consumer_offsets" not in StreamSubscription({"": 1}, made).topics(TOPICS, True)
    assert "__consumer_offsets" in StreamSubscription({"": 1}, made).topics(TOPICS, False)


@pytest.mark.parametrize("text", ["a,b", " a, b ", "'a,b'", '"a|b"'])
def test_commas_are_alternatives_and_quotes_are_stripped(text):
    made = Whitelist(text)
    assert made.regex == "a|b"
    assert made.allows("a") and made.allows("b") and not made.allows("ab")


def test_what_is_no_expression_is_refused():
    with pytest.raises(SettingRefused, match=r"Whitelist\('a\('\): no regular expression: missing"):
        Whitelist("a(")


def test_the_node_of_topics_is_that_of_0_8():
    """Fields and their order, numbers as numbers, and the time as text."""
    node = StreamSubscription({"t": 2, "u": 1}).node(1394154511.599)
    assert node == (
        b'{"version":1,"subscription":{"t":2,"u":1},"pattern":"static","timestamp":"1394154511599"}'
    )
    assert StreamSubscription.of_node(node) == StreamSubscription({"t": 2, "u": 1})


@pytest.mark.parametrize(("made", "word"), [(Whitelist, "white_list"), (Blacklist, "black_list")])
def test_the_node_of_a_filter_has_the_expression_for_a_topic(made, word):
    node = StreamSubscription({"": 3}, made(r"a\.b|c")).node(1)
    row = json.loads(node)
    assert (row["subscription"], row["pattern"]) == ({r"a\.b|c": 3}, word)
    again = StreamSubscription.of_node(node)
    assert type(again.filter) is made
    assert again.topics(["a.b", "axb", "c"], True) == (
        {"a.b": 3, "c": 3} if made is Whitelist else {"axb": 3}
    )


def test_a_node_of_0_7_is_read():
    assert StreamSubscription.of_node(b'{"t": 4}').topics([], True) == {"t": 4}


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"x", b'{"subscription":{"t":"1"}}', b'{"subscription":3}', b'{"t":-1}',
     b'{"subscription":{"a":1,"b":1},"pattern":"white_list"}',
     b'{"subscription":{"a":1},"pattern":"grey_list"}'],
)  # fmt: skip
def test_other_nodes_are_refused(data):
    with pytest.raises(ValueError):
        StreamSubscription.of_node(data)
