"""Configs of a group, and the broker's bounds for them."""

from __future__ import annotations

import pytest

from kbroker.config.group_config import (
    HEARTBEAT_INTERVAL_MS,
    OFFLOAD_ENABLE,
    SESSION_TIMEOUT_MS,
    validate_group,
    value_of,
)
from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError

pytestmark = pytest.mark.unit

WIDE = BrokerConfig(
    {
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "1000",
        "group.consumer.heartbeat.interval.ms": "3000",
    }
)


def test_value_is_the_groups_own_or_the_brokers() -> None:
    assert value_of(HEARTBEAT_INTERVAL_MS, {}, WIDE) == 3000
    assert value_of(HEARTBEAT_INTERVAL_MS, {HEARTBEAT_INTERVAL_MS: "2000"}, WIDE) == 2000


def test_value_beyond_bounds_that_became_narrower_is_the_nearest_bound() -> None:
    assert value_of(SESSION_TIMEOUT_MS, {SESSION_TIMEOUT_MS: "2000"}, BrokerConfig({})) == 45_000
    assert value_of(SESSION_TIMEOUT_MS, {SESSION_TIMEOUT_MS: "90000"}, WIDE) == 60_000


@pytest.mark.parametrize(
    "overrides",
    [
        {SESSION_TIMEOUT_MS: "3000"},  # as long as the broker's heartbeat interval
        {SESSION_TIMEOUT_MS: "4000", HEARTBEAT_INTERVAL_MS: "4000"},
        {SESSION_TIMEOUT_MS: "999"},
        {HEARTBEAT_INTERVAL_MS: "15001"},
        {OFFLOAD_ENABLE: "perhaps"},
        {"share.session.timeout.ms": "50000"},
    ],
)
def test_group_that_could_not_work_is_refused(overrides: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        validate_group(overrides, WIDE)


def test_session_longer_than_the_heartbeat_is_accepted() -> None:
    validate_group({SESSION_TIMEOUT_MS: "4001", HEARTBEAT_INTERVAL_MS: "4000"}, WIDE)


def test_switch_of_a_group_has_no_bounds() -> None:
    """Kafka's tools set it with the others; here it has no effect."""
    validate_group({OFFLOAD_ENABLE: "false"}, WIDE)


def test_stored_value_that_is_no_number_counts_as_unset() -> None:
    """Whoever wrote it into the store did not check it; every heartbeat would fail."""
    assert value_of(SESSION_TIMEOUT_MS, {SESSION_TIMEOUT_MS: "long"}, BrokerConfig()) == 45_000
