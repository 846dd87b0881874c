"""Which replicas the settings of a topic throttle."""

from __future__ import annotations

import pytest

from kbroker.replication.throttles import (
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
    throttled_partitions,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, set()),
        ("", set()),
        ("none", set()),
        ("*", {0, 1, 2, 3}),
        ("0:1,1:2,3:1", {0, 3}),
        (" 2:1 , 0:11", {2}),
        ("0:2", set()),
    ],
)
@pytest.mark.parametrize("setting", [LEADER_REPLICAS, FOLLOWER_REPLICAS])
def test_replicas_of_this_broker_are_throttled(
    setting: str, text: str | None, expected: set[int]
) -> None:
    config = {} if text is None else {setting: text}
    assert throttled_partitions(config, setting, 1, 4) == expected


def test_settings_of_leaders_and_followers_are_apart() -> None:
    assert throttled_partitions({LEADER_REPLICAS: "*"}, FOLLOWER_REPLICAS, 1, 4) == set()
