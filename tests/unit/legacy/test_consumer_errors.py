"""Errors of the ZooKeeper consumer travel between processes."""

from __future__ import annotations

import pickle

import pytest

from kbroker.legacy.zookeeper_consumer.consumer_errors import (
    ConsumerTimeout,
    GroupDisagrees,
    NoInitialOffset,
    RebalanceFailed,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RebalanceFailed("g_c", 4, "others own t-0"), "g_c could not rebalance in 4 attempts"),
        (NoInitialOffset("t", 3, "none"), "t-3: the group has no offset"),
        (ConsumerTimeout("a message of stream t-0", 1.5), "waited 1.5 s for a message of stream"),
        (GroupDisagrees("no"), "no"),
    ],
)
def test_errors_are_pickled_with_what_they_say(error, words):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error)
    assert words in str(error)
