"""Features of a cluster, in its controller."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.ipc.calls.base import CONTROLLER
from kbroker.ipc.documents import Document
from kbroker.ipc.operation import CallOperation


class WantedFeature(NamedTuple):
    """kind: upgrade (1), safe downgrade (2) or unsafe downgrade (3)."""

    feature: str
    level: int
    kind: int


class UpdateFeatures(Document):
    """With one error nothing is changed."""

    updates: list[WantedFeature]
    validate_only: bool


class FeatureResult(NamedTuple):
    error: int
    message: str | None


# A result for each update, in order.
UPDATE_FEATURES = CallOperation(
    "update_features", UpdateFeatures, list[FeatureResult], (CONTROLLER,)
)
