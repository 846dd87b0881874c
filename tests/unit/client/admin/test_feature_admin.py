"""Requests that change the features of a cluster, in the words of its broker's version."""

from __future__ import annotations

from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker

from kbroker.client.admin.features import (
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    update_features,
)
from kbroker.client.connections.cluster import Cluster
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.update_features import UpdateFeaturesResponse

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("last", [0, 1, 2])
@pytest.mark.parametrize("change", [UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE])
def test_kind_of_change_is_told_as_the_version_can(last: int, change: int) -> None:
    """Kafka 2.7 has a flag in its place, which no later version has: whatever set it failed."""
    asked: list[Any] = []

    def answer(request: Any, connection: dict[str, Any]) -> UpdateFeaturesResponse:
        asked.append(request)
        return UpdateFeaturesResponse(error_message=None)

    versions = {int(key): key.versions for key in ApiKey if key < 40}
    versions[ApiKey.UPDATE_FEATURES] = (0, last)
    with FakeBroker({ApiKey.UPDATE_FEATURES: answer}, versions) as broker:
        with Cluster(broker.bootstrap) as cluster:
            assert update_features(cluster, {"some.version": 0}, change) == {"some.version": None}

    [update] = asked[0].feature_updates
    told = update.upgrade_type if last else update.allow_downgrade
    assert told == (change if last else change != UPGRADE)
